#include "trainer_side/publish/trainer_gpus.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/numa.h"
#include "shared/base/units.h"
#include "shared/device/cuda_library.h"

namespace wsync::publish {
namespace {

// Work of a training step takes seconds; what takes longer hangs.
constexpr std::chrono::seconds kForeignWorkLimit{60};

std::span<std::byte> writable(std::span<const std::byte> range) {
  // A device borrows memory for writing. Nothing here writes it.
  return {const_cast<std::byte*>(range.data()), range.size()};
}

}  // namespace

TrainerGpus::~TrainerGpus() {
  // Mappings of arenas may outlive the devices.
  for (const auto& [at, pinned] : pinned_) pinned.memory->end();
}

Result<TrainerGpus::Gpu*> TrainerGpus::open(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  auto& gpu = gpus_[number];
  if (gpu && gpu->failed) return fail(*gpu->failed);
  if (gpu) return gpu.get();
  auto device = device::make_device({.kind = DeviceKind::kCuda, .gpu = number});
  if (!device) {
    gpus_.erase(number);
    return fail(device.error());
  }
  gpu = std::make_unique<Gpu>();
  gpu->device = std::move(*device);
  return gpu.get();
}

Result<DeviceBytes> TrainerGpus::bytes(std::uint32_t gpu, std::span<const std::byte> range,
                                       std::uintptr_t stream) {
  DeviceBytes bytes{
      .gpus = shared_from_this(), .gpu = gpu, .range = range, .memory = nullptr, .stream = stream};
  (void)WSYNC_TRY(open(gpu));
  if (!range.empty()) bytes.memory = WSYNC_TRY(memory(bytes));
  return bytes;
}

Result<std::shared_ptr<device::Memory>> TrainerGpus::memory(const DeviceBytes& bytes) {
  Gpu* gpu = WSYNC_TRY(open(bytes.gpu));
  auto memory = WSYNC_TRY(gpu->device->borrow(writable(bytes.range)));
  return std::shared_ptr<device::Memory>(std::move(memory));
}

Result<TrainerGpus::Streams> TrainerGpus::take_streams(std::uint32_t number) {
  Gpu* gpu = WSYNC_TRY(open(number));
  {
    const std::lock_guard lock(mutex_);
    if (!gpu->idle.empty()) {
      Streams streams = std::move(gpu->idle.back());
      gpu->idle.pop_back();
      return streams;
    }
  }
  Streams streams;
  for (Lane& lane : streams)
    lane.stream = WSYNC_TRY(gpu->device->create_stream(device::StreamRole::kDeviceToHost));
  return streams;
}

void TrainerGpus::give_back(std::uint32_t number, Streams streams) {
  const std::lock_guard lock(mutex_);
  gpus_[number]->idle.push_back(std::move(streams));
}

bool TrainerGpus::is_usable(std::uint32_t number, const std::optional<Error>& failure) {
  const auto gpu = open(number);
  if (!gpu) return false;
  const auto stream = (*gpu)->device->create_stream(device::StreamRole::kDeviceToHost);
  if (stream) return true;
  const Error& why = failure ? *failure : stream.error();
  const std::lock_guard lock(mutex_);
  (*gpu)->failed = Error(why.code(), fmt::format("{} has failed, and cannot be used before this "
                                                 "process is restarted: {}",
                                                 (*gpu)->device->name(), why.message()));
  return false;
}

Result<> TrainerGpus::await_stream(const DeviceBytes& bytes) {
  if (bytes.stream == 0) return {};
  Gpu* gpu = WSYNC_TRY(open(bytes.gpu));
  return gpu->device->await_stream(bytes.stream, now() + kForeignWorkLimit);
}

std::optional<std::uint32_t> TrainerGpus::numa_node(std::uint32_t number) {
  if (!has_numa_nodes()) return std::nullopt;
  const auto gpu = open(number);
  if (!gpu) return std::nullopt;  // its copies fail with the reason
  {
    const std::lock_guard lock(mutex_);
    if ((*gpu)->numa_node) return *(*gpu)->numa_node;
  }
  const auto cuda = device::cuda_backend();
  const auto facts = cuda ? (*cuda)->facts() : Result<device::CudaFacts>(fail(cuda.error()));
  std::optional<std::uint32_t> node;
  if (facts) node = device::common_numa_node(facts->gpus, {(*gpu)->device->uuid()});
  const std::lock_guard lock(mutex_);
  (*gpu)->numa_node = node;
  return node;
}

bool TrainerGpus::has_tried_to_pin(const MappedRegion& region, std::uint32_t gpu) const {
  const std::lock_guard lock(pinning_);
  const auto found = pinned_.find(region.bytes().data());
  return found != pinned_.end() && !found->second.memory->ended() &&
         found->second.gpus.contains(gpu);
}

void TrainerGpus::pin(const MappedRegion& region, std::uint32_t number) {
  const auto gpu = open(number);
  if (!gpu) return;  // its copies fail with the reason
  const std::lock_guard lock(pinning_);
  std::erase_if(pinned_, [](const auto& entry) { return entry.second.memory->ended(); });
  auto& pinned = pinned_[region.bytes().data()];
  if (!pinned.memory) {
    pinned.memory = std::make_shared<device::RegisteredMemory>();
    region.accompany(device::end_of_mapping(pinned.memory));
  }
  if (!pinned.gpus.insert(number).second) return;
  const TimePoint begun = now();
  const auto why = pinned.memory->register_with(*(*gpu)->device, region.bytes());
  if (!why) return say_once(*(*gpu)->device, why.error().message());
  if (!why->empty()) return say_once(*(*gpu)->device, *why);
  log_debug("{} MiB of an arena are pinned for {} in {:.3f} s",
            region.bytes().size() / limits::kMiB, (*gpu)->device->name(), seconds(now() - begun));
}

void TrainerGpus::say_once(const device::Device& device, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_said_, true)) return;
  }
  log_warning(
      "the memory into which weights of {} are copied cannot be pinned ({}): a publish copies all "
      "the same, but takes longer",
      device.name(), why);
}

Result<> TrainerGpus::prepare_to_convert(std::uint32_t number, Lane& lane, std::uint64_t bytes) {
  if (lane.converted && lane.converted->bytes() >= bytes) return {};
  Gpu* gpu = WSYNC_TRY(open(number));
  lane.converted.reset();
  lane.converted = WSYNC_TRY(gpu->device->allocate(bytes));
  return {};
}

}  // namespace wsync::publish
