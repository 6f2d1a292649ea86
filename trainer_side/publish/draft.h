// Draft: a version that a trainer writes where engines will read it, instead of having its weights
// copied. A trainer makes its weights for engines anyway: it casts float32 masters, gathers shards
// and fuses names. With a draft it does so straight into an arena.
//
// Each tensor is either put, in one or more parts that do not overlap, or written through a
// pointer. seal() checks that all tensors are complete. The draft is then a source for
// Snapshotter::take(), which only digests what was not summed while it was put.
//
// A part that consists of whole leaves is converted and summed in one pass over memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/thread_pool.h"
#include "shared/base/word_sum.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/manifest.h"
#include "trainer_side/publish/block_cast.h"
#include "trainer_side/publish/gathered_source.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::publish {

// What this rank writes of one tensor.
struct DraftTensor {
  TensorInfo info;                  // of the whole tensor
  std::optional<ShardRange> range;  // none: all of it
};

// The scale of an F8_E4M3 tensor: a stored value times its scale is the weight.
struct GivenScales {
  // One value for the whole part, or one for each block of kScaleBlock x kScaleBlock, row-major.
  std::span<const float> values;  // borrowed during the call
};
// Each block gets the scale largest magnitude / 448, or 1 if it has only zeros. The scales are put
// into the tensor scale_name(name): F32, [..., ceil(rows / 128), ceil(columns / 128)].
struct ComputedScales {};
using Scales = std::variant<std::monostate, GivenScales, ComputedScales>;

// Bytes that are put.
struct DraftPart {
  std::string_view name;
  DType dtype = DType::kBF16;         // of `data`
  std::vector<std::uint64_t> shape;   // of the whole tensor
  std::optional<ShardRange> range;    // of the whole tensor; none: all that this rank writes
  const std::byte* data = nullptr;    // dense and row-major; borrowed during the call
  std::optional<DeviceBytes> on_gpu;  // in place of `data`
  Scales scales;                      // only if the tensor is F8_E4M3 and `data` is not
};

// This class has more than 350 lines of methods, because each way to write a tensor claims its part
// of the same slots.
//
// Thread: any, concurrently. The snapshotter must outlive the draft.
class Draft : public std::enable_shared_from_this<Draft> {
 public:
  // Takes an arena for these tensors. Errors as Snapshotter::begin(), and kInvalidInput as
  // Manifest::create().
  [[nodiscard]] static Result<std::shared_ptr<Draft>> begin(
      std::shared_ptr<Snapshotter> snapshotter, std::vector<DraftTensor> tensors,
      const SnapshotRequest& request, unsigned threads);

  // Converts the part to the dtype of its tensor and writes it. Errors, all with the tensor's name:
  // kNotFound for a name that the draft does not have; kInvalidInput for another shape, a range
  // outside of what this rank writes, a dtype that cannot be converted, scales that do not fit, a
  // block without a finite scale, memory of a GPU that has been freed, or a tensor that is written
  // through its pointer; kRefused if a part of it was put already, or if the draft is sealed;
  // errors of the GPU. After an error nothing counts as put. After the failure of a GPU, which may
  // still write, the draft takes nothing more and cannot be sealed: kRefused.
  [[nodiscard]] Result<> put(const DraftPart& part);
  // The same for several parts without scales, with the threads for all of them together: many
  // small tensors take as long as one large one. After an error none of them counts as put, and
  // `failed` is the index of the part that the error is about.
  [[nodiscard]] Result<> put_all(std::span<const DraftPart> parts, std::size_t& failed);
  // kNotFound, or kInvalidInput unless the tensor has this dtype, both with its name.
  [[nodiscard]] Result<> check_dtype(std::string_view name, DType dtype) const;
  // Returns the memory of a tensor: what this rank writes of it, dense and row-major. The caller
  // writes all of it before seal(). May be called again. kNotFound; kRefused if a part of it was
  // put, or if the draft is sealed.
  [[nodiscard]] Result<std::span<std::byte>> pointer(std::string_view name);

  // Ends the writing. kRefused if tensors are not complete, with the first of them, or if a part is
  // being put; the draft is then as before.
  [[nodiscard]] Result<> seal();
  // The sealed draft as a source for Snapshotter::take(), with the same bucket_bytes. Its arena is
  // given to the snapshot, so there is one source of a draft. Keeps the draft alive.
  [[nodiscard]] std::unique_ptr<WeightSource> source();
  // The sealed draft as the part of this rank in a GatheredSource. The pointers are valid while the
  // draft lives and has no source().
  [[nodiscard]] std::vector<RankTensor> rank_tensors() const;

  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const noexcept {
    return manifest_;
  }

