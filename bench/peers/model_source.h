// The model that peers transfer, as files that a trainer in any language can read into its memory.
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

inline constexpr std::uint64_t kSourceAlignment = 64;  // alignment of each tensor's offset

struct SourceTensor {
  TensorInfo info;
  std::uint64_t offset = 0;  // offset in a model's file
  std::uint64_t bytes = 0;
};

// Several models of one layout. The digest of a model is XXH3-128 of its tensors' bytes in the
// order of the list, without the gaps between them.
struct ModelSource {
  std::vector<SourceTensor> tensors;  // in manifest order with ascending offsets
  std::uint64_t size = 0;             // bytes of a model's file
  std::uint64_t bytes = 0;            // bytes of all tensors of a model
  std::string list;  // {"size", "tensors": [{"name", "dtype", "shape", "offset", "bytes"}]}
  std::vector<std::string> models;  // files, all with the same tensor offsets
  std::vector<Digest> digests;      // one per model
};

// Writes the models of the checkpoint directories into `directory`. kInvalidInput if the layouts
// differ or a tensor is empty. Errors as CheckpointDirectory::open() and of files.
[[nodiscard]] Result<ModelSource> make_source(const std::string& directory,
                                              const std::vector<std::string>& checkpoints);

// Reads a file of `size` bytes. kInvalidInput if it is shorter.
[[nodiscard]] Result<> read_source(const std::string& path, std::span<std::byte> into);
// Returns the digest of a model at `memory`, which has the layout of the file.
[[nodiscard]] Digest source_digest(const ModelSource& source, std::span<const std::byte> memory);

}  // namespace wsync::bench
