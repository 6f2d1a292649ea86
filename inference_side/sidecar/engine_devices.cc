#include "inference_side/sidecar/engine_devices.h"

#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/config/devices_config.h"
#include "shared/device/cuda_library.h"

namespace wsync::agent {
namespace {

std::optional<collective::GroupKind> group_kind(Collective collective) {
  switch (collective) {
    case Collective::kAuto:
      return std::nullopt;
    case Collective::kNccl:
      return collective::GroupKind::kNccl;
    case Collective::kLocal:
      return collective::GroupKind::kLocal;
  }
  return std::nullopt;
}

double mib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(limits::kMiB);
}

bool keep_buffers(const config::DevicesConfig& config) {
  return config.kind != DeviceKind::kCuda || config.keep_buffers;
}

void log_gpus(const reload::DeviceGroup& group, Collective wanted) {
  std::string passing;
  if (group.size() > 1) {
    const collective::FittingGroup& chosen = group.collective();
    passing = fmt::format(", broadcasts: {}", collective::group_kind_name(chosen.kind));
    if (!chosen.why_not_nccl.empty() && wanted == Collective::kAuto)
      passing += fmt::format(" (not by NCCL: {})", chosen.why_not_nccl);
  }
  log_info("{} on GPUs, each with {} buffers of {} bytes, {}{}",
           group.size() == 1 ? "1 device" : fmt::format("{} devices", group.size()),
           reload::buffers_per_device(group.size()), group.buffer_bytes(),
           group.keeps_buffers() ? "kept between updates" : "allocated for each update", passing);
  const auto rooms = group.rooms();
  if (!rooms)
    return log_warning("the free memory of the devices is unknown: {}", rooms.error().message());
  for (const reload::DeviceRoom& room : *rooms) {
    log_info(
        "{} {}: {} of the devices, buffers take {:.0f} MiB, streams and communicators {:.0f} ({}), "
        "the context at most {:.0f}; {:.0f} of {:.0f} MiB are free now",
        room.name, room.uuid, room.devices, mib(room.peak_bytes), mib(room.streams_bytes),
        room.streams_measured ? "measured" : "estimated", mib(room.context_bytes),
        mib(room.free_bytes), mib(room.total_bytes));
  }
}

}  // namespace

// Forwards the runner's callbacks from the runner's thread to the loop.
class EngineDevices::Events final : public reload::PipelineListener {
 public:
  explicit Events(EngineDevices& devices)
      : devices_(devices), loop_(devices.loop_), alive_(devices.alive_) {}
  void on_bucket_ready(const reload::BucketReady& ready) override {
    post([ready](EngineDevices& devices) { devices.callbacks_.on_bucket_ready(ready); });
  }
  void on_engine_dropped(const reload::LostEngine& dropped) override {
    post([dropped](EngineDevices& devices) { devices.callbacks_.on_engine_dropped(dropped); });
  }
  void on_finished(const Result<reload::PipelineReport>& result) override {
    post([result](EngineDevices& devices) { devices.callbacks_.on_run_finished(result); });
  }

 private:
  void post(std::function<void(EngineDevices&)> task) {
    loop_.post([devices = &devices_, alive = alive_, task = std::move(task)] {
      if (*alive) task(*devices);
    });
  }
  EngineDevices& devices_;
  Loop& loop_;
  std::shared_ptr<bool> alive_;
};

Result<std::unique_ptr<EngineDevices>> EngineDevices::open(Loop& loop, EngineDevicesOptions options,
                                                           EngineDevicesCallbacks callbacks) {
  auto devices = std::unique_ptr<EngineDevices>(
      new EngineDevices(loop, std::move(options), std::move(callbacks)));
  WSYNC_TRY(devices->open_runner());
  return devices;
}

EngineDevices::EngineDevices(Loop& loop, EngineDevicesOptions options,
                             EngineDevicesCallbacks callbacks)
    : loop_(loop),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      buffers_(keep_buffers(options_.config)),
      events_(std::make_unique<Events>(*this)),
      worker_(loop, WorkerOptions{.name = "device-buffers"}) {}

EngineDevices::~EngineDevices() {
  *alive_ = false;
  worker_.stop();
}

bool EngineDevices::on_gpus() const noexcept { return options_.config.kind == DeviceKind::kCuda; }

Result<> EngineDevices::open_runner() {
  const config::DevicesConfig& config = options_.config;
  reload::PipelineOptions pipeline;
  for (std::uint32_t i = 0; i < config.count; ++i) {
    auto device = device::make_device({.kind = config.kind,
                                       .index = static_cast<device::DeviceIndex>(i),
                                       .gpu = on_gpus() ? config.gpus.at(i) : 0});
    if (!device) return fail(device.error().with_context(fmt::format("device {}", i)));
    pipeline.devices.push_back(std::move(*device));
  }
  pipeline.buffer_bytes = config.buffer_bytes;
  pipeline.keep_buffers = buffers_.kept();
  pipeline.collective = group_kind(config.collective);
  pipeline.transfer = config.transfer;
  pipeline.stages = options_.stages;
  pipeline.trace = options_.trace;
  runner_ = WSYNC_TRY(reload::PipelineRunner::create(std::move(pipeline)));
  if (on_gpus()) log_gpus(group(), config.collective);
  return {};
}

