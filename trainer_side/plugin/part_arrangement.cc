#include "trainer_side/plugin/part_arrangement.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync::plugin {
namespace {

using publish::RankTensor;

using RemoteShard = publish::GatheredSource::RemoteShard;

// Whether it can be served as a part of its tensor.
bool can_be_part(const RemoteShard& shard, std::uint64_t tensor_bytes) {
  const std::uint64_t end = shard.begin + shard.bytes;
  return shard.is_contiguous && tensor_bytes >= limits::kCarriedTensorBytes &&
         shard.begin % kSumWordBytes == 0 && (end == tensor_bytes || end % kSumWordBytes == 0);
}

// The index of each tensor in the shards of one rank.
std::unordered_map<std::string_view, std::uint32_t> index_of(
    const std::vector<RankTensor>& shards) {
  std::unordered_map<std::string_view, std::uint32_t> index;
  for (std::uint32_t i = 0; i < shards.size(); ++i) index.emplace(shards[i].info.name, i);
  return index;
}

}  // namespace

Result<PartArrangement> PartArrangement::make(const publish::GatheredSource& source,
                                              const Described& described, std::uint64_t step,
                                              std::uint64_t bucket_bytes) {
  const Manifest& manifest = *source.manifest();
  const std::vector<RemoteShard> shards = source.remote_shards();
  std::map<std::uint32_t, std::unordered_map<std::string_view, std::uint32_t>> index;
  for (const auto& [rank, of_rank] : described) index.emplace(rank, index_of(*of_rank));

  std::set<std::uint32_t> carried_tensors;
  for (const RemoteShard& shard : shards)
    if (!can_be_part(shard, manifest.byte_size(shard.tensor))) carried_tensors.insert(shard.tensor);

  PartArrangement made;
  made.step_ = step;
  std::map<std::uint32_t, std::uint64_t> carried_bytes;
  std::set<std::uint32_t> part_ranks;
  std::vector<PartRange> served;
  for (const RemoteShard& shard : shards) {
    const std::string& name = manifest.tensor(shard.tensor).name;
    if (!carried_tensors.contains(shard.tensor)) {
      part_ranks.insert(shard.rank);
      served.push_back({.tensor = shard.tensor,
                        .part = shard.rank,
                        .begin = shard.begin,
                        .end = shard.begin + shard.bytes});
      continue;
    }
    if ((carried_bytes[shard.rank] += shard.bytes) > limits::kCarriedBytes)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format(
              "rank {} would send more than {} MiB of shards to rank 0 that it cannot serve "
              "itself, such as that of {}: on another host than rank 0, cut tensors along "
              "their first dimension and at multiples of {} bytes, or publish with all "
              "ranks on one host",
              shard.rank, limits::kCarriedBytes / limits::kMiB,
              describe(manifest.tensor(shard.tensor)), kSumWordBytes));
    made.carried_.push_back({.shard = shard, .tensor = index.at(shard.rank).at(name)});
    made.orders_[shard.rank].carried.push_back(made.carried_.back().tensor);
  }

  made.part_ranks_.assign(part_ranks.begin(), part_ranks.end());
  std::map<std::uint32_t, std::uint32_t> part_of;  // rank
  for (std::uint32_t i = 0; i < made.part_ranks_.size(); ++i) part_of[made.part_ranks_[i]] = i + 1;
  for (PartRange& range : served) range.part = part_of.at(range.part);
  made.parts_ = WSYNC_TRY(Parts::create(manifest, std::move(served)));
  made.plan_ = std::make_shared<const BucketPlan>(
      WSYNC_TRY(BucketPlan::create(manifest, bucket_bytes, made.parts_)));
  made.leaves_ = std::make_shared<const LeafTable>(manifest, *made.plan_);

  for (std::size_t bucket = 0; bucket < made.plan_->bucket_count(); ++bucket) {
    const std::uint32_t part = made.plan_->bucket_part(bucket);
    if (part == 0) continue;
    const Piece& piece = made.plan_->bucket(bucket).front();
    const auto of_tensor = made.parts_.of_tensor(piece.tensor);
    const auto range =
        std::prev(std::ranges::upper_bound(of_tensor, piece.tensor_offset, {}, &PartRange::begin));
    const std::uint32_t rank = made.part_ranks_[part - 1];
    made.orders_[rank].windows.push_back(
        {.bucket = static_cast<std::uint32_t>(bucket),
         .tensor = index.at(rank).at(manifest.tensor(piece.tensor).name),
         .offset = piece.tensor_offset - range->begin,
         .bytes = piece.bytes,
         .position = piece.tensor_offset});
  }
  for (auto& [rank, order] : made.orders_) {
    order.step = step;
    order.bucket_count = made.plan_->bucket_count();
  }
  return made;
}

Result<> PartArrangement::take(std::uint32_t rank, control::PartSummed answer) {
  const auto refuse = [rank, this](std::string_view what) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} has answered for step {}: {}", rank, step_, what));
  };
  if (!answer.failure.empty())
    return fail(ErrorCode::kRefused, fmt::format("rank {}: {}", rank, answer.failure));
  const control::PartWanted& order = orders_.at(rank);
  std::size_t sums = 0;
  for (const control::PartWindow& window : order.windows)
    sums += leaves_->bucket(window.bucket).size();
  if (answer.sums.size() != sums)
    return refuse(fmt::format("{} sums, expected {}", answer.sums.size(), sums));
  if (!std::ranges::equal(answer.carried, order.carried, {}, &control::CarriedShard::tensor))
    return refuse(fmt::format("it carries {} shards, expected {}", answer.carried.size(),
                              order.carried.size()));
  std::size_t next = 0;
  for (const Carried& carried : carried_) {
    if (carried.shard.rank != rank) continue;
    if (const std::size_t found = answer.carried[next++].bytes.size(); found != carried.shard.bytes)
      return refuse(
          fmt::format("it carries {} bytes of a shard, expected {}", found, carried.shard.bytes));
  }
  answers_[rank] = std::move(answer);
  return {};
}

void PartArrangement::apply(publish::GatheredSource& source) const {
  WSYNC_CHECK(answers_.size() == orders_.size(), "each rank that was asked has answered");
  std::map<std::uint32_t, std::size_t> next;  // of each rank, in its carried shards
  for (const Carried& carried : carried_) {
    const std::uint32_t rank = carried.shard.rank;
    source.set_bytes(carried.shard,
                     std::span<const std::byte>(answers_.at(rank).carried[next[rank]++].bytes));
  }
  std::map<std::pair<std::uint32_t, std::uint64_t>, publish::RemoteBytes> remote;
  for (const auto& [rank, order] : orders_) {
    std::size_t sum = 0;
    for (const control::PartWindow& window : order.windows) {
      const Piece& piece = plan_->bucket(window.bucket).front();
      publish::RemoteBytes& bytes = remote[{piece.tensor, piece.tensor_offset - window.offset}];
      for (const LeafPlace& leaf : leaves_->bucket(window.bucket))
        bytes.sums[leaf.place.position] = answers_.at(rank).sums[sum++];
    }
  }
  for (auto& [place, bytes] : remote)
    source.set_bytes({.tensor = place.first, .begin = place.second}, std::move(bytes));
}

publish::PartedVersion::Content PartArrangement::content() const {
  ByteWriter encoded;
  parts_.encode(encoded);
  return {.step = step_,
          .parts = std::move(encoded).take(),
          .plan = plan_,
          .leaves = leaves_,
          .owners = {},
          .ranks = part_ranks_};
}

}  // namespace wsync::plugin
