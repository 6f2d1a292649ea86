#include "inference_side/sidecar/loaded_sums.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "inference_side/reload/patch_sum_check.h"
#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::agent {

namespace {

// A list of the sums that some ranks have returned, with the rank. `by_layers`: only those that
// take layers, or only the others.
template <class Returned>
std::vector<Returned> list_returned(
    const std::vector<LoadedSums::Rank>& ranks,
    const std::function<Returned(const LoadedSums::Rank& rank)>& make,
    std::optional<bool> by_layers = std::nullopt) {
  std::vector<Returned> list;
  for (const LoadedSums::Rank& each : ranks)
    if (each.returns_sums && each.takes_layers == by_layers.value_or(each.takes_layers))
      list.push_back(make(each));
  return list;
}

// What a rank that takes layers has returned of the tensors that the patch changes. Its other sums
// are of no use: a layer in which nothing changes has not been loaded.
struct ChangedTensors {
  std::uint32_t rank = 0;
  std::vector<reload::LoadTensor> tensors;
  std::vector<control::EngineTensor> ranges;
  std::vector<SplitSum> sums;
};

ChangedTensors changed_of(const LoadedSums::Rank& rank, const std::vector<SplitSum>& sums,
                          const staging::HeldPatch& patch) {
  ChangedTensors changed{.rank = rank.rank, .tensors = {}, .ranges = {}, .sums = {}};
  const auto tensors = rank.load->plan.tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint32_t index = tensors[t].manifest_index;
    if (patch.reader().blocks(index, 0, patch.layout().block_count(index)).empty()) continue;
    changed.tensors.push_back(tensors[t]);
    changed.ranges.push_back((*rank.tensors)[t]);
    changed.sums.push_back(sums[t]);
  }
  return changed;
}

// `base`: null if its bytes are not here.
reload::AppliedPatch applied(const staging::HeldPatch& patch, const staging::HeldVersion* base,
                             const staging::HeldVersion& target) {
  const auto bytes_of = [](const staging::HeldVersion& version) {
    return [&version](std::uint32_t tensor) {
      return staging::HeldPatch::tensor_bytes(version, tensor);
    };
  };
  if (patch.base().is_complete()) base = &patch.base();
  reload::AppliedPatch applied{
      .layout = &patch.layout(), .reader = &patch.reader(), .target = bytes_of(target)};
  if (base != nullptr) applied.base = bytes_of(*base);
  return applied;
}

}  // namespace

std::optional<reload::SumMismatch> LoadedSums::add(const std::string& replica, std::uint32_t rank,
                                                   Sums sums, const std::vector<Rank>& ranks,
                                                   const staging::HeldVersion& version,
                                                   const staging::HeldPatch* patch,
                                                   const staging::HeldVersion* base) {
  const auto own = std::ranges::find(ranks, rank, &Rank::rank);
  if (own == ranks.end()) return std::nullopt;
  const auto unusable = [rank](std::string_view why) {
    return reload::SumMismatch{
        .tensor = {}, .rank = rank, .why = fmt::format("rank {} {}", rank, why)};
  };
  if (own->load == nullptr)
    return unusable(
        fmt::format("has loaded {}, for which it was not prepared", version.version().to_string()));
  const std::size_t expected = own->returns_sums ? own->load->plan.tensors().size() : 0;
  const std::size_t expected_before = patch != nullptr ? expected : 0;
  if (sums.now.size() != expected || sums.before.size() != expected_before)
    return unusable(
        fmt::format("has returned the sums of {} tensors, and of {} before its patch, "
                    "expected {} and {}",
                    sums.now.size(), sums.before.size(), expected, expected_before));
  Load& load = loads_[replica];
  load.sums[rank] = std::move(sums);
  load.equal.reset();
  for (const Rank& each : ranks)
    if (!load.sums.contains(each.rank)) return std::nullopt;
  std::optional<reload::SumMismatch> mismatch;
  const reload::StagedSums staged{
      .manifest = version.manifest().get(), .digests = &version.digests(), .arena = version.data()};
  if (patch != nullptr) {
    mismatch = reload::check_patch_sums(applied(*patch, base, version),
                                        list_returned<reload::PatchedRank>(
                                            ranks,
                                            [&](const Rank& each) {
                                              const Sums& returned = load.sums.at(each.rank);
                                              return reload::PatchedRank{
                                                  .rank = each.rank,
                                                  .tensors = each.load->plan.tensors(),
                                                  .ranges = *each.tensors,
                                                  .before = returned.before,
                                                  .after = returned.now};
                                            },
                                            false))
                   .mismatch;
    const auto changed = list_returned<ChangedTensors>(
        ranks,
        [&](const Rank& each) { return changed_of(each, load.sums.at(each.rank).now, *patch); },
        true);
    std::vector<reload::LoadedRank> layers;
    for (const ChangedTensors& each : changed)
      layers.push_back(
          {.rank = each.rank, .tensors = each.tensors, .ranges = each.ranges, .sums = each.sums});
    if (!mismatch && !layers.empty() && !planted("layer_sums_not_compared"))
      mismatch = reload::check_sums(staged, layers).mismatch;
  } else {
    mismatch = reload::check_sums(staged, list_returned<reload::LoadedRank>(
                                              ranks,
                                              [&](const Rank& each) {
                                                return reload::LoadedRank{
                                                    .rank = each.rank,
                                                    .tensors = each.load->plan.tensors(),
                                                    .ranges = *each.tensors,
                                                    .sums = load.sums.at(each.rank).now};
                                              }))
                   .mismatch;
  }
  if (patch != nullptr) fail_point("patch_summed");
  if (patch != nullptr && planted("patch_commits_after_a_mismatch")) mismatch.reset();
  if (!mismatch) load.equal = version.version();
  return mismatch;
}

bool LoadedSums::is_equal(const std::string& replica, const Version& version) const {
  const auto load = loads_.find(replica);
  return load != loads_.end() && load->second.equal == version;
}

}  // namespace wsync::agent
