// PatchLoad: the patch of a load. It writes it into the memory of a rank that takes pieces, or says
// which layers it changes. In host memory, blocks are
// written by several threads, each block by one of them. On a GPU, these threads make the words of
// the blocks, and the GPU writes them (device_patch.h).
//
// Thread: confined to one thread, but for the threads of its pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inference_side/engine_link/device_weights.h"
#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/patched_sums.h"
#include "inference_side/engine_link/prepared_version.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/base/word_sum.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/patch/patch.h"
#include "shared/weights/patch/tensor_part.h"

namespace wsync::engine {

class PatchLoad {
 public:
  // Maps the patch of `bytes` in the memory of `fd` (borrowed for the call) and checks all of it,
  // with the threads of `helpers` too, which may be null. Nothing is written yet. kRefused if the
  // memory is not sealed; errors as patch::read_mapped().
  [[nodiscard]] static Result<std::unique_ptr<PatchLoad>> open(int fd, std::uint64_t bytes,
                                                               const PreparedVersion& prepared,
                                                               ThreadPool* helpers);
  // Whether this is the memory of that descriptor, which is borrowed for the call.
  [[nodiscard]] bool is_of(int fd) const noexcept;
  // Host memory of a rank that holds the base of the patch: sums what the patch replaces as a whole
  // (dense blocks that lie in one piece). Nothing may write to this memory before apply(), which
  // then does not read it again. kInvalidInput if the description does not fit.
  [[nodiscard]] Result<> sum_ahead(const EngineDescription& description, ThreadPool* helpers);
  // Whether the patch changes something in a layer of the rank: in its tensors as a whole, whatever
  // part of them the rank takes.
  [[nodiscard]] bool changes_layer(std::size_t layer) const;
  // Host memory: writes what lies in the rank's parts. kDeadline if the deadline passes; then some
  // blocks are written and others are not. No thread writes any more when it returns. Call it once.
  // `read`: so many blocks of each tensor, counted from its first byte, were read by a scrub that
  // goes on; empty: there is none.
  [[nodiscard]] Result<PatchedSums> apply(const EngineDescription& description, ThreadPool* helpers,
                                          TimePoint deadline,
                                          std::span<const std::uint64_t> read = {});
  // The same for a rank whose weights are on a GPU; errors as DeviceWeights::patch().
  [[nodiscard]] Result<PatchedSums> apply(DeviceWeights& weights,
                                          const EngineDescription& description, ThreadPool* helpers,
                                          TimePoint deadline);

 private:
  // What the rank holds, and the blocks that lie in it.
  struct Targets {
    std::vector<patch::TensorPart> parts;                   // of each of the rank's tensors
    std::vector<std::span<const patch::BlockView>> blocks;  // likewise
  };
  // The blocks of one tensor that one thread reads or writes, one after the other.
  struct BlockRun {
    std::uint32_t tensor = 0;  // of the rank
    std::uint64_t first = 0;   // of the tensor's blocks
    std::uint64_t count = 0;
  };
  PatchLoad(std::shared_ptr<const EngineLayout> layout, MappedRegion memory);
  [[nodiscard]] static std::vector<BlockRun> runs_of(const Targets& targets);
  [[nodiscard]] Result<Targets> targets(const EngineDescription& description) const;
  std::shared_ptr<const EngineLayout> engine_layout_;
  MappedRegion memory_;
  patch::Layout layout_;
  std::unique_ptr<const patch::PatchReader> reader_;  // of memory_
  std::uint64_t device_ = 0;  // of the file that memory_ maps, with its inode
  std::uint64_t inode_ = 0;
  // By sum_ahead(): of each of the rank's tensors, a sum for each block, which is only right for
  // those that are replaced as a whole.
  std::optional<Targets> targets_;
  std::vector<std::vector<WordSum>> replaced_;
};

}  // namespace wsync::engine
