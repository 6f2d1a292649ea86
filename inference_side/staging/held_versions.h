// HeldVersions: the complete and verified copies that a sidecar holds, and the checks of copies
// that a replica could not load.
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

// A complete and verified copy.
struct HeldCopy {
  Version version;
  Digest content;
  std::uint64_t bytes = 0;
  bool was_target = false;  // a decision for it was stored here
};

enum class CopyState : std::uint8_t {
  kAbsent,    // the store does not have it
  kHeld,      // verified
  kChecking,  // held; its content digest is being computed again
};

[[nodiscard]] std::string_view copy_state_name(CopyState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable copy_transitions();

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
  // Returns false if the version is not held. A running check of it becomes void.
  [[nodiscard]] bool remove(const Version& version);

  // A replica could not load this version. Returns the check to run; std::nullopt if the version is
  // not held or is already being checked.
  [[nodiscard]] std::optional<CheckCopy> check(const Version& version);
  // The version of this check; std::nullopt if the check has ended or is void.
  [[nodiscard]] std::optional<Version> checked_by(std::uint64_t check) const;
  // The check has ended: the copy is intact.
  void confirm(const Version& version);

  // Returns kInternal with the first broken rule: at most `limit` versions and one
  // more are held, each once.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Entry {
    HeldCopy copy;
    CopyState state = CopyState::kAbsent;
    std::uint64_t check = 0;  // of the last check
  };

  void move(Entry& entry, CopyState to);
  [[nodiscard]] std::vector<Entry>::iterator at(const Version& version);

  std::uint64_t limit_;
  std::vector<Entry> entries_;
  std::uint64_t checks_ = 0;
};

}  // namespace wsync::staging
