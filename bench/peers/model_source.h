// The model that peers carry, as files that a trainer of any language can read into its memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::bench {

inline constexpr std::uint64_t kSourceAlignment = 64;  // of each tensor's offset

struct SourceTensor {
  TensorInfo info;
  std::uint64_t offset = 0;  // in a model's file
  std::uint64_t bytes = 0;
};

// Several models of one layout. The digest of one is XXH3-128 of its tensors' bytes in the list's
// order, one after the other, without what lies between them.
struct ModelSource {
  std::vector<SourceTensor> tensors;  // in manifest order, offsets ascend
  std::uint64_t size = 0;             // of a model's file
  std::uint64_t bytes = 0;            // of all tensors of a model
  std::string list;  // {"size", "tensors": [{"name", "dtype", "shape", "offset", "bytes"}]}
  std::vector<std::string> models;  // files, all with the tensors at the same offsets
  std::vector<Digest> digests;      // of each model
};

// Writes them into `directory` from checkpoint directories. kInvalidInput when these differ in
// layout or a tensor is empty; errors as CheckpointDirectory::open() and of files.
[[nodiscard]] Result<ModelSource> make_source(const std::string& directory,
                                              const std::vector<std::string>& checkpoints);

// All of a file of `size` bytes. kInvalidInput when it is shorter.
[[nodiscard]] Result<> read_source(const std::string& path, std::span<std::byte> into);
// The digest of a model that lies at `memory`, laid out as the file.
[[nodiscard]] Digest source_digest(const ModelSource& source, std::span<const std::byte> memory);

}  // namespace wsync::bench