 private:
  friend class DraftSource;
  struct Slot {
    DraftTensor described;
    TensorInfo info;  // of what this rank writes
    std::span<std::byte> memory;
    // Under mutex_:
    bool has_pointer = false;
    std::uint32_t dim = 0;                                       // along which its parts lie
    std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;  // [begin, end) along dim
    std::uint32_t writing = 0;                                   // parts that are being put
  };
  // A part of a slot in the coordinates of this rank.
  struct Place {
    std::uint32_t tensor = 0;  // index in manifest_
    std::uint32_t dim = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // A part as rows of runs: `rows` runs of `run` elements each, `pitch` elements apart in the
  // tensor.
  struct Rows {
    std::uint64_t rows = 1;
    std::uint64_t run = 0;
    std::uint64_t pitch = 0;
    std::uint64_t first = 0;  // element of the tensor
  };
  Draft(std::shared_ptr<Snapshotter> snapshotter, std::shared_ptr<const Manifest> manifest,
        std::shared_ptr<const BucketPlan> plan, WritableArena arena, unsigned threads);
  struct Claimed;
  struct ClaimedAll;
  // Bytes [begin, end) of a tensor that lie in one leaf, of the part that is put there.
  struct LeafOfPart {
    std::size_t part = 0;
    std::uint64_t part_begin = 0;  // where the part begins in the tensor
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t bucket = 0;
  };
  [[nodiscard]] Result<Place> place_of(const DraftPart& part) const;
  [[nodiscard]] Rows rows_of(const Place& place) const;
  void add_leaves(std::size_t part, const Place& place,
                  const std::pair<std::uint64_t, std::uint64_t>& range,
                  std::vector<LeafOfPart>& leaves) const;
  [[nodiscard]] Result<> claim(const Place& place);
  void finish(const Place& place, bool is_written);
  void write(const DraftPart& part, const Place& place, float scale);
  [[nodiscard]] std::optional<std::pair<std::uint64_t, std::uint64_t>> contiguous(
      const Place& place) const;
  void write_contiguous(const DraftPart& part, const Slot& slot, std::uint64_t begin,
                        std::uint64_t bytes, float scale);
  void write_leaf(const DraftPart& part, const Slot& slot, std::uint64_t begin, std::uint64_t end,
                  const std::byte* data, float scale);
  void keep_sum(const Slot& slot, std::uint64_t begin, const WordSum& sum);
  [[nodiscard]] Result<> put_blocks(const DraftPart& part, const Place& place);
  // Of parts in the memory of a GPU (draft_gpu.cc):
  [[nodiscard]] Result<> check_not_lost() const;  // under mutex_
  struct EndOfCopies;
  // How the GPU converts the part on its way; none for equal dtypes. std::nullopt: only the host
  // can.
  [[nodiscard]] std::optional<FloatCast> cast_on_gpu(const DraftPart& part,
                                                     const Place& place) const;
  [[nodiscard]] Result<> start_copies(std::span<const DraftPart> parts,
                                      std::span<const Place> places, DeviceCopies& copies,
                                      std::size_t& failed);
  // The same part in memory of the host, which `memory` keeps.
  [[nodiscard]] static Result<DraftPart> on_host(const DraftPart& part,
                                                 std::shared_ptr<std::vector<std::byte>>& memory);
  [[nodiscard]] Result<> add_rows(const DraftPart& part, const Place& place, const FloatCast& cast,
                                  DeviceCopies& copies);
  // Bytes [begin, end) of the tensor, which lie in one leaf and come by these copies.
  [[nodiscard]] Result<> sum_when_copied(const Slot& slot, std::uint64_t begin, std::uint64_t end,
                                         DeviceCopies& copies);
  [[nodiscard]] Result<> prepare_pinning(const DeviceBytes& bytes);

  const std::shared_ptr<Snapshotter> snapshotter_;
  const std::shared_ptr<const Manifest> manifest_;  // of what this rank writes
  const std::shared_ptr<const BucketPlan> plan_;
  std::unique_ptr<ThreadPool> helpers_;  // null: one thread
  std::vector<Slot> slots_;              // in manifest order
  std::vector<std::uint64_t> first_leaf_;
  // Sums of leaves that were put; of its own leaf each writer. 1: valid.
  std::vector<WordSum> sums_;
  std::vector<std::uint8_t> is_summed_;
  std::mutex pinning_;  // of a change of the arena's protection
  mutable std::mutex mutex_;
  bool is_sealed_ = false;              // under mutex_
  bool is_lost_ = false;                // under mutex_; a GPU that has failed may write to it
  std::optional<WritableArena> arena_;  // until source()
};

}  // namespace wsync::publish