std::optional<std::uint32_t> EngineDevices::numa_node() const {
  if (!on_gpus()) return std::nullopt;
  const auto backend = device::cuda_backend();
  const Result<device::CudaFacts> facts =
      backend ? (*backend)->facts() : Result<device::CudaFacts>(fail(backend.error()));
  if (!facts) return std::nullopt;
  std::vector<std::string> uuids;
  for (std::uint32_t d = 0; d < group().size(); ++d)
    uuids.push_back(group().device(reload::DeviceIndex{d}).uuid());
  return device::common_numa_node(facts->gpus, uuids);
}

RegistryDevices EngineDevices::registry_devices() const {
  RegistryDevices devices{.kind = options_.config.kind, .devices = {}};
  for (std::uint32_t d = 0; d < group().size(); ++d) {
    const device::Device& device = group().device(reload::DeviceIndex{d});
    devices.devices.push_back(
        {.uuid = on_gpus() ? device.uuid() : std::string(), .name = device.name()});
  }
  return devices;
}

// A transition that is not in the tables is a defect of this class or of its user. Abort, because
// continuing could free memory that a run of this process still uses.
void EngineDevices::check(const Result<>& moved) const {
  WSYNC_CHECK(moved.has_value(), moved.error().message());
  const Result<> rules = buffers_.invariants();
  WSYNC_CHECK(rules.has_value(), rules.error().message());
}

// ---- runs ----

Result<> EngineDevices::start_run(reload::PipelineJob job) {
  return runner_->start(std::move(job), *events_);
}

// ---- streams and communicators ----

bool EngineDevices::connected() const noexcept {
  // Ask the group too: a failing run disconnects it before its end is reported.
  return !on_gpus() || (buffers_.connected() && group().connected());
}

void EngineDevices::connect() {
  if (!on_gpus()) return;
  if (!buffers_.connecting()) check(buffers_.run_finished(group().connected()));
  if (!buffers_.begin_connect(runner_->running())) return;
  auto outcome = std::make_shared<Result<>>();
  const auto submitted = worker_.submit([this, outcome] { *outcome = runner_->connect(); },
                                        [this, alive = alive_, outcome] {
                                          if (*alive) connect_finished(*outcome);
                                        });
  if (!submitted) check(buffers_.connect_finished(false));
}

void EngineDevices::connect_finished(const Result<>& outcome) {
  check(buffers_.connect_finished(outcome.has_value()));
  if (outcome) {
    log_info("the devices are connected again");
    connect_failure_.clear();
  } else if (std::exchange(connect_failure_, outcome.error().message()) !=
             outcome.error().message()) {
    log_warning("no load can begin: {}", outcome.error().message());
  }
  callbacks_.on_connected(outcome);
}

// ---- buffers that are not kept ----

void EngineDevices::allocate() {
  if (!buffers_.begin_allocate()) return;
  auto outcome = std::make_shared<Result<>>();
  const auto submitted = worker_.submit([this, outcome] { *outcome = runner_->hold_buffers(); },
                                        [this, alive = alive_, outcome] {
                                          if (*alive) allocate_finished(*outcome);
                                        });
  // Post, because the caller has yet to record that its load waits for this.
  if (!submitted)
    loop_.post([this, alive = alive_, error = submitted.error()] {
      if (*alive) allocate_finished(fail(error));
    });
}

void EngineDevices::allocate_finished(const Result<>& outcome) {
  check(buffers_.allocated(outcome.has_value()));
  if (!outcome) log_warning("no load can begin: {}", outcome.error().message());
  callbacks_.on_allocated(outcome);
}

void EngineDevices::free_unused(bool in_use) {
  if (!buffers_.begin_free(in_use || runner_->running())) return;
  auto outcome = std::make_shared<Result<>>();
  const auto submitted = worker_.submit([this, outcome] { *outcome = runner_->free_buffers(); },
                                        [this, alive = alive_, outcome] {
                                          if (*alive) free_finished(*outcome);
                                        });
  if (!submitted) check(buffers_.freed(false));
}

void EngineDevices::free_finished(const Result<>& outcome) {
  if (!outcome) log_warning("the device buffers were not freed: {}", outcome.error().message());
  check(buffers_.freed(outcome.has_value()));
  callbacks_.on_freed();
}

Result<EngineDevices::Exported> EngineDevices::export_buffers(
    const EngineRank& rank, std::uint32_t device, std::optional<std::uint64_t> request) {
  Exported exported;
  for (std::uint32_t slot = 0; slot < reload::kIpcSlots; ++slot) {
    auto handle =
        WSYNC_TRY(group().ipc_handle(reload::DeviceIndex{device}, reload::SlotIndex{slot}));
    exported.fds.push_back(std::move(handle.fd));
    if (on_gpus())
      exported.handles.push_back(
          {.opaque = std::move(handle.opaque), .generation = options_.generation});
  }
  // Only GPUs record who maps the buffers. Buffers of host devices are always kept.
  if (on_gpus()) check(buffers_.exported(rank.id, request));
  return exported;
}

void EngineDevices::answered(reload::EngineId engine, std::uint64_t request) {
  buffers_.answered(engine, request);
}

void EngineDevices::disconnected(const EngineRank& rank) {
  if (buffers_.mapping_of(rank.id) != MappingState::kMapped) return;
  buffers_.disconnected(rank.id);
  check({});
  loop_.post([this, alive = alive_] {
    if (*alive) callbacks_.on_unmapped();
  });
}

// ---- shutdown ----

void EngineDevices::stop_runs() {
  runner_->abort({ErrorCode::kCancelled, "the sidecar is shutting down"});
  (void)runner_->wait();
}

}  // namespace wsync::agent
