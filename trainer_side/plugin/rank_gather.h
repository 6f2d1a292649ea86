// RankGather: collects the reports of the other ranks on rank 0, and waits for all of them. It
// decides whether a version exists: only if every rank has reported `snapshotted` for the same
// step.
//
// Steps only increase. A report of a step above the current one waits. A report of a step that is
// over (gathered, failed, or skipped) is refused.
//
// A report is committed data: rank 0 holds the arena, so the bytes stay valid when the process of
// the rank ends. A step that failed because a rank was lost is therefore not over: the reports of
// the other ranks are kept until the step is published again. A second report of the same step must
// have the same content, whether it comes from the same process or from its replacement.
//
// A rank on another host keeps the bytes of its report, and serves them. When all have reported,
// collect() asks each of these for the sums of its part (part_arrangement.h). A report of such a
// rank ends with its connection, because its bytes may be gone.
//
// Thread: every function may be called from any thread; collect() blocks, one call at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unique_fd.h"
#include "shared/config/defaults.h"
#include "shared/control/messages.h"
#include "trainer_side/plugin/part_arrangement.h"
#include "trainer_side/publish/gathered_source.h"

namespace wsync::plugin {

// One process of a rank. The process with the highest known incarnation is the rank.
struct RankProcess {
  std::uint32_t rank = 0;
  std::uint32_t incarnation = 0;
};

// Returns whether the publish failed because a rank was lost before its report. No version exists
// then, and all ranks may publish the step again.
[[nodiscard]] bool is_lost(const control::PublishStatus& status) noexcept;

// This class has more than 350 lines of methods: reports and their loss, and the wait for reports
// and sums, share one lock.
class RankGather {
 public:
  // What collect() asks of ranks on other hosts, by rank, and the number of that question.
  using Orders = std::map<std::uint32_t, control::PartWanted>;
  struct Observer {
    // Called on the thread of collect(). Answers come by part_summed().
    std::function<void(std::uint64_t question, const Orders&)> on_parts_wanted =
        [](std::uint64_t, const Orders&) {};
    // The parts of this question are needed no longer. Called once for each, on any thread.
    std::function<void(std::uint64_t question)> on_parts_released = [](std::uint64_t) {};
  };
  // `bucket_bytes`: of the transfer of versions with parts.
  explicit RankGather(std::uint32_t world_size,
                      std::uint64_t bucket_bytes = config::kBucketBytesDefault)
      : world_size_(world_size), bucket_bytes_(bucket_bytes) {}
  // Call it before anything else. What the observer uses must outlive all versions of collect().
  void observe(Observer observer) { observer_ = std::move(observer); }

  // The number of ranks. Reports are expected of ranks 1 to world_size - 1.
  [[nodiscard]] std::uint32_t world_size() const noexcept { return world_size_; }

  // A rank has connected. A process with a higher incarnation replaces the current process of this
  // rank, connected or not. Returns kInvalidInput if the trainer has no such rank, or if the world
  // size differs; kBusy if another process with this incarnation is the rank; kFenced, with both,
  // if a process with a higher incarnation is or was the rank.
  [[nodiscard]] Result<> join(const control::RankHello& hello);
  // Sets the part of the model that the rank holds, for the following reports. Returns
  // kInvalidInput with the tensor; kFenced as join().
  [[nodiscard]] Result<> describe(const RankProcess& process, const control::RankShards& shards);
  // The rank has a snapshot in `arena`, or has failed to take one. If a report of the same step
  // with the same content and layout is already waiting, the newer arena replaces the older one. If
  // the content differs, the step fails on all ranks. Returns kRefused if the content differs or
  // the step is over; kBusy if too many steps of this rank are waiting; kFenced as join().
  [[nodiscard]] Result<> report(const RankProcess& process, const control::Snapshotted& snapshotted,
                                UniqueFd arena);
  // The rank is on another host, and serves its parts there. kInvalidInput if a description cannot
  // be used; kFenced as join().
  [[nodiscard]] Result<> serve(const RankProcess& process, const control::RankServes& serves);
  // The answer to a question of collect(); dropped if nobody waits for it. kFenced as join().
  [[nodiscard]] Result<> part_summed(const RankProcess& process, control::PartSummed summed);
  // The rank has disconnected. Its reports stay valid, unless it is on another host. No effect if
  // another process is now the rank.
  void leave(const RankProcess& process);

