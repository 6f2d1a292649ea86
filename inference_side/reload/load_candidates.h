// LoadCandidates: which versions a replica may load now. A version has to be staged, must not be
// withdrawn, and is put off for a while after two loads of it have failed.
//
// Nothing says that a failed load is the fault of the copy: the engines may be short of memory. So
// a version that failed is tried again, at growing intervals.
//
// Thread: one. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::reload {

class LoadCandidates {
 public:
  // A version is put off for `retry` at first, for twice as long each time, and for `retry_max` at
  // most.
  LoadCandidates(std::chrono::nanoseconds retry, std::chrono::nanoseconds retry_max)
      : retry_(retry), retry_max_(retry_max), wait_(retry) {}

  [[nodiscard]] bool withdrawn(const Version& version) const;
  [[nodiscard]] bool loadable(const Version& version) const;
  // When the next version that was put off may be tried again.
  [[nodiscard]] std::optional<TimePoint> next_wake() const;

  // A copy that was replaced since its loads failed is tried at once: it holds other memory.
  void set_staged(std::vector<Version> versions);
  void set_withdrawn(std::vector<Version> versions) { withdrawn_ = std::move(versions); }
  // A decision was made: every version may be tried at once. `changed`: it has another target.
  void reset(bool changed);
  // Another process is attached: it may be able to load what the one before could not.
  void forget_failures() { put_off_.clear(); }
  // Versions whose time has come may be tried again.
  void expire(TimePoint now);

  // A load of this version begins.
  void begin(const Version& version);
  // Counts a failed load. True: the version gets a second chance at once.
  [[nodiscard]] bool count_failure() { return ++failures_ < 2; }
  // The version cannot be loaded at present.
  void put_off(const Version& version, TimePoint now);
  // Every rank has loaded the version. `target`: it is the decided one.
  void succeed(bool target);

  // kInternal with the first broken rule: a version is put off once, and after two failed loads at
  // the latest.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct PutOff {
    Version version;
    TimePoint until{};
  };

  std::chrono::nanoseconds retry_;
  std::chrono::nanoseconds retry_max_;
  std::chrono::nanoseconds wait_;  // of the next version that is put off
  std::vector<Version> staged_;
  std::vector<Version> withdrawn_;
  std::vector<PutOff> put_off_;
  Version attempted_;           // the last version whose load began
  std::uint32_t failures_ = 0;  // of its loads, one after the other
};

}  // namespace wsync::reload
