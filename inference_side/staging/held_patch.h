// HeldPatch: what leads from one held version to another one, in memory that engines on this host
// map. It is made by comparing both, block by block (shared/weights/patch), and every byte of both
// is summed meanwhile and compared with its version, unless that has been done before. A target
// that has come as changes from the base is not compared again: its bytes were proven then. Neither
// is one with the content of the base. So a rank that holds the base, and whose touched words have
// the sums of the patch afterwards, holds the target.
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>

#include "inference_side/staging/received_changes.h"
#include "inference_side/staging/store.h"
#include "shared/base/error.h"
#include "shared/base/sealed_memory.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/patch/patch.h"

namespace wsync::staging {

// What it costs in the pause to write one value that changes alone, in bytes that a load of
// everything copies in the same time. In host memory it is written alone, and its word is read and
// summed twice: with 0.25 and 0.5 % of BF16 values, 0.43 and 0.85 of the pause of a load of
// everything were measured, which is 340 bytes a value.
inline constexpr std::uint64_t kHostValueCost = 340;
// On a GPU the host only reads the patch and makes words of it, several threads at once, and a load
// of everything is limited by the bus. This is an estimate: it was not measured on a GPU.
inline constexpr std::uint64_t kGpuValueCost = 100;
// A patch that has a larger share of the model's bytes is never made: it would save too little.
inline constexpr double kPatchShareMax = 0.07;

struct PatchLimits {
  // A patch that is larger is not made. Of all its bytes.
  std::uint64_t max_bytes = 0;
  unsigned threads = 1;
  std::uint64_t value_cost = kHostValueCost;  // for the ranks that get the patch
  std::stop_token stop = {};
};

class HeldPatch {
 public:
  // Both versions have the same layout. Blocks. kRefused, as soon as it is clear, if the patch
  // would be larger than the limit, or would save a rank too little of the time for all bytes:
  // some blocks from all over the model are compared first. kCancelled soon after `stop` is
  // requested. kDigestMismatch if the bytes of a version are not its own; kResourceExhausted.
  // `changes` (may be null): by which the target has come. See is_known().
  [[nodiscard]] static Result<std::shared_ptr<const HeldPatch>> make(
      std::shared_ptr<const HeldVersion> base, std::shared_ptr<const HeldVersion> target,
      const PatchLimits& limits, const ReceivedChanges* changes = nullptr);

  // Whether make() compares nothing: both have the same content, or the target has come as changes
  // from the base.
  [[nodiscard]] static bool is_known(const HeldVersion& base, const HeldVersion& target,
                                     const ReceivedChanges* changes);

  [[nodiscard]] const HeldVersion& base() const noexcept { return *base_; }
  [[nodiscard]] const HeldVersion& target() const noexcept { return *target_; }
  [[nodiscard]] const patch::Layout& layout() const noexcept { return layout_; }
  // Index and blocks, read as an engine reads them.
  [[nodiscard]] const patch::PatchReader& reader() const noexcept { return *reader_; }
  // Size of its memory.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return memory_.bytes().size(); }
  // A new read-only descriptor, for an engine.
  [[nodiscard]] Result<UniqueFd> share() const { return memory_.share(); }
  // The bytes of a tensor in one of the two versions.
  [[nodiscard]] static std::span<const std::byte> tensor_bytes(const HeldVersion& version,
                                                               std::uint32_t tensor);

 private:
  HeldPatch(std::shared_ptr<const HeldVersion> base, std::shared_ptr<const HeldVersion> target,
            SealedMemory memory);
  [[nodiscard]] Result<> read();
  std::shared_ptr<const HeldVersion> base_;
  std::shared_ptr<const HeldVersion> target_;
  patch::Layout layout_;
  SealedMemory memory_;
  std::optional<patch::PatchReader> reader_;  // of memory_
};

}  // namespace wsync::staging
