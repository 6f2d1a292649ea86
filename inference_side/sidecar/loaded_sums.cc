#include "inference_side/sidecar/loaded_sums.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"

namespace wsync::agent {

std::optional<reload::SumMismatch> LoadedSums::add(const std::string& replica, std::uint32_t rank,
                                                   std::vector<SplitSum> sums,
                                                   const std::vector<Rank>& ranks,
                                                   const staging::HeldVersion& version) {
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
  if (sums.size() != expected)
    return unusable(
        fmt::format("has returned the sums of {} tensors, expected {}", sums.size(), expected));
  Load& load = loads_[replica];
  load.sums[rank] = std::move(sums);
  load.equal.reset();
  std::vector<reload::LoadedRank> loaded;
  for (const Rank& each : ranks) {
    const auto found = load.sums.find(each.rank);
    if (found == load.sums.end()) return std::nullopt;
    if (each.returns_sums)
      loaded.push_back({.rank = each.rank,
                        .tensors = each.load->plan.tensors(),
                        .ranges = *each.tensors,
                        .sums = found->second});
  }
  auto mismatch = reload::check_sums({.manifest = version.manifest().get(),
                                      .digests = &version.digests(),
                                      .arena = version.data()},
                                     loaded)
                      .mismatch;
  if (!mismatch) load.equal = version.version();
  return mismatch;
}

bool LoadedSums::is_equal(const std::string& replica, const Version& version) const {
  const auto load = loads_.find(replica);
  return load != loads_.end() && load->second.equal == version;
}

}  // namespace wsync::agent
