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

// A list of the sums that one rank has returned, with the rank.
template <class Returned>
std::vector<Returned> list_returned(
    const std::vector<LoadedSums::Rank>& ranks,
    const std::function<Returned(const LoadedSums::Rank& rank)>& make) {
  std::vector<Returned> list;
  for (const LoadedSums::Rank& each : ranks)
    if (each.returns_sums) list.push_back(make(each));
  return list;
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
  if (patch != nullptr)
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
                                            }))
                   .mismatch;
  else
    mismatch = reload::check_sums(
                   {.manifest = version.manifest().get(),
                    .digests = &version.digests(),
                    .arena = version.data()},
                   list_returned<reload::LoadedRank>(ranks,
                                                     [&](const Rank& each) {
                                                       return reload::LoadedRank{
                                                           .rank = each.rank,
                                                           .tensors = each.load->plan.tensors(),
                                                           .ranges = *each.tensors,
                                                           .sums = load.sums.at(each.rank).now};
                                                     }))
                   .mismatch;
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
