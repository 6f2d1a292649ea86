#include "inference_side/reload/load_candidates.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::reload {
namespace {

bool contains(const std::vector<Version>& set, const Version& version) {
  return std::ranges::find(set, version) != set.end();
}

}  // namespace

bool LoadCandidates::withdrawn(const Version& version) const {
  return contains(withdrawn_, version) && !planted("withdrawn_ignored");
}

bool LoadCandidates::loadable(const Version& version) const {
  return !version.none() && contains(staged_, version) && !withdrawn(version) && !unfit(version) &&
         !postponed(version);
}

bool LoadCandidates::postponed(const Version& version) const {
  return std::ranges::find(postponed_, version, &Postponed::version) != postponed_.end();
}

std::optional<std::string> LoadCandidates::unfit(const Version& version) const {
  if (planted("unfit_version_tried")) return std::nullopt;
  for (const auto& [rank, versions] : unfit_) {
    const auto found = std::ranges::find(versions, version, &UnfitVersion::version);
    if (found != versions.end())
      return fmt::format(
          "version {} does not fit rank {}: {}: publish the model of this engine, or end it",
          version.to_string(), rank, found->why);
  }
  return std::nullopt;
}

std::optional<TimePoint> LoadCandidates::next_wake() const {
  std::optional<TimePoint> wake;
  for (const Postponed& one : postponed_)
    if (!wake || one.until < *wake) wake = one.until;
  return wake;
}

void LoadCandidates::set_staged(std::vector<Version> versions) {
  // A copy that leaves the set, or that was not in the set when its load failed, counts as another
  // copy when it returns.
  std::erase_if(postponed_, [&](const Postponed& one) {
    return !contains(versions, one.version) || !contains(staged_, one.version);
  });
  staged_ = std::move(versions);
}

void LoadCandidates::set_unfit(std::uint32_t rank, std::vector<UnfitVersion> versions) {
  unfit_.erase(rank);
  if (!versions.empty()) unfit_[rank] = std::move(versions);
}

void LoadCandidates::add_unfit(std::uint32_t rank, UnfitVersion version) {
  std::vector<UnfitVersion>& known = unfit_[rank];
  if (std::ranges::find(known, version.version, &UnfitVersion::version) == known.end())
    known.push_back(std::move(version));
}

void LoadCandidates::reset(bool changed) {
  postponed_.clear();
  if (!changed) return;
  failures_ = 0;
  wait_ = retry_;
}

void LoadCandidates::expire(TimePoint now) {
  std::erase_if(postponed_, [now](const Postponed& one) { return now >= one.until; });
}

void LoadCandidates::begin(const Version& version) {
  if (version != attempted_) failures_ = 0;
  attempted_ = version;
}

void LoadCandidates::postpone(const Version& version, TimePoint now) {
  failures_ = 0;
  postponed_.push_back({.version = version, .until = now + wait_});
  wait_ = std::min(2 * wait_, retry_max_);
}

void LoadCandidates::succeed(bool target) {
  failures_ = 0;
  if (target) wait_ = retry_;
}

Result<> LoadCandidates::invariants() const {
  if (failures_ >= 2)
    return fail(ErrorCode::kInternal, "a version that has failed twice is tried again");
  for (const Postponed& one : postponed_)
    if (std::ranges::count(postponed_, one.version, &Postponed::version) != 1)
      return fail(ErrorCode::kInternal,
                  fmt::format("version {} is postponed twice", one.version.to_string()));
  return {};
}

}  // namespace wsync::reload
