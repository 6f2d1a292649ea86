#include "inference_side/reload/sum_check.h"

#include <algorithm>
#include <utility>

#include "inference_side/reload/part_relation.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"

namespace wsync::reload {
namespace {

// One rank's part of a tensor.
struct Part {
  std::uint32_t rank = 0;
  const LoadTensor* tensor = nullptr;
  const control::EngineTensor* ranges = nullptr;
  SplitSum sum;
};

// The parts of one tensor.
class TensorParts {
 public:
  // `parts` is not empty.
  TensorParts(const StagedSums& staged, std::uint32_t index, std::vector<Part> parts)
      : staged_(staged),
        name_(staged.manifest->tensor(index).name),
        total_(staged.digests->sums[index]),
        parts_(std::move(parts)) {}

  [[nodiscard]] SumCheck check() { return is_equal() ? SumCheck{} : compare_with_staged(); }

 private:
  [[nodiscard]] std::uint64_t tensor_bytes() const {
    return parts_.front().tensor->shard.tensor_bytes();
  }
  [[nodiscard]] std::span<const std::byte> staged_bytes() const {
    return staged_.arena.subspan(parts_.front().tensor->arena_offset, tensor_bytes());
  }

  // Whether the sums say that the parts are those of the version.
  [[nodiscard]] bool is_equal() {
    std::vector<const Part*> different;  // one of equal parts, of those that are not whole
    std::uint64_t bytes = 0;
    for (const Part& part : parts_) {
      const std::uint64_t own = part.tensor->shard.bytes();
      if (own == tensor_bytes()) {
        if (part.sum != SplitSum{.words = total_, .edges = {}}) return false;
        continue;
      }
      if (own == 0) {
        if (part.sum != SplitSum{}) return false;
        continue;
      }
      bool repeats = false;
      for (const Part* other : different) {
        const PartRelation relation = relation_of(*part.ranges, *other->ranges);
        if (relation == PartRelation::kOverlapping) return false;
        if (relation != PartRelation::kEqual) continue;
        if (part.sum != other->sum) return false;
        repeats = true;
        break;
      }
      if (repeats) continue;
      different.push_back(&part);
      bytes += own;
    }
    return different.empty() || (bytes == tensor_bytes() && make_up(different));
  }

  // Whether the sums of these parts, which make up the tensor without overlap, make up its sum.
  [[nodiscard]] bool make_up(const std::vector<const Part*>& parts) const {
    WordSum sum;
    std::vector<std::uint64_t> words;
    for (const Part* part : parts) {
      if (part->sum.edges != expected_edges(*part->tensor, staged_.arena)) return false;
      sum += part->sum.words;
      std::vector<std::uint64_t> own;
      add_cut_words(*part->tensor, own);
      std::vector<std::uint64_t> merged(words.size() + own.size());
      std::ranges::merge(words, own, merged.begin());
      words = std::move(merged);
    }
    if (!planted("edge_word_counted_twice"))
      words.erase(std::ranges::unique(words).begin(), words.end());
    const std::uint64_t seed = parts.front()->tensor->seed;
    for (const std::uint64_t word : words) {
      const std::uint64_t at = word * kSumWordBytes;
      sum += word_sum(staged_bytes().subspan(at, std::min(kSumWordBytes, tensor_bytes() - at)),
                      {.seed = seed, .position = at});
    }
    return sum == total_;
  }

  // Reads the staged bytes of the tensor.
  [[nodiscard]] SumCheck compare_with_staged() const {
    SumCheck check;
    const auto differs = [&](std::optional<std::uint32_t> rank, std::string why) {
      check.mismatch = SumMismatch{
          .tensor = name_, .rank = rank, .why = fmt::format("tensor {}: {}", name_, why)};
      return check;
    };
    for (const Part& part : parts_) {
      check.read_bytes += part.tensor->shard.bytes();
      if (part.sum != expected_sum(*part.tensor, staged_.arena))
        return differs(part.rank, fmt::format("the bytes that rank {} has loaded are not those "
                                              "that are staged",
                                              part.rank));
    }
    check.read_bytes += tensor_bytes();
    if (word_sum(staged_bytes(), {.seed = parts_.front().tensor->seed}) != total_)
      return differs(std::nullopt, "the staged bytes are not those of the version");
    return check;
  }

  const StagedSums& staged_;
  const std::string& name_;
  WordSum total_;
  std::vector<Part> parts_;
};

}  // namespace

SumCheck check_sums(const StagedSums& staged, std::span<const LoadedRank> ranks) {
  std::vector<std::vector<Part>> parts(staged.manifest->size());
  for (const LoadedRank& rank : ranks)
    for (std::size_t t = 0; t < rank.tensors.size(); ++t)
      parts[rank.tensors[t].manifest_index].push_back(
          {.rank = rank.rank,
           .tensor = &rank.tensors[t],
           .ranges = &rank.ranges[t],
           .sum = planted("sums_of_another_rank") ? ranks.front().sums[t] : rank.sums[t]});
  SumCheck check;
  for (std::uint32_t index = 0; index < parts.size(); ++index) {
    if (parts[index].empty()) continue;
    SumCheck one = TensorParts(staged, index, std::move(parts[index])).check();
    check.read_bytes += one.read_bytes;
    check.mismatch = std::move(one.mismatch);
    if (check.mismatch) break;
  }
  return check;
}

}  // namespace wsync::reload
