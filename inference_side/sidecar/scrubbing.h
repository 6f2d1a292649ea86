// Scrubbing: tells the ranks of a replica to read their weights again (ScrubPasses), and compares
// the sums that they return with the version that they serve, as after a load
// (reload/sum_check.h).
//
// Thread: the loop's; callbacks are called on the loop, never inside a call. The loop and the
// worker must outlive this object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/switch_events.h"
#include "inference_side/sidecar/engine_rank.h"
#include "inference_side/sidecar/readback.h"
#include "inference_side/sidecar/scrub_passes.h"
#include "inference_side/staging/store.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

// What a scrub has found in the memory of a replica.
struct ScrubMismatch {
  std::optional<std::uint32_t> rank;  // none: the staged bytes are not those of the version
  std::string tensor;
  std::string expected;  // sums, as sum_text()
  std::string found;
  // In one sentence: rank, tensor, version, expected and found.
  std::string what;
};

// The memory of one rank, as it was read.
struct ScrubbedRank {
  std::uint32_t rank = 0;
  std::shared_ptr<const std::vector<control::EngineTensor>> tensors;  // null: all, as a whole
  std::vector<SplitSum> sums;
};

// Compares the sums of all ranks of a replica with the version. Returns what differs, or
// std::nullopt. kInvalidInput if a rank has not returned the sums of all of its tensors. Any
// thread.
[[nodiscard]] Result<std::optional<ScrubMismatch>> compare_scrubbed(
    const staging::HeldVersion& version, const std::vector<ScrubbedRank>& ranks);

struct ScrubbingOptions {
  std::chrono::nanoseconds interval{};  // as in ScrubPasses
  std::uint32_t share_ppm = 10'000;     // as in control::Scrub
  // The connections of a replica's attached ranks.
  std::function<std::vector<std::shared_ptr<EngineRank>>(const std::string& replica)> ranks;
  // The version, if it is staged here.
  std::function<std::shared_ptr<const staging::HeldVersion>(const Version&)> find;
  // All bytes of the replica have to be loaded again, or it is given up.
  std::function<void(const std::string& replica, reload::RankDamaged damaged)> on_damaged;
  // A pass of a replica was judged; `cpu`: processor time of its ranks. For metrics.
  std::function<void(bool is_equal, std::chrono::nanoseconds cpu)> on_judged =
      [](bool, std::chrono::nanoseconds) {};
};

class Scrubbing {
 public:
  // Sums are compared on `worker`.
  Scrubbing(Loop& loop, Worker& worker, ScrubbingOptions options);
  Scrubbing(const Scrubbing&) = delete;
  Scrubbing& operator=(const Scrubbing&) = delete;
  // A comparison in progress reports nothing.
  ~Scrubbing() { *alive_ = false; }

  void attached(const EngineRank& rank, std::uint32_t world_size, const std::string& not_scrubbed);
  void detached(const EngineRank& rank);
  void committed(const EngineRank& rank, const Version& version, bool by_patch);
  void stopped(const EngineRank& rank) { passes_.set_serving(rank.replica, false); }
  void resumed(const EngineRank& rank) { passes_.set_serving(rank.replica, true); }
  void answered(const EngineRank& rank, control::Scrubbed answer);
  // `wsync verify` has found a difference. In a replica that is scrubbed, that is what a pass would
  // have found, and all bytes are loaded again. Of any other replica it is remembered until its
  // next load, which is one of all bytes. Returns what follows, in one sentence.
  [[nodiscard]] std::string verified(const EngineRank& rank, const ReadDifference& difference);

  [[nodiscard]] bool may_be_patched(const std::string& replica) const {
    return passes_.may_be_patched(replica, now());
  }
  [[nodiscard]] bool is_proved(const std::string& replica) const {
    return passes_.is_proved(replica);
  }
  // Fills in what is known of these replicas.
  void add_to(std::vector<control::ReplicaReport>& reports) const;

 private:
  void begin_due();
  void compare(const std::string& replica, ScrubPasses::Complete complete);
  void judge(const std::string& replica, const ScrubPasses::Complete& complete,
             const Result<std::optional<ScrubMismatch>>& outcome);
  // Has all bytes of the replica loaded again, or the replica given up. `by`: who has found it.
  // Returns what follows.
  std::string damaged(const std::string& replica, std::uint32_t rank, const std::string& by,
                      const std::string& what, ScrubPasses::Verdict verdict, bool is_copy_suspect);
  void notify(const std::string& replica, const control::Scrub& message) const;

  Loop& loop_;
  Worker& worker_;
  const ScrubbingOptions options_;
  ScrubPasses passes_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Timer timer_;
};

}  // namespace wsync::agent
