#include "inference_side/engine_link/read_back.h"

#include <algorithm>
#include <utility>

#include "inference_side/engine_link/destination.h"
#include "inference_side/reload/shard.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/content_digest.h"

namespace wsync::engine {
namespace {

// Digest of a tensor that the engine returns in pieces of one leaf, so that no second copy of the
// tensor is needed.
Result<Digest> digest_of_whole(const HeldWeights& weights, std::uint32_t tensor) {
  const control::EngineTensor& description = weights.tensor(tensor);
  const auto shard = WSYNC_TRY(
      reload::Shard::make(dtype_bits(description.dtype), description.shape, description.ranges));
  std::vector<std::byte> leaf(limits::kLeafBytes);
  const std::uint64_t seed = seed_of(description.name);
  WordSum sum;
  for (std::uint64_t at = 0; at < shard.bytes(); at += leaf.size()) {
    const auto part =
        std::span(leaf).first(std::min<std::uint64_t>(leaf.size(), shard.bytes() - at));
    WSYNC_TRY(weights.engine->read_tensor(tensor, at, part));
    sum += word_sum(part, {.seed = seed, .position = at});
  }
  return digest_of(sum, shard.bytes());
}

Result<Digest> digest_of_tensor(const HeldWeights& weights, std::uint32_t tensor) {
  switch (weights.description->take) {
    case control::TakeMode::kPieces:
      return held_digest(weights.description->tensors[tensor]);
    case control::TakeMode::kAdopt:
      if (weights.adopted == nullptr)
        return fail(ErrorCode::kRefused, "no version has been adopted");
      return reload::expected_digest(weights.adopted->layout->plan.tensors()[tensor],
                                     weights.adopted->arena->data());
    case control::TakeMode::kWhole:
    case control::TakeMode::kBorrow:
      break;
  }
  return digest_of_whole(weights, tensor);
}

// Digests of the tensors from `tensor` on: one, or on a GPU a whole batch.
Result<std::vector<Digest>> digests_from(const HeldWeights& weights, std::uint32_t tensor) {
  if (weights.on_gpu != nullptr && weights.description->take == control::TakeMode::kPieces)
    return weights.on_gpu->digests(tensor);
  auto digest = WSYNC_TRY(digest_of_tensor(weights, tensor));
  return std::vector<Digest>{digest};
}

}  // namespace

Result<std::size_t> HeldWeights::tensor_count() const {
  if (!description->any_layout) return description->tensors.size();
  if (layout == nullptr)
    return fail(ErrorCode::kRefused, "this rank has not loaded a version, so it has no tensors");
  return layout->tensors.size();
}

const control::EngineTensor& HeldWeights::tensor(std::size_t index) const {
  return description->any_layout ? layout->tensors[index] : description->tensors[index].description;
}

Result<bool> ReadBack::read_some(const HeldWeights& weights) {
  if (next_ >= WSYNC_TRY(weights.tensor_count())) return true;
  if (is_held_by_engine(*weights.description)) {
    if (auto why = weights.engine->why_unreadable(); !why.empty()) {
      unreadable_.push_back(std::move(why));
      return true;
    }
  }
  if (weights.description->take == control::TakeMode::kPieces) {
    if (auto why = why_unreadable(weights.description->tensors[next_]); !why.empty()) {
      unreadable_.push_back(std::move(why));
      ++next_;
      return false;
    }
  }
  const auto digests = WSYNC_TRY(digests_from(weights, static_cast<std::uint32_t>(next_)));
  for (const Digest& digest : digests) {
    const control::EngineTensor& tensor = weights.tensor(next_++);
    const auto shard = reload::Shard::make(dtype_bits(tensor.dtype), tensor.shape, tensor.ranges);
    reply_.tensors.push_back(
        {.name = tensor.name, .digest = digest, .bytes = shard ? shard->bytes() : 0});
  }
  return false;
}

control::Digests ReadBack::finish(const Result<>& outcome) && {
  reply_.is_unreadable = outcome && !unreadable_.empty();
  if (!outcome) {
    reply_.failure = outcome.error().message();
    reply_.tensors.clear();
  } else if (unreadable_.size() == 1) {
    reply_.failure = std::move(unreadable_.front());
  } else if (!unreadable_.empty()) {
    reply_.failure =
        fmt::format("{}; and {} more tensors", unreadable_.front(), unreadable_.size() - 1);
  }
  return std::move(reply_);
}

}  // namespace wsync::engine
