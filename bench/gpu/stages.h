// The stages of the weight pipeline, each alone, as the baseline of whole updates.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bench/gpu/reader.h"
#include "shared/base/error.h"
#include "shared/broadcast/communicator.h"
#include "shared/device/device.h"

namespace wsync::bench {

// A version in host memory, split into buckets.
struct Buckets {
  std::span<const std::byte> bytes;
  std::uint64_t bucket_bytes = 0;

  [[nodiscard]] std::uint64_t count() const noexcept {
    return (bytes.size() + bucket_bytes - 1) / bucket_bytes;
  }
  [[nodiscard]] std::span<const std::byte> at(std::uint64_t bucket) const {
    return bytes.subspan(bucket * bucket_bytes,
                         std::min(bucket_bytes, bytes.size() - bucket * bucket_bytes));
  }
};

// Devices of one group with an H2D buffer and two IPC buffers each. Every function moves all
// buckets through one stage and returns the time. Thread: one.
class LoneStages {
 public:
  // Creates one device per entry of `gpus`. `collective`: as in PipelineCaseOptions.
  // kResourceExhausted if the buffers do not fit.
  [[nodiscard]] static Result<std::unique_ptr<LoneStages>> create(
      const std::vector<std::uint32_t>& gpus, std::uint64_t buffer_bytes,
      std::optional<collective::GroupKind> collective);
  LoneStages(const LoneStages&) = delete;
  LoneStages& operator=(const LoneStages&) = delete;
  ~LoneStages();

  [[nodiscard]] device::Device& device(std::size_t index) { return *members_[index].device; }
  // Copies bucket b into device b % N, with all devices at the same time.
  [[nodiscard]] Result<std::chrono::nanoseconds> copies_in(const Buckets& buckets);
  // Runs one broadcast after the other, with the devices as sources in turn. Each device then
  // publishes what it received, as in an update.
  [[nodiscard]] Result<std::chrono::nanoseconds> broadcasts(const Buckets& buckets);

 private:
  // Destroys the streams before the objects that their work uses.
  struct Member {
    std::unique_ptr<device::Device> device;
    std::unique_ptr<device::Memory> h2d;
    std::unique_ptr<device::Memory> ipc[2];
    std::unique_ptr<device::Event> event;
    std::unique_ptr<collective::Communicator> communicator;
    std::unique_ptr<device::Stream> h2d_stream;
    std::unique_ptr<device::Stream> broadcast_stream;
  };
  LoneStages() = default;
  [[nodiscard]] static Result<Member> make_member(std::uint32_t gpu, std::uint32_t index,
                                                  std::uint64_t buffer_bytes);
  [[nodiscard]] Result<> broadcast(std::uint64_t bucket, std::uint64_t bytes, TimePoint deadline);
  std::vector<Member> members_;
};

// Reloads all buckets from mappings 0 and 1, in every reader at once. Each reader wraps around in
// its own memory.
[[nodiscard]] Result<std::chrono::nanoseconds> reloads(std::span<Reader> readers,
                                                       const Buckets& buckets);
// Returns where a reader puts a bucket.
[[nodiscard]] std::uint64_t reload_offset(std::uint64_t bucket, std::uint64_t bucket_bytes,
                                          std::uint64_t reader_bytes);

}  // namespace wsync::bench
