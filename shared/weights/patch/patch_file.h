// A patch in a file, with the manifest of its weights, so that it explains itself (README.md).
//
// open() and write_patch_file() read and write files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/weights/manifest.h"
#include "shared/weights/patch/patch.h"

namespace wsync::patch {

// The patch of a file, checked as a whole and held in memory. Immutable; may be read from any
// thread.
class PatchFile {
 public:
  // Reads all of the file. Errors name it: kNotFound, kIo, and those of parse().
  [[nodiscard]] static Result<PatchFile> open(const std::string& path);
  // Reads the bytes of a file. kInvalidInput if they are no patch, have another version, break a
  // rule, or are fewer or more than they say; kDigestMismatch, with the part, if it is damaged.
  [[nodiscard]] static Result<PatchFile> parse(Bytes bytes);

  [[nodiscard]] const Manifest& manifest() const noexcept { return parts_->manifest; }
  [[nodiscard]] const Layout& layout() const noexcept { return parts_->layout; }
  [[nodiscard]] const PatchReader& patch() const noexcept { return *parts_->patch; }
  // Size of the file.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return parts_->bytes.size(); }

 private:
  // In one place, because the later ones refer to the earlier ones.
  struct Parts {
    Parts(Bytes all, Manifest of)
        : bytes(std::move(all)), manifest(std::move(of)), layout(manifest) {}
    Bytes bytes;
    Manifest manifest;
    Layout layout;
    std::optional<PatchReader> patch;
  };
  explicit PatchFile(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
  std::unique_ptr<Parts> parts_;
};

// The bytes of a file with this patch of the manifest, without those of its buckets, which follow.
[[nodiscard]] Bytes patch_file_head(const Manifest& manifest, const Patch& patch);

// Writes a patch of the manifest to a temporary file beside `path`, which is synced and renamed
// when it is complete. Returns the size of the file. After an error (kResourceExhausted on a full
// disk) nothing remains. `stopped`, if given, is asked before each bucket; true ends the call with
// kCancelled.
[[nodiscard]] Result<std::uint64_t> write_patch_file(const std::string& path,
                                                     const Manifest& manifest, const Patch& patch,
                                                     const std::function<bool()>& stopped = {});

}  // namespace wsync::patch
