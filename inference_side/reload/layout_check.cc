#include "inference_side/reload/layout_check.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "inference_side/reload/shard.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync::reload {

namespace {

using control::EngineTensor;
using control::Problem;
using control::ProblemKind;

// The search for a nearest name reads all other names, so only the first problems get one.
constexpr std::size_t kNearestNames = 64;
// If the ranks divide a tensor into more uncovered blocks than this, the tensor counts as not
// covered.
constexpr std::size_t kUncoveredBoxes = 4096;

// Collects problems up to the limit and counts the rest.
class Problems {
 public:
  void add(Problem problem) {
    if (kept_.size() < limits::kProblemCount - 1)
      kept_.push_back(std::move(problem));
    else
      ++dropped_;
  }
  [[nodiscard]] bool many() const noexcept { return kept_.size() >= kNearestNames; }
  std::vector<Problem> take() && {
    if (dropped_ > 0)
      kept_.push_back(
          {.kind = ProblemKind::kOther, .detail = fmt::format("and {} more problems", dropped_)});
    return std::move(kept_);
  }

 private:
  std::vector<Problem> kept_;
  std::size_t dropped_ = 0;
};

// Levenshtein distance. Returns limit + 1 as soon as the distance must be greater than `limit`.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const auto common = std::ranges::mismatch(a, b).in1 - a.begin();
  a.remove_prefix(static_cast<std::size_t>(common));
  b.remove_prefix(static_cast<std::size_t>(common));
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > limit) return limit + 1;
  std::vector<std::size_t> row(a.size() + 1);
  for (std::size_t i = 0; i <= a.size(); ++i) row[i] = i;
  for (std::size_t j = 1; j <= b.size(); ++j) {
    std::size_t diagonal = row[0];
    row[0] = j;
    std::size_t smallest = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[i];
      row[i] = std::min({row[i] + 1, row[i - 1] + 1, replaced});
      smallest = std::min(smallest, row[i]);
    }
    if (smallest > limit) return limit + 1;
  }
  return row[a.size()];
}

// Names of the manifest that no tensor has: only these can be what a tensor of another name means.
std::vector<std::string_view> free_names(const Manifest& manifest,
                                         std::span<const EngineTensor> tensors) {
  std::vector<bool> taken(manifest.size());
  for (const EngineTensor& tensor : tensors)
    if (const auto index = manifest.find(tensor.name)) taken[*index] = true;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < manifest.size(); ++i)
    if (!taken[i]) names.emplace_back(manifest.tensor(i).name);
  return names;
}

// A block of a tensor: begin and end of each dimension.
using Box = std::vector<Shard::Interval>;

std::string text_of(DType dtype, std::span<const std::uint64_t> shape) {
  return fmt::format("{} [{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

// The part of `from` outside of `taken`: at most two boxes for each dimension.
void subtract(const Box& from, const Box& taken, std::vector<Box>& left) {
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (taken[d].begin >= from[d].end || taken[d].end <= from[d].begin) {
      left.push_back(from);
      return;
    }
  }
  Box rest = from;
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (taken[d].begin > rest[d].begin) {
      left.push_back(rest);
      left.back()[d].end = taken[d].begin;
      rest[d].begin = taken[d].begin;
    }
    if (taken[d].end < rest[d].end) {
      left.push_back(rest);
      left.back()[d].begin = taken[d].end;
      rest[d].end = taken[d].end;
    }
  }
}

Box whole_box(const TensorInfo& tensor) {
  Box box;
  for (const std::uint64_t size : tensor.shape) box.push_back({.begin = 0, .end = size});
  return box;
}

bool fits(const TensorInfo& info, const EngineTensor& tensor) {
  return tensor.dtype == info.dtype && tensor.shape == info.shape &&
         Shard::make(dtype_bits(info.dtype), info.shape, tensor.ranges).has_value();
}

// The first block that no taker covers, as "[0, 4096)" for each dimension; std::nullopt if the
// takers cover the tensor.
std::optional<std::string> find_hole(const TensorInfo& info,
                                     const std::vector<const EngineTensor*>& takers) {
  std::vector<Box> open;
  if (std::ranges::find(info.shape, 0U) == info.shape.end()) open.push_back(whole_box(info));
  for (const EngineTensor* taker : takers) {
    Box taken = whole_box(info);
    for (const auto& range : taker->ranges)
      taken[range.dim] = {.begin = range.begin, .end = range.begin + range.length};
    std::vector<Box> left;
    for (const Box& box : open) subtract(box, taken, left);
    open = std::move(left);
    if (open.size() > kUncoveredBoxes) return "(more holes than are worth counting)";
  }
  if (open.empty()) return std::nullopt;
  std::string text;
  for (const auto& side : open.front()) text += fmt::format("[{}, {})", side.begin, side.end);
  return text;
}

