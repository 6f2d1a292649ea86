// LoadCandidates: the versions that a replica may load now. A version must be staged, must fit
// every attached rank, and must not be withdrawn. After two failed loads a version is deferred for
// a while.
//
// A failed load does not prove that the copy is bad: the engines may be short of memory, for
// example. So a failed version is tried again, at growing intervals.
//
// Thread: confined to one thread. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/switch_events.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::reload {

class LoadCandidates {
 public:
  // A version is deferred for `retry` at first, then for twice as long each time, up to
  // `retry_max`.
  LoadCandidates(std::chrono::nanoseconds retry, std::chrono::nanoseconds retry_max)
      : retry_(retry), retry_max_(retry_max), wait_(retry) {}

  [[nodiscard]] bool withdrawn(const Version& version) const;
  [[nodiscard]] bool loadable(const Version& version) const;
  // Whether it is deferred. One that is not staged is no longer so after set_staged().
  [[nodiscard]] bool postponed(const Version& version) const;
  // Why an attached rank cannot take the version, in one sentence with the rank, the tensor and
  // what to do; std::nullopt if it fits, as far as is known.
  [[nodiscard]] std::optional<std::string> unfit(const Version& version) const;
  // When the next deferred version may be tried again.
  [[nodiscard]] std::optional<TimePoint> next_wake() const;

  // Sets the staged versions. A copy that was replaced since its loads failed may be tried at once,
  // because it is in other memory.
  void set_staged(std::vector<Version> versions);
  void set_withdrawn(std::vector<Version> versions) { withdrawn_ = std::move(versions); }
  // What does not fit a rank that is attached now. It replaces what was known of the rank.
  void set_unfit(std::uint32_t rank, std::vector<UnfitVersion> versions);
  // One more version does not fit the rank.
  void add_unfit(std::uint32_t rank, UnfitVersion version);
  // The rank is no longer attached.
  void forget_rank(std::uint32_t rank) { unfit_.erase(rank); }
  // A decision was made, so every version may be tried at once. `changed`: the decision has another
  // target.
  void reset(bool changed);
  // Another process is attached. It may be able to load what the previous process could not.
  void forget_failures() { postponed_.clear(); }
  // Allows versions whose deferral has ended to be tried again.
  void expire(TimePoint now);

  // A load of this version begins.
  void begin(const Version& version);
  // Counts a failed load. Returns true if the version may be tried a second time at once.
  [[nodiscard]] bool count_failure() { return ++failures_ < 2; }
  // Defers a version that cannot be loaded at present.
  void postpone(const Version& version, TimePoint now);
  // Every rank has loaded the version. `target`: it is the decided version.
  void succeed(bool target);

  // Returns kInternal with the first broken rule: a version is deferred at most once, and a version
  // with two failed loads is deferred.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Postponed {
    Version version;
    TimePoint until{};
  };

  std::chrono::nanoseconds retry_;
  std::chrono::nanoseconds retry_max_;
  std::chrono::nanoseconds wait_;  // of the next version that is deferred
  std::vector<Version> staged_;
  std::vector<Version> withdrawn_;
  std::vector<Postponed> postponed_;
  std::map<std::uint32_t, std::vector<UnfitVersion>> unfit_;  // by rank
  Version attempted_;                                         // the last version whose load began
  std::uint32_t failures_ = 0;                                // its consecutive failed loads
};

}  // namespace wsync::reload
