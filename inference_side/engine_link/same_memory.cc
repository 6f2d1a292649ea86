#include "inference_side/engine_link/same_memory.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "inference_side/engine_link/destination.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/weights/dtype.h"

namespace wsync::engine {
namespace {

struct Place {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint32_t tensor = 0;
};

const std::string& name_of(const RankTensor& tensor) { return tensor.description.name; }

Error overlap(std::span<const RankTensor> tensors, const Place& first, const Place& second) {
  const std::uintptr_t end = std::min(first.end, second.end);
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format("tensors {} and {} overlap in memory (bytes {} to {} of {} are bytes 0 to {} of "
                  "{}): each needs memory of its own",
                  name_of(tensors[first.tensor]), name_of(tensors[second.tensor]),
                  second.begin - first.begin, end - first.begin, name_of(tensors[first.tensor]),
                  end - second.begin, name_of(tensors[second.tensor])));
}

// Only then the same bytes are the same values under both names, and each can be summed there.
Result<> check_alike(const RankTensor& first, const RankTensor& second) {
  const auto refuse = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("tensors {} and {} have the same memory, {}: give each memory of its "
                            "own, or take only one of them",
                            name_of(first), name_of(second), why));
  };
  if (Destination::of(first).cast || Destination::of(second).cast)
    return refuse("which is not possible for tensors that are converted");
  const auto& a = first.description;
  const auto& b = second.description;
  if (a.ranges.empty() && b.ranges.empty()) return {};
  if (a.dtype != b.dtype || a.shape != b.shape || a.ranges != b.ranges)
    return refuse("but they are different ranges, or ranges of different shapes");
  return {};
}

}  // namespace

Result<SameMemory> find_same_memory(std::span<const RankTensor> tensors) {
  std::vector<Place> places;
  places.reserve(tensors.size());
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    const std::span<const std::byte> memory = tensors[t].destination;
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    if (!memory.empty())
      places.push_back({.begin = begin, .end = begin + memory.size(), .tensor = t});
  }
  std::ranges::sort(places, [](const Place& a, const Place& b) {
    return std::tie(a.begin, a.end, a.tensor) < std::tie(b.begin, b.end, b.tensor);
  });
  SameMemory same;
  bool is_in_group = false;  // the last place is in the last group
  for (std::size_t i = 1; i < places.size(); ++i) {
    const Place& last = places[i - 1];  // none before it ends later
    const Place& place = places[i];
    const bool is_same = place.begin == last.begin && place.end == last.end;
    if (!is_same && place.begin < last.end && !planted("overlap_in_part_accepted"))
      return fail(overlap(tensors, last, place));
    if (is_same) {
      WSYNC_TRY(check_alike(tensors[last.tensor], tensors[place.tensor]));
      if (!is_in_group) same.push_back({last.tensor});
      same.back().push_back(place.tensor);
    }
    is_in_group = is_same;
  }
  return same;
}

SplitSum held_sum(const reload::LoadTensor& tensor, std::span<const std::byte> memory) {
  SplitSum sum;
  for (std::uint64_t at = 0; at < memory.size();) {
    const auto run = tensor.shard.run_at(at);
    sum += split_sum(
        memory.subspan(at, run.bytes),
        {.seed = tensor.seed, .position = run.offset, .tensor_bytes = tensor.shard.tensor_bytes()});
    at += run.bytes;
  }
  return sum;
}

}  // namespace wsync::engine
