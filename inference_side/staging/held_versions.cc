#include "inference_side/staging/held_versions.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::staging {
namespace {

constexpr std::array<Transition<CopyState>, 5> kCopyTransitions = {{
    {CopyState::kAbsent, "its bytes are staged and verified", CopyState::kHeld, "Staged"},
    {CopyState::kHeld, "two loads of it failed", CopyState::kChecking, "CheckCopy"},
    {CopyState::kChecking, "its bytes have not changed", CopyState::kHeld, ""},
    {CopyState::kHeld, "another version needs its memory, or it was never decided",
     CopyState::kAbsent, "ReleaseVersion; heartbeat"},
    {CopyState::kChecking, "its bytes have changed, or it is released", CopyState::kAbsent,
     "ReleaseVersion; Hello, or heartbeat"},
}};

}  // namespace

std::string_view copy_state_name(CopyState state) noexcept {
  switch (state) {
    case CopyState::kAbsent:
      return "absent";
    case CopyState::kHeld:
      return "held";
    case CopyState::kChecking:
      return "checking";
  }
  return "unknown";
}

TransitionTable copy_transitions() {
  return describe<CopyState>("HeldVersions", "One version's copy in a sidecar.", kCopyTransitions,
                             copy_state_name);
}

HeldVersions::HeldVersions(std::uint64_t limit, std::vector<HeldCopy> copies) : limit_(limit) {
  for (HeldCopy& copy : copies) add(std::move(copy));
}

void HeldVersions::move(Entry& entry, CopyState to) {
  WSYNC_CHECK(allows<CopyState>(kCopyTransitions, entry.state, to),
              fmt::format("the copy of {} cannot go from {} to {}", entry.copy.version.to_string(),
                          copy_state_name(entry.state), copy_state_name(to)));
  entry.state = to;
}

std::vector<HeldVersions::Entry>::iterator HeldVersions::at(const Version& version) {
  return std::ranges::find_if(entries_,
                              [&](const Entry& entry) { return entry.copy.version == version; });
}

const HeldCopy* HeldVersions::find(const Version& version) const {
  for (const Entry& entry : entries_)
    if (entry.copy.version == version) return &entry.copy;
  return nullptr;
}

std::vector<Version> HeldVersions::versions() const {
  std::vector<Version> versions = oldest_first();
  std::ranges::sort(versions);
  return versions;
}

std::vector<Version> HeldVersions::oldest_first() const {
  std::vector<Version> versions;
  for (const Entry& entry : entries_) versions.push_back(entry.copy.version);
  return versions;
}

std::vector<Version> HeldVersions::never_decided() const {
  std::vector<Version> versions;
  for (const Entry& entry : entries_)
    if (!entry.copy.was_target) versions.push_back(entry.copy.version);
  return versions;
}

std::optional<Version> HeldVersions::rollback_target(const Version& target,
                                                     std::span<const Version> withdrawn) const {
  std::optional<Version> greatest;
  for (const Entry& entry : entries_) {
    const Version& version = entry.copy.version;
    if (version >= target || std::ranges::find(withdrawn, version) != withdrawn.end()) continue;
    if (!greatest || *greatest < version) greatest = version;
  }
  return greatest;
}

void HeldVersions::add(HeldCopy copy) {
  Entry entry{.copy = std::move(copy)};
  move(entry, CopyState::kHeld);
  entries_.push_back(std::move(entry));
}

void HeldVersions::mark_decided(const Version& version) {
  if (const auto entry = at(version); entry != entries_.end()) entry->copy.was_target = true;
}

bool HeldVersions::remove(const Version& version) {
  const auto entry = at(version);
  if (entry == entries_.end()) return false;
  move(*entry, CopyState::kAbsent);
  entries_.erase(entry);
  return true;
}

std::optional<CheckCopy> HeldVersions::check(const Version& version) {
  const auto entry = at(version);
  if (entry == entries_.end() || entry->state == CopyState::kChecking) return std::nullopt;
  move(*entry, CopyState::kChecking);
  entry->check = ++checks_;
  return CheckCopy{.check = entry->check, .version = version};
}

std::optional<Version> HeldVersions::checked_by(std::uint64_t check) const {
  for (const Entry& entry : entries_)
    if (entry.state == CopyState::kChecking && entry.check == check) return entry.copy.version;
  return std::nullopt;
}

void HeldVersions::confirm(const Version& version) {
  const auto entry = at(version);
  WSYNC_CHECK(entry != entries_.end(), "a checked copy is one that is held");
  move(*entry, CopyState::kHeld);
}

Result<> HeldVersions::invariants() const {
  if (entries_.size() > limit_ + 1)
    return fail(ErrorCode::kInternal,
                fmt::format("{} versions held, at most {} allowed", entries_.size(), limit_ + 1));
  for (const Entry& entry : entries_) {
    const auto same = [&](const Entry& other) { return other.copy.version == entry.copy.version; };
    if (std::ranges::count_if(entries_, same) != 1)
      return fail(ErrorCode::kInternal,
                  fmt::format("version {} is held twice", entry.copy.version.to_string()));
  }
  return {};
}

}  // namespace wsync::staging
