// The sidecar's weight pipeline on separate host devices, with engines that are threads of this
// process. Measures whole updates and each stage alone.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/pipeline/paced_device.h"
#include "inference_side/reload/stage_choice.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Duration of an operation, and the processor time that this process used for it.
struct Taken {
  double wall_s = 0;
  double cpu_s = 0;
};

struct HostPipelineOptions {
  std::uint32_t devices = 2;
  std::uint64_t bytes = 256ULL << 20U;       // bytes of the model
  std::uint64_t buffer_bytes = 4ULL << 20U;  // bytes of each buffer of a device
  LinkRates rates;
};

inline constexpr std::uint64_t kHandOverBytes = 64;

// A model of random bytes in shared memory, devices with their buffers, and one engine per device.
// Each engine copies every bucket into its own memory and computes the checksum that engines use.
// Thread: one.
class HostPipeline {
 public:
  // kInvalidInput if there is no device or there are too many, or if a buffer is smaller than
  // kHandOverBytes or larger than the model. kResourceExhausted, with the needed amount, if there
  // is too little memory.
  [[nodiscard]] static Result<std::unique_ptr<HostPipeline>> create(
      const HostPipelineOptions& options);
  HostPipeline(const HostPipeline&) = delete;
  HostPipeline& operator=(const HostPipeline&) = delete;
  ~HostPipeline();

  [[nodiscard]] std::uint64_t buckets() const noexcept;

  // Each function moves all buckets through one stage while the other stages are idle. H2D: all
  // devices at the same time. Broadcasts: one after the other, each until all devices have
  // finished. Reload: all engines at the same time. Reload copies what broadcasts left in the
  // buffers, so its bytes are not checked.
  [[nodiscard]] Result<Taken> h2d();
  [[nodiscard]] Result<Taken> broadcasts();
  [[nodiscard]] Result<Taken> reloads();
  // Runs the three stages at the same time, each on its own buffers and without waiting for the
  // others. Measures how much they slow each other down. The time ends with the last stage.
  [[nodiscard]] Result<Taken> together();
  // Runs a whole update with two or three stages by PipelineRunner. kDigestMismatch if an engine's
  // checksum of a bucket, or at the end a byte of its memory, differs from the model's.
  [[nodiscard]] Result<Taken> update(Stages stages);
  // Runs an update with two stages and as many buckets of only kHandOverBytes each. Almost all of
  // its time is the time to pass buckets from thread to thread. Only the checksums are compared.
  [[nodiscard]] Result<Taken> hand_overs();
  // Bytes in engines' memory that were compared in all updates so far.
  [[nodiscard]] std::uint64_t checked_bytes() const noexcept;

 private:
  struct Parts;
  explicit HostPipeline(std::unique_ptr<Parts> parts);
  [[nodiscard]] Result<Taken> run(Stages stages, std::uint64_t max);
  std::unique_ptr<Parts> parts_;
};

}  // namespace wsync::bench
