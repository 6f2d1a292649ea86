// GatheredSource: one model, assembled from the shards of several trainer ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"
#include "trainer_side/publish/weight_source.h"

namespace wsync::publish {

// The part of a tensor that a rank holds: [begin, begin + length) of dimension `dim`.
struct ShardRange {
  std::uint32_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// What one rank holds of one tensor, row-major in the shape of its shard.
struct RankTensor {
  TensorInfo info;                  // of the whole tensor
  std::optional<ShardRange> range;  // none: this rank holds all of it
  TensorBytes bytes;
};

// Thread: see WeightSource.
class GatheredSource final : public WeightSource {
 public:
  // `ranks` in rank order. If several ranks have the same range (replicas of a tensor), the first
  // is read. Returns kInvalidInput, with the tensor, unless the ranks describe it identically,
  // divide it along one dimension, and cover it with ranges of whole bytes, without gaps or partial
  // overlaps.
  [[nodiscard]] static Result<GatheredSource> create(std::vector<std::vector<RankTensor>> ranks);
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return manifest_;
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override;
  [[nodiscard]] Result<WordSum> read_sum(std::uint32_t tensor, const SumPlace& place,
                                         std::span<std::byte> into) override;
  [[nodiscard]] bool is_on_host() const override;
  // A shard of a rank on another host.
  struct RemoteShard {
    std::uint32_t tensor = 0;  // index in the manifest
    std::uint32_t rank = 0;
    std::uint64_t begin = 0;     // in a row of the tensor, as it is cut
    std::uint64_t bytes = 0;     // of the shard
    bool is_contiguous = false;  // it is bytes [begin, begin + bytes) of the tensor
  };
  // Those from which the model is read, in manifest order.
  [[nodiscard]] std::vector<RemoteShard> remote_shards() const;
  // The bytes of one of these.
  void set_bytes(const RemoteShard& shard, TensorBytes bytes);
  // kInvalidInput, with tensor and rank, if memory of a GPU has been freed.
  [[nodiscard]] Result<> start(const WritableArena& arena, const BucketPlan& plan) override;
  void finish() override { copies_.reset(); }

 private:
  // The columns of one rank, with the tensor seen as `rows` x `row_bytes`.
  struct Shard {
    std::uint64_t begin = 0;  // bytes in a row of the whole tensor
    std::uint64_t bytes = 0;  // in a row of the shard
    TensorBytes source;
    std::uint32_t rank = 0;
  };
  struct Tensor {
    std::uint64_t row_bytes = 0;
    std::vector<Shard> shards;  // ordered by begin; together they form a row
  };
  GatheredSource() = default;
  // Whether the shards of a tensor, ordered by their begin, form a row. Several ranks may have the
  // same range. kInvalidInput names the range that is missing, or those that overlap.
  [[nodiscard]] static Result<> check_cover(const TensorInfo& info, std::uint32_t dim,
                                            const Tensor& tensor);
  [[nodiscard]] static Result<Tensor> assemble(
      const TensorInfo& info, const std::vector<std::pair<std::uint32_t, RankTensor*>>& parts);
  // Calls `take` for each part of the bytes that one rank has: with its shard, the offset in that,
  // and the bytes to fill.
  template <class Take>
  [[nodiscard]] Result<> for_each_part(std::uint32_t index, std::uint64_t offset,
                                       std::span<std::byte> into, Take&& take) const;
  [[nodiscard]] Result<> read_part(const Shard& shard, std::uint64_t offset,
                                   std::span<std::byte> into) const;

  std::shared_ptr<const Manifest> manifest_;
  std::vector<Tensor> tensors_;           // in manifest order
  std::unique_ptr<DeviceCopies> copies_;  // from GPUs, between start() and finish()
};

}  // namespace wsync::publish
