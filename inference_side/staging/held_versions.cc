#include "inference_side/staging/held_versions.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::staging {
namespace {

constexpr auto kCopyTransitions = [] {
  using enum CopyState;
  return std::array<Transition<CopyState>, 15>{{
      {kAbsent, "its bytes are staged and verified", kHeld, "Staged"},
      {kAbsent, "what changes from another copy is staged and verified", kChanges, "Staged"},
      {kHeld, "two loads of it failed", kChecking, "CheckCopy"},
      {kChecking, "its bytes have not changed", kHeld, ""},
      {kHeld, "another version needs its memory, or it was never decided", kAbsent,
       "ReleaseVersion; heartbeat"},
      {kChecking, "its bytes have changed, or it is released", kAbsent,
       "ReleaseVersion; Hello, or heartbeat"},
      {kChanges, "it has become the target, or leads to it", kCompleting, "CompleteVersion"},
      {kChanges, "it is released, or its base is lost", kAbsent, "ReleaseVersion; heartbeat"},
      {kHeld, "its memory is to hold the target", kLent, ""},
      {kCompleting, "all its bytes are here", kHeld, ""},
      {kCompleting, "it cannot be made complete", kAbsent, "ReleaseVersion; Hello"},
      {kCompleting, "there is no memory for it, and the target does not need it", kChanges, ""},
      {kLent, "its memory holds the other copy", kChanges, ""},
      {kLent, "the other copy has memory of its own, or could not be made", kHeld, ""},
      {kLent, "its memory was changed, and holds no version", kAbsent, "ReleaseVersion; Hello"},
  }};
}();

}  // namespace

