// HeldPatch: what leads from one held version to another one, in memory that engines on this host
// map. It is made by comparing both, block by block (shared/weights/patch), and every byte of both
// is summed meanwhile and compared with its version, unless that has been done before. A target
// that has come as changes from the base is not compared again: its bytes were proven then. Nor is
// one with which its trainer has sent the patch: the sums of both versions prove that it has all
// that differs (shared/weights/patch/sum_link.h). Neither is one with the content of the base. So a
// rank that holds the base, and whose touched words have the sums of the patch afterwards, holds
// the target.
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>

#include "inference_side/staging/held_version.h"
#include "inference_side/staging/received_changes.h"
#include "shared/base/error.h"
#include "shared/base/sealed_memory.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/patch/patch.h"
#include "shared/weights/patch/worth.h"

namespace wsync::staging {

struct PatchLimits {
  // A patch that is larger is not made. Of all its bytes.
  std::uint64_t max_bytes = 0;
  unsigned threads = 1;
  std::uint64_t value_cost = patch::kHostValueCost;  // for the ranks that get the patch
  std::stop_token stop = {};
};

class HeldPatch {
 public:
  // Both versions have the same layout. Blocks. kRefused, as soon as it is clear, if the patch
  // would be larger than the limit, or would save a rank too little of the time for all bytes:
  // some blocks from all over the model are compared first. kCancelled soon after `stop` is
  // requested. kDigestMismatch if the bytes of a version are not its own, or the patch that has
  // come does not have all that differs; kInvalidInput if that breaks a rule of its format;
  // kResourceExhausted. `changes` (may be null): by which the target has come. See is_known().
  [[nodiscard]] static Result<std::shared_ptr<const HeldPatch>> make(
      std::shared_ptr<const HeldVersion> base, std::shared_ptr<const HeldVersion> target,
      const PatchLimits& limits, const ReceivedChanges* changes = nullptr);

  // The patch from the target of `forward` back to its base. It changes the same elements, and
  // takes their values from `base`, which is the base of `forward` with its bytes. It is as large.
  // Blocks. kDigestMismatch if words that it changes are not those of the base; kRefused if it is
  // larger than limits.max_bytes; kCancelled and kResourceExhausted as make().
  [[nodiscard]] static Result<std::shared_ptr<const HeldPatch>> make_back(
      const HeldPatch& forward, const HeldVersion& base, const PatchLimits& limits);

  // Whether make() compares nothing: both have the same content, or the target has come as changes
  // from the base, or with a patch.
  [[nodiscard]] static bool is_known(const HeldVersion& base, const HeldVersion& target,
                                     const ReceivedChanges* changes);

  [[nodiscard]] const HeldVersion& base() const noexcept { return *base_; }
  [[nodiscard]] const HeldVersion& target() const noexcept { return *target_; }
  [[nodiscard]] const patch::Layout& layout() const noexcept { return layout_; }
  // Index and blocks, read as an engine reads them.
  [[nodiscard]] const patch::PatchReader& reader() const noexcept { return *reader_; }
  // Size of its memory.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return memory_->bytes().size(); }
  // A new read-only descriptor, for an engine.
  [[nodiscard]] Result<UniqueFd> share() const { return memory_->share(); }
  // The bytes of a tensor in one of the two versions.
  [[nodiscard]] static std::span<const std::byte> tensor_bytes(const HeldVersion& version,
                                                               std::uint32_t tensor);

 private:
  HeldPatch(std::shared_ptr<const HeldVersion> base, std::shared_ptr<const HeldVersion> target,
            std::shared_ptr<const SealedMemory> memory);
  // Writes the blocks of the builder into memory that engines can map.
  [[nodiscard]] static Result<std::shared_ptr<const HeldPatch>> share(
      std::shared_ptr<const HeldVersion> base, std::shared_ptr<const HeldVersion> target,
      patch::PatchBuilder& builder, const PatchLimits& limits);
  // Whether the memory, which its trainer has filled, is a patch between both that is worth it.
  [[nodiscard]] Result<> judge(const PatchLimits& limits) const;
  [[nodiscard]] Result<> read(unsigned threads);
  std::shared_ptr<const HeldVersion> base_;
  std::shared_ptr<const HeldVersion> target_;
  patch::Layout layout_;
  std::shared_ptr<const SealedMemory> memory_;
  std::optional<patch::PatchReader> reader_;  // of memory_
};

}  // namespace wsync::staging
