// The sidecar's weight pipeline on separate host devices, with engines that are threads of this
// process: whole updates, and each stage alone.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/pipeline/paced_device.h"
#include "inference_side/reload/stage_choice.h"
#include "shared/base/error.h"

namespace wsync::bench {

// How long something took, and how much of the cores' time this process used for it.
struct Taken {
  double wall_s = 0;
  double cpu_s = 0;
};

struct HostPipelineOptions {
  std::uint32_t devices = 2;
  std::uint64_t bytes = 256ULL << 20U;       // of the model
  std::uint64_t buffer_bytes = 4ULL << 20U;  // of each of the three buffers of a device
  LinkRates rates;
};

inline constexpr std::uint64_t kHandOverBytes = 64;

// A model of noise in shared memory, devices with their buffers, and an engine for each that copies
// every bucket into memory of its own, with the checksum that engines take. Thread: one.
class HostPipeline {
 public:
  // kInvalidInput for no device, too many, or a buffer of less than
  // kHandOverBytes or larger than the model;
  // kResourceExhausted, saying how much is needed, where the memory is not there.
  [[nodiscard]] static Result<std::unique_ptr<HostPipeline>> create(
      const HostPipelineOptions& options);
  HostPipeline(const HostPipeline&) = delete;
  HostPipeline& operator=(const HostPipeline&) = delete;
  ~HostPipeline();

  [[nodiscard]] std::uint64_t buckets() const noexcept;

  // All buckets through one stage, the others at rest. H2D: all devices at once. Broadcasts: one
  // after the other, each awaited on all devices. Reload: all engines at once. What engines copy in
  // reload() is what broadcasts left in the buffers, so it is not checked.
  [[nodiscard]] Result<Taken> h2d();
  [[nodiscard]] Result<Taken> broadcasts();
  [[nodiscard]] Result<Taken> reloads();
  // The three at once, each on buffers of its own and none waiting for another: what they take from
  // each other. The time ends with the last of them.
  [[nodiscard]] Result<Taken> together();
  // A whole update in this form (two or three stages), by PipelineRunner. kDigestMismatch when an
  // engine's checksum of a bucket, or in the end a byte of its memory, is not the model's.
  [[nodiscard]] Result<Taken> update(Stages stages);
  // The same in two stages with buckets of kHandOverBytes, as many: what is left is the time in
  // which a bucket goes from thread to thread. Nothing is compared but the checksums.
  [[nodiscard]] Result<Taken> hand_overs();
  // Bytes that engines held and were compared in all updates so far.
  [[nodiscard]] std::uint64_t checked_bytes() const noexcept;

 private:
  struct Parts;
  explicit HostPipeline(std::unique_ptr<Parts> parts);
  [[nodiscard]] Result<Taken> run(Stages stages, std::uint64_t max);
  std::unique_ptr<Parts> parts_;
};

}  // namespace wsync::bench