// Whether one is the other with a prefix that ends with a dot, as "model.a" is of "a".
bool differ_by_prefix(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  return !b.empty() && a.size() > b.size() && a.ends_with(b) && a[a.size() - b.size() - 1] == '.';
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::size_t limit = std::max<std::size_t>(1, name.size() / 3);
  std::string_view nearest;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate, limit);
    if (distance > limit) continue;
    nearest = candidate;
    if (distance == 0) break;
    limit = distance - 1;
  }
  if (!nearest.empty()) return std::string(nearest);
  // A prefix that all names of one side have may be longer than that.
  const auto prefixed = std::ranges::find_if(
      candidates, [&](std::string_view candidate) { return differ_by_prefix(name, candidate); });
  return prefixed == candidates.end() ? std::string() : std::string(*prefixed);
}

std::vector<Problem> check_layout(const Manifest& manifest, std::span<const EngineTensor> tensors) {
  Problems problems;
  std::set<std::string_view> seen;
  const std::vector<std::string_view> names = free_names(manifest, tensors);
  for (const auto& tensor : tensors) {
    if (!seen.insert(tensor.name).second) {
      problems.add({.kind = ProblemKind::kOther,
                    .tensor = tensor.name,
                    .detail = "the engine lists it twice"});
      continue;
    }
    const auto index = manifest.find(tensor.name);
    if (!index) {
      problems.add({.kind = ProblemKind::kMissing,
                    .tensor = tensor.name,
                    .detail = "the engine expects it, but the published tensors do not have it",
                    .nearest = problems.many() ? std::string() : nearest_name(tensor.name, names),
                    .expected = text_of(tensor.dtype, tensor.shape)});
      continue;
    }
    const TensorInfo& info = manifest.tensor(*index);
    if (tensor.dtype != info.dtype) {
      problems.add({.kind = ProblemKind::kDtype,
                    .tensor = tensor.name,
                    .detail = fmt::format("the engine expects {}, but the published tensor has {}",
                                          dtype_name(tensor.dtype), dtype_name(info.dtype)),
                    .expected = text_of(tensor.dtype, tensor.shape),
                    .found = text_of(info.dtype, info.shape)});
    } else if (tensor.shape != info.shape) {
      problems.add(
          {.kind = ProblemKind::kShape,
           .tensor = tensor.name,
           .detail = fmt::format("the engine expects [{}], but the published tensor has [{}]",
                                 fmt::join(tensor.shape, ", "), fmt::join(info.shape, ", ")),
           .expected = text_of(tensor.dtype, tensor.shape),
           .found = text_of(info.dtype, info.shape)});
    } else if (auto shard = Shard::make(dtype_bits(info.dtype), info.shape, tensor.ranges);
               !shard) {
      problems.add(
          {.kind = ProblemKind::kRange, .tensor = tensor.name, .detail = shard.error().message()});
    }
  }
  return std::move(problems).take();
}

std::vector<Problem> check_replica_coverage(const Manifest& manifest,
                                            std::span<const std::span<const EngineTensor>> ranks) {
  std::vector<std::vector<const EngineTensor*>> takers(manifest.size());
  std::vector<std::string_view> wanted;
  for (const auto& rank : ranks) {
    for (const auto& tensor : rank) {
      wanted.emplace_back(tensor.name);
      const auto index = manifest.find(tensor.name);
      if (index && fits(manifest.tensor(*index), tensor)) takers[*index].push_back(&tensor);
    }
  }
  std::ranges::sort(wanted);
  const auto repeated = std::ranges::unique(wanted);
  wanted.erase(repeated.begin(), repeated.end());
  std::vector<std::string_view> unknown;
  std::ranges::copy_if(wanted, std::back_inserter(unknown),
                       [&](std::string_view name) { return !manifest.find(name); });
  Problems problems;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const TensorInfo& info = manifest.tensor(i);
    if (takers[i].empty()) {
      if (std::ranges::binary_search(wanted, std::string_view(info.name)))
        continue;  // check_layout reports it
      problems.add({.kind = ProblemKind::kExtra,
                    .tensor = info.name,
                    .detail = "the published tensors have it, but no rank of the replica loads it",
                    .nearest = problems.many() ? std::string() : nearest_name(info.name, unknown),
                    .found = text_of(info.dtype, info.shape)});
    } else if (const auto hole = find_hole(info, takers[i])) {
      problems.add({.kind = ProblemKind::kRange,
                    .tensor = info.name,
                    .detail = fmt::format("no rank of the replica loads its elements {} of [{}]",
                                          *hole, fmt::join(info.shape, ", "))});
    }
  }
  return std::move(problems).take();
}

}  // namespace wsync::reload