std::string_view copy_state_name(CopyState state) noexcept {
  switch (state) {
    case CopyState::kAbsent:
      return "absent";
    case CopyState::kHeld:
      return "held";
    case CopyState::kChecking:
      return "checking";
    case CopyState::kChanges:
      return "changes";
    case CopyState::kCompleting:
      return "completing";
    case CopyState::kLent:
      return "lent";
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

const HeldVersions::Entry* HeldVersions::entry_of(const Version& version) const {
  for (const Entry& entry : entries_)
    if (entry.copy.version == version) return &entry;
  return nullptr;
}

const HeldCopy* HeldVersions::find(const Version& version) const {
  const Entry* entry = entry_of(version);
  return entry == nullptr ? nullptr : &entry->copy;
}

bool HeldVersions::is_complete(const Version& version) const {
  const Entry* entry = entry_of(version);
  return entry != nullptr &&
         (entry->state == CopyState::kHeld ||
          (entry->state == CopyState::kChecking && !entry->is_lost) ||
          (entry->state == CopyState::kLent && planted("base_loaded_while_it_changes")));
}

bool HeldVersions::is_checking(const Version& version) const {
  const Entry* entry = entry_of(version);
  return entry != nullptr && entry->state == CopyState::kChecking;
}

bool HeldVersions::is_changing(const Version& version) const {
  const Entry* entry = entry_of(version);
  return entry != nullptr &&
         (entry->state == CopyState::kCompleting || entry->state == CopyState::kLent);
}

std::vector<Version> HeldVersions::complete_versions() const {
  std::vector<Version> complete = versions();
  std::erase_if(complete, [this](const Version& version) { return !is_complete(version); });
  return complete;
}

std::vector<Version> HeldVersions::changes() const {
  std::vector<Version> changes = versions();
  std::erase_if(changes, [this](const Version& version) {
    return entry_of(version)->state != CopyState::kChanges;
  });
  return changes;
}

std::vector<Version> HeldVersions::dependents(const Version& version) const {
  std::vector<Version> found;
  for (const Entry& entry : entries_)
    if (!version.none() && entry.copy.base == version) found.push_back(entry.copy.version);
  return found;
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
  move(entry, entry.copy.base.none() ? CopyState::kHeld : CopyState::kChanges);
  entries_.push_back(std::move(entry));
}

void HeldVersions::mark_decided(const Version& version) {
  if (const auto entry = at(version); entry != entries_.end()) entry->copy.was_target = true;
}

std::vector<Version> HeldVersions::remove(const Version& version) {
  std::vector<Version> removed;
  if (at(version) == entries_.end()) return removed;
  for (const Version& dependent : dependents(version)) {
    const auto more = remove(dependent);
    removed.insert(removed.end(), more.begin(), more.end());
  }
  const auto entry = at(version);
  move(*entry, CopyState::kAbsent);
  entries_.erase(entry);
  removed.push_back(version);
  return removed;
}

// ---- copies without bytes ----

std::optional<Version> HeldVersions::next_to_complete(const Version& version) const {
  if (!completing_.none()) return std::nullopt;
  const Entry* entry = entry_of(version);
  std::optional<Version> next;
  // The one that is nearest to the root.
  while (entry != nullptr && entry->state == CopyState::kChanges) {
    next = entry->copy.version;
    entry = entry_of(entry->copy.base);
  }
  return next;
}

CompleteVersion HeldVersions::begin_completion(const Version& version, bool in_place) {
  const auto entry = at(version);
  WSYNC_CHECK(entry != entries_.end() && completing_.none(), "one copy is completed at a time");
  move(*entry, CopyState::kCompleting);
  completing_ = version;
  if (in_place) move(*at(entry->copy.base), CopyState::kLent);
  return {.version = version, .base = entry->copy.base, .in_place = in_place};
}

std::vector<Version> HeldVersions::complete(bool in_place) {
  const auto entry = at(std::exchange(completing_, {}));
  WSYNC_CHECK(entry != entries_.end(), "what is being completed is held");
  const auto base = at(std::exchange(entry->copy.base, {}));
  move(*entry, CopyState::kHeld);
  if (base == entries_.end()) return {};
  if (base->is_lost) return remove(base->copy.version);
  if (base->state != CopyState::kLent) return {};
  if (in_place) base->copy.base = entry->copy.version;
  move(*base, in_place ? CopyState::kChanges : CopyState::kHeld);
  return {};
}

std::vector<Version> HeldVersions::fail_completion(bool base_lost) {
  const Version version = std::exchange(completing_, {});
  const Version base = at(version)->copy.base;
  const auto lent = at(base);
  if (base_lost || (lent != entries_.end() && lent->is_lost))
    return remove(base);  // and all that leads from it
  if (lent != entries_.end() && lent->state == CopyState::kLent) move(*lent, CopyState::kHeld);
  return remove(version);
}

std::vector<Version> HeldVersions::put_off_completion() {
  const auto entry = at(std::exchange(completing_, {}));
  move(*entry, CopyState::kChanges);
  const auto base = at(entry->copy.base);
  if (base == entries_.end()) return {};
  if (base->is_lost) return remove(base->copy.version);
  if (base->state == CopyState::kLent) move(*base, CopyState::kHeld);
  return {};
}

// ---- checks ----

std::optional<CheckCopy> HeldVersions::check(const Version& version) {
  const auto entry = at(version);
  if (entry == entries_.end() || entry->state != CopyState::kHeld) return std::nullopt;
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

std::vector<Version> HeldVersions::lose(const Version& version) {
  const auto entry = at(version);
  WSYNC_CHECK(entry != entries_.end(), "a checked copy is one that is held");
  const HeldCopy* made = find(completing_);
  if (made == nullptr || made->base != version) return remove(version);
  entry->is_lost = true;
  return {};
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
    const bool has_bytes =
        entry.state != CopyState::kChanges && entry.state != CopyState::kCompleting;
    if (has_bytes != entry.copy.base.none())
      return fail(
          ErrorCode::kInternal,
          fmt::format("the copy of {} is {}, and its base is {}", entry.copy.version.to_string(),
                      copy_state_name(entry.state), entry.copy.base.to_string()));
    // As many steps as there are copies lead to the root, or to nothing.
    const Entry* root = &entry;
    for (std::size_t i = 0; i < entries_.size() && root != nullptr && !root->copy.base.none(); ++i)
      root = entry_of(root->copy.base);
    if (root == nullptr || !root->copy.base.none())
      return fail(ErrorCode::kInternal, fmt::format("what changes in {} leads from no copy",
                                                    entry.copy.version.to_string()));
    const bool is_changing =
        entry.state == CopyState::kCompleting || entry.state == CopyState::kLent;
    if (is_changing && completing_.none())
      return fail(ErrorCode::kInternal,
                  fmt::format("the copy of {} is {}, while none is being made complete",
                              entry.copy.version.to_string(), copy_state_name(entry.state)));
  }
  if (const Entry* entry = entry_of(completing_);
      !completing_.none() && (entry == nullptr || entry->state != CopyState::kCompleting))
    return fail(ErrorCode::kInternal,
                fmt::format("{} is being made complete, but is not held", completing_.to_string()));
  return {};
}

}  // namespace wsync::staging