  // Waits until every other rank has reported `step`, then returns all shards as one model. `own`
  // are the shards of rank 0, borrowed until the source is destroyed. The source holds read leases
  // on the arenas of the other ranks. If some are on other hosts, it has the sums of what they
  // serve (WeightSource::parted()).
  //
  // kDeadline: names the missing ranks. kPeerLost: a rank was lost during the wait. kRefused: a
  // rank reports another step, two contents, or a failure. kInvalidInput: the shards do not form
  // one model; names rank and tensor. kCancelled: after cancel(). After a failure the step is over,
  // except after kPeerLost: it may then be collected again, and accepts reports.
  [[nodiscard]] Result<std::unique_ptr<publish::WeightSource>> collect(
      std::uint64_t step, const std::vector<publish::RankTensor>& own, TimePoint deadline);
  // Steps up to this one are over: their reports are dropped, and new ones refused with this
  // reason.
  void give_up(std::uint64_t step, const std::string& reason);
  // This step will be collected again: its reports are accepted even if it is over.
  void expect(std::uint64_t step);
  // A rank was lost: a current or later collect() of this step fails with kPeerLost instead of
  // waiting for missing reports. Applies until expect().
  void no_more(std::uint64_t step);
  // Ends a running collect() and all later ones.
  void cancel();

 private:
  using Tensors = std::shared_ptr<const std::vector<publish::RankTensor>>;  // without bytes
  struct Report {
    control::Snapshotted snapshotted;
    Tensors tensors;
    UniqueFd arena;  // none: the rank serves it
    std::uint32_t pid = 0;
    std::uint64_t connection = 0;
    bool is_disputed = false;  // two contents were reported; `snapshotted.failure` says which
  };
  struct Rank {
    bool joined = false;
    std::uint32_t pid = 0;
    std::uint32_t incarnation = 0;
    std::uint64_t connection = 0;  // counts connections
    Tensors tensors;
    std::optional<coordinator::PartOwner> owner;  // set: it is on another host
    std::uint64_t last_step = 0;                  // on this connection
    std::deque<Report> reports;                   // in the order of steps
    // The last step that was gathered from this rank, and the process that reported it.
    std::uint64_t gathered_step = 0;
    std::uint32_t gathered_pid = 0;
    Digest gathered_digest;
  };
  // Protected by mutex_:
  [[nodiscard]] static bool has_reported(const Rank& from, std::uint64_t step);
  [[nodiscard]] Result<> check_process(const RankProcess& process);
  void lose(std::uint32_t rank, std::string_view how);
  [[nodiscard]] Result<> report_again(std::uint32_t rank, Report& waiting, Report again);
  void reopen(std::uint64_t step);
  [[nodiscard]] Result<bool> complete(std::uint64_t step);
  [[nodiscard]] std::string missing(std::uint64_t step) const;
  void end_step(std::uint64_t step, const std::string& reason);

  // The shards of all ranks, those on other hosts without their bytes, in rank order.
  struct Gathered {
    std::vector<std::vector<publish::RankTensor>> ranks;
    std::vector<ArenaView> views;
  };
  [[nodiscard]] Result<Gathered> map_reports(const std::vector<publish::RankTensor>& own,
                                             const std::vector<Report>& reports, bool is_any_lost);
  [[nodiscard]] Result<std::unique_ptr<publish::WeightSource>> assemble(
      std::uint64_t step, const std::vector<publish::RankTensor>& own,
      const std::vector<Report>& reports, bool is_any_lost, TimePoint deadline);
  // Waits for the answers. `reports`: of ranks 1, 2, ...
  [[nodiscard]] Result<> await_parts(PartArrangement& arrangement,
                                     const std::vector<Report>& reports, TimePoint deadline);

  const std::uint32_t world_size_;
  const std::uint64_t bucket_bytes_;
  Observer observer_;
  KeptMappings kept_;  // of the arenas of ranks; synchronises itself
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Rank> ranks_;
  std::optional<std::uint64_t> collecting_;
  // Numbered from a random one on, so that no answer to another rank 0 is taken for one.
  std::uint64_t questions_ = std::random_device()();
  std::optional<std::uint64_t> summing_;                 // the question that waits for answers
  std::uint64_t collecting_step_ = 0;                    // which it is about
  std::map<std::uint32_t, control::PartSummed> summed_;  // to that question, by rank
  bool is_any_lost_ = false;   // a rank was lost since the last step was collected
  std::optional<Error> lost_;  // a rank was lost before its report arrived
  // The same of a rank on another host, whose loss is noticed late: the next process of it may be
  // about to connect. It counts from this time on, unless the rank joins before.
  struct Missed {
    std::uint32_t rank = 0;
    TimePoint until;
    Error why;
  };
  std::optional<Missed> missed_;
  std::optional<std::uint64_t> no_more_;
  std::uint64_t over_ = 0;   // highest step that is over
  std::string over_reason_;  // of that step
  bool is_cancelled_ = false;
};

// Describes the shard of one rank as a separate tensor, as it lies in the arena of that rank.
// Returns kInvalidInput, with the tensor, if a range is outside of it or does not consist of whole
// bytes.
[[nodiscard]] Result<TensorInfo> shard_info(const publish::RankTensor& tensor);
// Converts the description of a shard, without its bytes, to a message and back.
[[nodiscard]] control::EngineTensor to_message(const publish::RankTensor& tensor);
[[nodiscard]] Result<publish::RankTensor> from_message(const control::EngineTensor& tensor);

}  // namespace wsync::plugin
