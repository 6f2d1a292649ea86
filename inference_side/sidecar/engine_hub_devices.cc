// EngineHub's devices: how they are opened, and buffers that are there only while a load runs.
#include <algorithm>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include "inference_side/sidecar/engine_hub.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/device/cuda_library.h"

namespace wsync::agent {
namespace {

// Beside the thread that asks; of low priority, as what verifies.
constexpr unsigned kDigestThreads = 4;
constexpr int kDigestNice = 10;
// An orderly end waits this long for engines to unmap.
constexpr std::chrono::milliseconds kUnmapDeadline{1'000};
constexpr std::chrono::milliseconds kDepartingPoll{100};

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

bool hung_up(int fd) {
  pollfd peer{.fd = fd, .events = 0, .revents = 0};
  return ::poll(&peer, 1, 0) > 0 && (peer.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace

bool EngineHub::on_gpus() const noexcept { return options_.devices.kind == DeviceKind::kCuda; }

bool EngineHub::keeps_buffers() const noexcept {
  return !on_gpus() || options_.devices.keep_buffers;
}

Result<> EngineHub::open_devices() {
  if (options_.devices.kind != DeviceKind::kUnified) WSYNC_TRY(open_pipeline());
  if (on_gpus())
    digest_threads_ = std::make_unique<ThreadPool>(
        std::clamp(std::thread::hardware_concurrency(), 1U, kDigestThreads), kDigestNice);
  cache_ = std::make_shared<LoadCache>(on_gpus() ? GroupSum::kPieceDigest : GroupSum::kStreamed,
                                       digest_threads_.get());
  if (runner_)
    device_staging_ =
        std::make_unique<DeviceStaging>(loop_, runner_->group(), digest_threads_.get());
  return {};
}

Result<> EngineHub::open_pipeline() {
  reload::PipelineOptions pipeline;
  for (std::uint32_t i = 0; i < options_.devices.count; ++i) {
    auto device = device::make_device({.kind = options_.devices.kind,
                                       .index = static_cast<device::DeviceIndex>(i),
                                       .gpu = on_gpus() ? options_.devices.gpus.at(i) : 0});
    if (!device) return fail(device.error().with_context(fmt::format("device {}", i)));
    pipeline.devices.push_back(std::move(*device));
  }
  pipeline.buffer_bytes = options_.devices.buffer_bytes;
  pipeline.keep_buffers = keeps_buffers();
  pipeline.collective = group_kind(options_.devices.collective);
  pipeline.stages = options_.stages;
  pipeline.trace = options_.trace;
  runner_ = WSYNC_TRY(reload::PipelineRunner::create(std::move(pipeline)));
  buffers_worker_ = std::make_unique<Worker>(loop_, WorkerOptions{.name = "device-buffers"});
  departing_timer_ = std::make_unique<Timer>(loop_, [this] { free_unused_buffers(); });
  make_pipeline_events();
  log_devices();
  return {};
}

std::optional<std::uint32_t> EngineHub::numa_node() const {
  if (!on_gpus()) return std::nullopt;
  const auto backend = device::cuda_backend();
  const Result<device::CudaFacts> facts =
      backend ? (*backend)->facts() : Result<device::CudaFacts>(fail(backend.error()));
  if (!facts) return std::nullopt;
  const reload::DeviceGroup& group = runner_->group();
  std::vector<std::string> uuids;
  for (std::uint32_t d = 0; d < group.size(); ++d)
    uuids.push_back(group.device(reload::DeviceIndex{d}).uuid());
  return device::common_numa_node(facts->gpus, uuids);
}

void EngineHub::log_devices() const {
  if (!on_gpus()) return;
  const reload::DeviceGroup& group = runner_->group();
  std::string passing;
  if (group.size() > 1) {
    const collective::FittingGroup& chosen = group.collective();
    passing = fmt::format(", broadcasts: {}", collective::group_kind_name(chosen.kind));
    if (!chosen.why_not_nccl.empty() && options_.devices.collective == Collective::kAuto)
      passing += fmt::format(" (not by NCCL: {})", chosen.why_not_nccl);
  }
  log_info("{} on GPUs, each with {} buffers of {} bytes, {}{}",
           group.size() == 1 ? "1 device" : fmt::format("{} devices", group.size()),
           reload::kBuffersPerDevice, group.buffer_bytes(),
           group.keeps_buffers() ? "kept between updates" : "allocated for each update", passing);
  const auto rooms = group.rooms();
  if (!rooms) return log_warning("free memory is not known: {}", rooms.error().message());
  for (const reload::DeviceRoom& room : *rooms) {
    log_info(
        "{} {}: {} of the devices, buffers take {:.0f} MiB, streams and communicators {:.0f} ({}), "
        "the context at most {:.0f}; {:.0f} of {:.0f} MiB are free now",
        room.name, room.uuid, room.devices, mib(room.peak_bytes), mib(room.streams_bytes),
        room.streams_measured ? "measured" : "estimated", mib(room.context_bytes),
        mib(room.free_bytes), mib(room.total_bytes));
  }
}

// ---- streams and communicators ----

void EngineHub::connect_devices() {
  if (!on_gpus() || connecting_ || runner_->group().connected() || runner_->running()) return;
  auto outcome = std::make_shared<Result<>>();
  const auto submitted = buffers_worker_->submit([this, outcome] { *outcome = runner_->connect(); },
                                                 [this, alive = alive_, outcome] {
                                                   if (*alive) devices_connected(*outcome);
                                                 });
  connecting_ = submitted.has_value();
}

bool EngineHub::devices_connected(Load& load) {
  if (!on_gpus() || (runner_->group().connected() && !connecting_)) return true;
  load.waits_for_devices = true;
  connect_devices();
  return false;
}

void EngineHub::devices_connected(const Result<>& outcome) {
  connecting_ = false;
  if (outcome) {
    log_info("the devices are connected anew");
    devices_failure_.clear();
  } else if (std::exchange(devices_failure_, outcome.error().message()) !=
             outcome.error().message()) {
    log_warning("no load can begin: {}", outcome.error().message());
  }
  std::vector<std::string> waiting;
  for (auto& [replica, load] : loads_)
    if (std::exchange(load.waits_for_devices, false) && !load.begun) waiting.push_back(replica);
  for (const std::string& replica : waiting)
    if (!outcome) load_not_begun(replica, outcome.error().message());
  pump_loads();
  start_pipeline();
}

// ---- buffers that are not kept ----

bool EngineHub::buffers_ready(Load& load) {
  if (keeps_buffers() || buffers_ == Buffers::kHeld) return true;
  load.waits_for_buffers = true;
  if (buffers_ != Buffers::kNone) return false;
  buffers_ = Buffers::kAllocating;
  auto outcome = std::make_shared<Result<>>();
  const auto submitted =
      buffers_worker_->submit([this, outcome] { *outcome = runner_->hold_buffers(); },
                              [this, alive = alive_, outcome] {
                                if (*alive) buffers_allocated(*outcome);
                              });
  if (!submitted)
    loop_.post([this, alive = alive_, error = submitted.error()] {
      if (*alive) buffers_allocated(fail(error));
    });
  return false;
}

void EngineHub::buffers_allocated(const Result<>& outcome) {
  buffers_ = outcome ? Buffers::kHeld : Buffers::kNone;
  if (!outcome) {
    log_warning("no load can begin: {}", outcome.error().message());
    std::vector<std::string> waiting;
    for (const auto& [replica, load] : loads_)
      if (!load.begun && load.waits_for_buffers) waiting.push_back(replica);
    for (const std::string& replica : waiting) load_not_begun(replica, outcome.error().message());
  }
  pump_loads();
  free_unused_buffers();
}

void EngineHub::free_unused_buffers() {
  if (keeps_buffers() || buffers_ != Buffers::kHeld || !running_.empty() || !queued_.empty() ||
      runner_->running())
    return;
  if (std::ranges::any_of(loads_, [](const auto& load) { return !load.second.begun; })) return;
  if (std::ranges::any_of(ranks_, [](const auto& rank) { return rank->load_due.has_value(); }))
    return;
  std::erase_if(departing_, [](const UniqueFd& fd) { return hung_up(fd.get()); });
  if (!departing_.empty()) return departing_timer_->start(kDepartingPoll);
  buffers_ = Buffers::kFreeing;
  auto outcome = std::make_shared<Result<>>();
  const auto freed = [this, alive = alive_, outcome] {
    if (!*alive) return;
    if (!*outcome) log_warning("buffers are not freed: {}", outcome->error().message());
    buffers_ = *outcome ? Buffers::kNone : Buffers::kHeld;
    pump_loads();
  };
  if (const auto submitted =
          buffers_worker_->submit([this, outcome] { *outcome = runner_->free_buffers(); }, freed);
      !submitted)
    buffers_ = Buffers::kHeld;
}

// Its connection ends on this side: what it has mapped it unmaps before it closes its own end.
void EngineHub::unmapped_when_closed(EngineRank& rank) {
  UniqueFd hangup = std::move(rank.hangup);
  rank.load_due.reset();
  if (!std::exchange(rank.mapped, false) || !hangup.valid()) return;
  (void)::shutdown(hangup.get(), SHUT_WR);
  if (!hung_up(hangup.get())) departing_.push_back(std::move(hangup));
  loop_.post([this, alive = alive_] {
    if (*alive) free_unused_buffers();
  });
}

// The sidecar ends. Memory that is freed while another process has it mapped is undefined to CUDA.
void EngineHub::wait_for_unmapping() {
  listener_.reset();
  for (const auto& rank : std::exchange(ranks_, {})) {
    rank->stream.reset();
    unmapped_when_closed(*rank);
  }
  const TimePoint deadline = now() + kUnmapDeadline;
  while (!departing_.empty()) {
    pollfd first{.fd = departing_.front().get(), .events = 0, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now());
    if (left.count() <= 0 || ::poll(&first, 1, static_cast<int>(left.count())) == 0) break;
    std::erase_if(departing_, [](const UniqueFd& fd) { return hung_up(fd.get()); });
  }
  if (!departing_.empty())
    log_warning("{} engines have not unmapped their buffers within {} ms", departing_.size(),
                kUnmapDeadline.count());
}

}  // namespace wsync::agent
