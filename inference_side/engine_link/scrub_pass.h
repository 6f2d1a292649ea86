// ScrubPass: one reading of all weights of a rank, a block after the other, and the sums of what it
// has read. The rank serves meanwhile, and may be switched by patches in between: the sums of the
// blocks that were read already then change by what the patch has changed in them, so that the pass
// goes on, and its sums are those of the version that the rank serves now. That is no weaker than
// reading again: both sums of the touched words are compared with the patch before it is committed.
//
// Where the library cannot reach the weights, the engine returns their bytes, and they are added.
//
// Pure, but for the memory that it reads. Thread: confined to one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "inference_side/reload/shard.h"
#include "shared/base/clock.h"
#include "shared/base/split_sum.h"
#include "shared/control/messages.h"
#include "shared/weights/version.h"

namespace wsync::engine {

class ScrubPass {
 public:
  // The rank's part of a tensor: its bytes in row-major order, as they are in the version.
  struct Tensor {
    std::uint64_t seed = 0;
    reload::Shard shard;
    // shard.bytes() long; borrowed. Empty where the bytes are given to add().
    std::span<const std::byte> memory;
  };
  // The rank serves `version`. Nothing is read yet. `number`: the sidecar's.
  ScrubPass(std::uint64_t number, const Version& version, std::vector<Tensor> tensors,
            TimePoint begin);

  // Reads the part of the next block of a tensor, at most patch::kBlockBytes. Does nothing if the
  // pass is complete.
  void read_block();
  // What is read next: these bytes of the rank's part of a tensor, at most patch::kBlockBytes. Not
  // for a pass that is complete.
  struct Next {
    std::uint32_t tensor = 0;  // index into the tensors of the pass
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] Next next() const;
  // These are the bytes that next() has named.
  void add(std::span<const std::byte> bytes);
  // Whether every byte was read.
  [[nodiscard]] bool complete() const noexcept { return tensor_ == tensors_.size(); }

  // How many blocks of each tensor were read, counted from the tensor's first byte.
  [[nodiscard]] std::vector<std::uint64_t> read_blocks() const;
  // A patch was written, and has changed the sums of these blocks of each tensor: what they were,
  // and what they are. If two rows of a part lie in one word of the tensor, the sums of a patch,
  // which has each word once, cannot be added to those of the rows: then the pass begins anew.
  void change(std::span<const SplitSum> before, std::span<const SplitSum> after, TimePoint now);
  // The rank serves this version from now on, and nothing but what change() was told has changed.
  void set_version(const Version& version) { version_ = version; }

  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] const Version& version() const noexcept { return version_; }
  [[nodiscard]] TimePoint begin() const noexcept { return begin_; }
  // Of each tensor, of what was read so far.
  [[nodiscard]] const std::vector<SplitSum>& sums() const noexcept { return sums_; }

 private:
  void skip_empty();

  std::uint64_t number_;
  Version version_;
  std::vector<Tensor> tensors_;
  TimePoint begin_;
  std::vector<SplitSum> sums_;
  bool adds_patches_ = true;  // no word has bytes of two rows
  std::size_t tensor_ = 0;    // that is read now
  std::uint64_t block_ = 0;   // of it, that is read next
};

// What a pass that is complete returns to the sidecar, after `cpu` of processor time.
[[nodiscard]] control::Scrubbed scrubbed_by(const ScrubPass& pass, std::chrono::nanoseconds cpu,
                                            TimePoint now);

// The sum of the bytes of a part from its byte `at` on, at their positions in the whole tensor.
[[nodiscard]] SplitSum sum_of_part(const reload::Shard& shard, std::uint64_t seed,
                                   std::span<const std::byte> bytes, std::uint64_t at);

}  // namespace wsync::engine
