// TrainerGpus: the GPUs that hold weights of a trainer. It opens a GPU when weights on it are first
// described, keeps the streams that copy and convert weights of it, and registers (pins) the arenas
// into which they copy.
//
// A GPU is never closed before the trainer ends. A fault of a GPU is permanent: every later copy
// from it fails with the fault.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/device/device.h"
#include "shared/device/registered_memory.h"

namespace wsync::publish {

class TrainerGpus;

// Bytes in the memory of a GPU, dense and row-major.
struct DeviceBytes {
  std::shared_ptr<TrainerGpus> gpus;
  std::uint32_t gpu = 0;                   // number of the GPU among those that this process sees
  std::span<const std::byte> range;        // addresses of the GPU, which no code here reads
  std::shared_ptr<device::Memory> memory;  // the range when it was given; null: it is empty
  std::uintptr_t stream = 0;  // its submitted work comes first (Device::await_stream); 0: none
};

// Thread: any.
class TrainerGpus : public std::enable_shared_from_this<TrainerGpus> {
 public:
  // A stream, and memory of the GPU in which its work puts weights that it has converted.
  struct Lane {
    std::unique_ptr<device::Memory> converted;  // null: nothing was converted yet
    std::unique_ptr<device::Stream> stream;     // ends before the memory that it uses
  };
  // One copies, one has its copy submitted, and one learns that its copy is complete.
  using Streams = std::array<Lane, 3>;

  TrainerGpus() = default;
  TrainerGpus(const TrainerGpus&) = delete;
  TrainerGpus& operator=(const TrainerGpus&) = delete;
  // Unregisters all memory. No copy may run.
  ~TrainerGpus();

  // Opens the GPU and checks that the range is memory of it, inside one allocation. `range` may be
  // empty. kInvalidInput, with the address, if it is not; errors of make_device() for the GPU.
  [[nodiscard]] Result<DeviceBytes> bytes(std::uint32_t gpu, std::span<const std::byte> range,
                                          std::uintptr_t stream);
  // The range as it is now. Errors as bytes(), if the memory has been freed since.
  [[nodiscard]] Result<std::shared_ptr<device::Memory>> memory(const DeviceBytes& bytes);
  // Streams of the GPU that nobody else uses. The GPU's failure, if it has failed before.
  [[nodiscard]] Result<Streams> take_streams(std::uint32_t gpu);
  // They are idle and have not failed.
  void give_back(std::uint32_t gpu, Streams streams);
  // Whether the GPU still does work, after `failure` of a copy. If not, it is not used any more.
  [[nodiscard]] bool is_usable(std::uint32_t gpu, const std::optional<Error>& failure);
  // Waits for the work of a stream of other code.
  [[nodiscard]] Result<> await_stream(const DeviceBytes& bytes);
  // The NUMA node of the GPU; none if the machine has one node, or does not report it.
  [[nodiscard]] std::optional<std::uint32_t> numa_node(std::uint32_t gpu);
  // Registers a mapping with the GPU until it is unmapped. The memory must be writable. If the
  // system does not allow it, says so once, and copies are slower.
  void pin(const MappedRegion& region, std::uint32_t gpu);
  [[nodiscard]] bool has_tried_to_pin(const MappedRegion& region, std::uint32_t gpu) const;
  // Gives the lane memory of at least `bytes` bytes, unless it has them. Its stream must be idle.
  // Errors of Device::allocate().
  [[nodiscard]] Result<> prepare_to_convert(std::uint32_t gpu, Lane& lane, std::uint64_t bytes);

 private:
  struct Gpu {
    std::unique_ptr<device::Device> device;
    // Under mutex_:
    std::vector<Streams> idle;
    std::optional<Error> failed;  // why nothing is copied from it any more
    std::optional<std::optional<std::uint32_t>> numa_node;  // what was found
  };
  struct Pinned {
    std::shared_ptr<device::RegisteredMemory> memory;
    std::set<std::uint32_t> gpus;  // that were asked
  };
  [[nodiscard]] Result<Gpu*> open(std::uint32_t number);
  void say_once(const device::Device& device, const std::string& why);

  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::unique_ptr<Gpu>> gpus_;  // under mutex_; entries are never removed
  bool has_said_ = false;                               // under mutex_
  mutable std::mutex pinning_;                          // may be held for long
  std::map<const std::byte*, Pinned> pinned_;           // under pinning_; by the first byte
};

}  // namespace wsync::publish
