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
  return !version.none() && contains(staged_, version) && !withdrawn(version) &&
         std::ranges::find(postponed_, version, &Postponed::version) == postponed_.end();
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
