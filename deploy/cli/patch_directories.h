// Makes and applies patches (shared/weights/patch) of checkpoint directories.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/patch/patch_file.h"

namespace wsync::cli {

// Called now and then with what is being done and how far it is. An error, such as kCancelled, ends
// the work with it.
using OnPatchProgress = std::function<Result<>(std::string_view what, std::uint64_t done_bytes,
                                               std::uint64_t total_bytes)>;

// kInvalidInput, with the first tensor that differs, unless both have the same tensors. The names
// are those of the two in the sentence.
[[nodiscard]] Result<> check_same_layout(const Manifest& first, std::string_view first_name,
                                         const Manifest& second, std::string_view second_name);

struct MadePatch {
  patch::Patch patch;
  Digest base;
  Digest target;
};

// Makes the patch from `base` to `target`. It is held in memory. Errors as check_same_layout(), of
// reading, and of `on_progress`.
[[nodiscard]] Result<MadePatch> make_directory_patch(const CheckpointDirectory& base,
                                                     const CheckpointDirectory& target,
                                                     std::uint64_t bucket_bytes,
                                                     const OnPatchProgress& on_progress);

// Writes the target of the patch to the new directory `path`, with the small files beside the
// weights of `base`. The base is read twice: its digest is compared with the patch's before
// anything is written. The digest of what was written is compared with the target's before the
// directory appears. kInvalidInput for another layout and if `path` exists and is not empty;
// kDigestMismatch, with both digests, for another base; kResourceExhausted on a full disk; errors
// of `on_progress`. After an error nothing remains.
[[nodiscard]] Result<> apply_directory_patch(const patch::PatchFile& file,
                                             const CheckpointDirectory& base,
                                             const std::string& path,
                                             const OnPatchProgress& on_progress);

}  // namespace wsync::cli
