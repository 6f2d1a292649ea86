// HeldVersions: the verified copies that a sidecar holds, and the checks of copies that a replica
// could not load.
//
// A copy is complete, or only what changes from another copy is here. Such a copy is made complete
// when it is needed: in the memory of the other one, of which only what changes is left then, or in
// memory of its own. The copies without bytes therefore form trees, each with a complete copy at
// its root.
//
// It does not decide which copy is needed; its owner knows the target and the switches.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "inference_side/staging/sidecar_events.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::staging {

// A verified copy.
struct HeldCopy {
  Version version;
  Digest content;
  std::uint64_t bytes = 0;
  bool was_target = false;  // a decision for it was stored here
  Version base = {};        // only what changes from this copy is here; none: it is complete
};

enum class CopyState : std::uint8_t {
  kAbsent,      // the store does not have it
  kHeld,        // complete and verified
  kChecking,    // held; its content digest is being computed again
  kChanges,     // verified; only what changes from its base is here
  kCompleting,  // it is being made complete
  kLent,        // its memory is being changed to that of a copy which is being made complete
};

[[nodiscard]] std::string_view copy_state_name(CopyState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable copy_transitions();

// This class has more than 25 methods, because copies without bytes lead from copies with bytes,
// and both are held under one limit.
class HeldVersions {
 public:
  // At most `limit` versions are held, and one more while it is not decided. `copies`: copies that
  // survived a restart.
  HeldVersions(std::uint64_t limit, std::vector<HeldCopy> copies);

  // The copy, or nullptr. Valid until the next change.
  [[nodiscard]] const HeldCopy* find(const Version& version) const;
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  // Ascending.
  [[nodiscard]] std::vector<Version> versions() const;
  // Those whose bytes are here, so that they can be loaded and compared with. Ascending.
  [[nodiscard]] std::vector<Version> complete_versions() const;
  // Those of which only what changes is here, and which are not being made complete. Ascending.
  [[nodiscard]] std::vector<Version> changes() const;
  // In the order in which they were staged.
  [[nodiscard]] std::vector<Version> oldest_first() const;
  // Copies whose version was never decided here, oldest first.
  [[nodiscard]] std::vector<Version> never_decided() const;
  // The greatest version below `target` that is not withdrawn.
  [[nodiscard]] std::optional<Version> rollback_target(const Version& target,
                                                       std::span<const Version> withdrawn) const;

  // A copy was verified for the first time.
  void add(HeldCopy copy);
  // Records that a decision for this version was stored. The version need not be held.
  void mark_decided(const Version& version);
  // Returns the versions that are no longer held: this one, after those of which only what changes
  // from it was here. Empty if it is not held. A running check of them becomes void.
  [[nodiscard]] std::vector<Version> remove(const Version& version);

  // The copies of which only what changes from this one is here.
  [[nodiscard]] std::vector<Version> dependents(const Version& version) const;
  // Whether its bytes are here. False if it is not held.
  [[nodiscard]] bool is_complete(const Version& version) const;
  // Whether its digest is being computed again.
  [[nodiscard]] bool is_checking(const Version& version) const;
  // Whether the copy is being made complete, or its memory is being changed.
  [[nodiscard]] bool is_changing(const Version& version) const;
  // The copy that must be made complete now, so that `version` is complete in the end: itself, or a
  // base of which only what changes is here as well. std::nullopt if it is not held, is complete,
  // or another copy is being made complete.
  [[nodiscard]] std::optional<Version> next_to_complete(const Version& version) const;
  // The copy is made complete from now on; `in_place`: in the memory of its base. Precondition:
  // next_to_complete() has returned it.
  [[nodiscard]] CompleteVersion begin_completion(const Version& version, bool in_place);
  // The version that is being made complete; none = 0.0.
  [[nodiscard]] Version completing() const noexcept { return completing_; }
  // The copy that is being made complete is complete. `in_place`: it has the memory of its base.
  // Returns the versions that are no longer held, as remove(): a base that lose() was called for.
  [[nodiscard]] std::vector<Version> complete(bool in_place);
  // It could not be made complete. `base_lost`: its memory had been changed already. Returns the
  // versions that are no longer held, as remove().
  [[nodiscard]] std::vector<Version> fail_completion(bool base_lost);
  // There was no memory for it, so what changes to it stays, and its base as it was. Returns the
  // versions that are no longer held, as complete().
  [[nodiscard]] std::vector<Version> put_off_completion();

  // A replica could not load this version. Returns the check to run; std::nullopt if the version is
  // not held or is already being checked.
  [[nodiscard]] std::optional<CheckCopy> check(const Version& version);
  // The version of this check; std::nullopt if the check has ended or is void.
  [[nodiscard]] std::optional<Version> checked_by(std::uint64_t check) const;
  // The check has ended: the copy is intact.
  void confirm(const Version& version);
  // The check has ended: the copy has changed. Returns the versions that are no longer held, as
  // remove(). While another copy is made of it, it stays, without being complete, and the end of
  // that returns it.
  [[nodiscard]] std::vector<Version> lose(const Version& version);

  // Returns kInternal with the first broken rule: at most `limit` versions and one more are held,
  // each once; a copy without bytes leads to a complete one; at most one is being made complete.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Entry {
    HeldCopy copy;
    CopyState state = CopyState::kAbsent;
    std::uint64_t check = 0;  // of the last check
    bool is_lost = false;     // that has found it changed, while another copy was made of it
  };

  void move(Entry& entry, CopyState to);
  [[nodiscard]] std::vector<Entry>::iterator at(const Version& version);
  [[nodiscard]] const Entry* entry_of(const Version& version) const;

  std::uint64_t limit_;
  std::vector<Entry> entries_;
  std::uint64_t checks_ = 0;
  Version completing_;
};

}  // namespace wsync::staging
