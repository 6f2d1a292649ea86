// LoadSession: one load of a version. It copies buckets out of the arena or the IPC buffers, sums
// what it reads, passes complete layers to the engine in order, and
// at the end proves that nothing is missing.
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "inference_side/engine_link/bucket_taker.h"
#include "inference_side/engine_link/device_weights.h"
#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/patch_load.h"
#include "inference_side/engine_link/prepared_version.h"
#include "shared/base/clock.h"
#include "shared/base/thread_pool.h"

namespace wsync::engine {

// This class has more than 25 methods: arenas, buckets, patches and changed layers are loaded in
// ways of their own, and end in the same proof.
class LoadSession {
 public:
  // All arguments are borrowed and outlive the session. `on_gpu`: the rank's weights, in which the
  // load has begun; null if they are in host memory.
  LoadSession(const EngineDescription& description, const PreparedVersion& prepared, Engine& engine,
              TimePoint deadline, DeviceWeights* on_gpu);

  // Copies what the rank needs of one bucket, which is in buffer `slot` of `taker`. A repeated
  // bucket does nothing. Returns kDeadline if the deadline has passed, kInvalidInput for a bucket
  // out of order where the memory depends on the order (place_layers()), otherwise the error of the
  // engine or the taker.
  [[nodiscard]] Result<> take_bucket(std::uint64_t bucket, BucketTaker& taker, std::uint32_t slot);
  // Copies every bucket of the version's mapped arena. Errors as take_bucket(). `helpers` (may be
  // null): additional threads that copy with TakeMode::kPieces. With kAdopt and kBorrow the
  // layers are passed to the engine in place.
  [[nodiscard]] Result<> load_arena(ThreadPool* helpers);
  // Writes a patch into the memory of a rank that takes pieces, and passes every layer to the
  // engine afterwards. `helpers` as above, `read` as in PatchLoad::apply(). Errors as
  // PatchLoad::apply(), and those of the engine.
  [[nodiscard]] Result<> load_patch(PatchLoad& patch, ThreadPool* helpers,
                                    std::span<const std::uint64_t> read = {});
  // Passes the layers that the patch changes to an engine that takes them (takes_changed_layers),
  // out of the version's mapped arena, with all their bytes. kInvalidInput if the engine answers
  // one later; otherwise its errors, and kDeadline.
  [[nodiscard]] Result<> load_changed_layers(const PatchLoad& patch);
  // Whether every bucket of the plan has been copied.
  [[nodiscard]] bool all_buckets() const noexcept;
  // Proves that nothing is missing; otherwise returns kInternal with what is missing. Tensors that
  // have the same memory are summed there again: kDigestMismatch, with their names, if the version
  // has different values of them.
  [[nodiscard]] Result<> finish();

  // The sum of each of the rank's tensors, as it was read; see control::Loaded. Call it once, after
  // finish().
  [[nodiscard]] std::vector<SplitSum> take_sums();
  // After a patch: the sums before it. Otherwise empty. Call it once.
  [[nodiscard]] std::vector<SplitSum> take_sums_before() { return std::move(before_); }
  // After a patch with `read`: PatchedSums::read_before and read_after.
  [[nodiscard]] const std::vector<SplitSum>& read_before() const noexcept { return read_before_; }
  [[nodiscard]] const std::vector<SplitSum>& read_after() const noexcept { return read_after_; }

  // The engine has answered at least one layer with Answer::kLater.
  [[nodiscard]] bool awaits_engine() const noexcept { return awaits_engine_; }
  // The engine has been given every layer.
  [[nodiscard]] bool all_layers() const noexcept {
    return next_layer_ == prepared_->layout->layers.size();
  }
  // The load gets no further layer. Tells an engine that waits for one (Engine::load_given_up),
  // once.
  void give_up();
  [[nodiscard]] const PreparedVersion& prepared() const noexcept { return *prepared_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return coverage_.bytes(); }
  // Bytes copied so far, each counted once; 0 if the version is mapped, but for the changed layers
  // that were passed.
  [[nodiscard]] std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }
  [[nodiscard]] std::chrono::nanoseconds copy_time() const noexcept { return copy_time_; }

 private:
  [[nodiscard]] Result<> copy_pieces(ThreadPool* helpers);
  [[nodiscard]] Result<> copy_whole();
  [[nodiscard]] Result<> pass_mapped_layers();
  [[nodiscard]] std::vector<LayerTensor> mapped_layer(std::size_t layer) const;
  [[nodiscard]] std::vector<LayerTensor> copied_layer(std::size_t layer);
  void mark_all();
  [[nodiscard]] Result<> pass_layer(std::span<const LayerTensor> tensors);
  [[nodiscard]] Destination destination_of(std::uint32_t tensor);
  [[nodiscard]] Result<> take_group(std::size_t index, const SplitSum& sum);
  [[nodiscard]] Result<> end_bucket(std::uint64_t bucket);
  [[nodiscard]] Result<> hand_over_complete_layers();

  const EngineDescription* description_;
  const PreparedVersion* prepared_;
  Engine* engine_;
  DeviceWeights* on_gpu_;
  TimePoint deadline_;
  reload::LoadCoverage coverage_;
  std::vector<bool> taken_;  // buckets
  std::size_t taken_count_ = 0;
  std::vector<std::uint32_t> groups_left_;  // of each layer
  std::vector<SplitSum> sums_;              // of each tensor
  std::vector<SplitSum> before_;            // likewise, before a patch
  std::vector<SplitSum> read_before_;       // as PatchedSums
  std::vector<SplitSum> read_after_;
  std::size_t next_layer_ = 0;
  // kWhole in host memory: tensors of incomplete layers.
  std::vector<std::vector<std::byte>> assembled_;
  std::chrono::nanoseconds copy_time_{0};
  std::uint64_t copied_bytes_ = 0;
  bool awaits_engine_ = false;
  bool is_given_up_ = false;  // and the engine has been told
};

}  // namespace wsync::engine
