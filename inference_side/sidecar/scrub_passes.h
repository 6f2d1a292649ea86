// ScrubPasses: which replica reads its weights again, and when; which sums have come; and when all
// bytes of a replica were compared last. A pass begins on all ranks of a replica at once. Each rank
// returns its sums when it has read everything, and again when a patch was committed after that, so
// the sums of all ranks are compared under one version however often the fleet switches.
//
// Pure. Thread: confined to one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"

namespace wsync::agent {

class ScrubPasses {
 public:
  // So many mismatches in a row may be found. After each but the last one, all bytes are loaded
  // again, and the next pass follows at once.
  static constexpr std::uint32_t kMismatchesMax = 3;
  // After so many passes in a row without sums, while it served or because changed layers were
  // loaded, the replica counts as not scrubbed, until there is a proof.
  static constexpr std::uint32_t kFailuresMax = 2;

  // Between the beginnings of two passes of a replica, and from a load of all bytes to a pass. 0:
  // there are no passes.
  explicit ScrubPasses(std::chrono::nanoseconds interval) : interval_(interval) {}

  // ---- what happens to ranks ----

  // `not_scrubbed`: as in EngineHello. `active`: what the rank holds, 0.0 for nothing.
  void attached(const std::string& replica, std::uint32_t rank, std::uint32_t world_size,
                const std::string& not_scrubbed, const Version& active, TimePoint now);
  void detached(const std::string& replica, std::uint32_t rank);
  // The rank has committed what it has loaded. All of the replica's ranks load in the same way.
  void committed(const std::string& replica, std::uint32_t rank, const Version& version,
                 bool by_patch, TimePoint now);
  // A rank of the replica has stopped, or one serves again. A rank that stands still may be loaded,
  // and a pass that ends without sums meanwhile does not say that the rank cannot be read.
  void set_serving(const std::string& replica, bool is_serving);
  // The replica has no engines, and is not shown any more.
  void forget(const std::string& replica) { replicas_.erase(replica); }

  // ---- passes ----

  struct Begin {
    std::string replica;
    std::uint64_t pass = 0;
  };
  // The passes that begin now, on each rank of the replica.
  [[nodiscard]] std::vector<Begin> due(TimePoint now);
  // When due() has something to return; std::nullopt: not without another event.
  [[nodiscard]] std::optional<TimePoint> next_due() const;

  // The sums of all ranks of a replica under one version.
  struct Complete {
    std::uint64_t pass = 0;
    Version version;
    TimePoint begin{};                                    // nothing was read before
    std::chrono::nanoseconds cpu{0};                      // processor time of all ranks
    std::map<std::uint32_t, std::vector<SplitSum>> sums;  // by rank
  };
  // A rank has answered. Returns the sums if they are to be compared now. Answers of other passes
  // are dropped. If the rank has no sums, the pass ends without a result, and is repeated later.
  // `takes_layers`: loads by patches end the passes of the rank. So one without sums counts also if
  // nothing is served: a replica that is switched before it has read everything would never be
  // proved again.
  [[nodiscard]] std::optional<Complete> answered(const std::string& replica, std::uint32_t rank,
                                                 control::Scrubbed answer, TimePoint now,
                                                 bool takes_layers = false);
  // They could not be compared; there is another pass later. The pass has ended, if it runs.
  void dropped(const std::string& replica, std::uint64_t pass, TimePoint now);
  // They are those of the version. Returns false if the pass has ended meanwhile: then all bytes
  // were loaded, or a rank was lost, and the result says nothing.
  bool proved(const std::string& replica, const Complete& complete, TimePoint now);
  enum class Verdict : std::uint8_t {
    kStale,   // the pass has ended meanwhile
    kMend,    // all bytes are to be loaded again
    kGiveUp,  // they have been, and it has not helped
  };
  // They are not. `what`: the sentence for reports.
  [[nodiscard]] Verdict mismatched(const std::string& replica, std::uint64_t pass,
                                   const std::string& what);
  // The same, found outside of a pass in bytes that were read before `read`. A pass that runs ends,
  // because it may have read them when they were right. What is found in other ranks until all
  // bytes were loaded is the same mismatch. kStale: all bytes were compared again after `read`.
  [[nodiscard]] Verdict found_to_differ(const std::string& replica, const std::string& what,
                                        TimePoint read);

  // ---- views ----

  // Whether every attached rank of the replica is scrubbed, and its passes return sums, so that
  // what a patch leaves alone is looked at from time to time.
  [[nodiscard]] bool is_scrubbed(const std::string& replica) const;
  // Whether all bytes of the replica were compared since its ranks attached here, by a load or by a
  // pass, and none was found to differ since then. Without that, nothing is known of what a patch
  // leaves alone.
  [[nodiscard]] bool is_proved(const std::string& replica) const;
  // Why its ranks are not scrubbed, or why the newest of several passes has returned no sums; empty
  // if they are.
  [[nodiscard]] std::string not_scrubbed(const std::string& replica) const;
  // Whether the replica may be switched by a patch: it is scrubbed, or, where it cannot be, all of
  // its bytes were loaded within the interval. So nowhere is a byte left alone for longer.
  [[nodiscard]] bool may_be_patched(const std::string& replica, TimePoint now) const;
  // Fills in what is known of its replica.
  void add_to(control::ReplicaReport& report, TimePoint now) const;

 private:
  struct Rank {
    std::string not_scrubbed;
    Version active;
  };
  struct Replica {
    std::uint32_t world_size = 1;
    std::map<std::uint32_t, Rank> ranks;
    std::uint64_t pass = 0;                           // that runs; 0: none
    std::map<std::uint32_t, control::Scrubbed> sums;  // of it, by rank
    std::map<std::uint32_t, TimePoint> begins;        // of it, when its rank has begun
    std::optional<TimePoint> due;                     // the next pass
    Version proved;
    TimePoint proved_at{};
    std::uint32_t in_a_row = 0;  // mismatches
    bool is_mending = false;     // all bytes are to be loaded, and have not been yet
    bool is_serving = false;     // as far as its ranks have told
    std::uint32_t failures = 0;  // passes in a row without sums, while it served
    std::string failure;         // of the newest one
    std::uint64_t mismatches = 0;
    std::string last_mismatch;
  };
  // Why no pass can begin; empty: one can.
  [[nodiscard]] std::string why_no_pass(const Replica& replica) const;
  // The same, or why passes return no sums.
  [[nodiscard]] std::string not_scrubbed(const Replica& replica) const;
  // All bytes of it were compared with this version, as they were then.
  static void prove(Replica& replica, const Version& version, TimePoint when);
  // What every rank holds; std::nullopt if ranks are missing or differ.
  [[nodiscard]] static std::optional<Version> uniform(const Replica& replica);
  static void end_pass(Replica& replica);
  [[nodiscard]] static Verdict mismatched(Replica& replica, const std::string& what);
  [[nodiscard]] Replica* running(const std::string& replica, std::uint64_t pass);

  std::chrono::nanoseconds interval_;
  std::uint64_t next_pass_ = 1;
  std::map<std::string, Replica> replicas_;
};

}  // namespace wsync::agent
