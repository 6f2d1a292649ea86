// RankGather: the reports of the other ranks to rank 0, and the wait for all of them. It decides
// whether a version exists: only when every rank has reported `snapshotted` for the same step.
//
// Steps only grow. A report of a step above the one that is being gathered waits for its turn. A
// report of a step that is over (gathered, failed, or passed) is refused.
//
// A report is committed data: rank 0 holds the arena, so the bytes stay good when the process of
// the rank ends. For that reason a step that failed because a rank was lost is not over. The
// reports of the other ranks are kept until the step is published again. A second report of the
// same step, by the same process or by the one that has replaced it, has to have the same content.
//
// Thread: every function may be called from any thread; collect() blocks, one at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/control/messages.h"
#include "trainer_side/publish/gathered_source.h"

namespace wsync::plugin {

// One process of a rank. The process with the highest known incarnation is the rank.
struct RankProcess {
  std::uint32_t rank = 0;
  std::uint32_t incarnation = 0;
};

// Whether the publish failed because a rank was lost before it had reported. No version exists
// then, and all ranks may publish the step again.
[[nodiscard]] bool is_lost(const control::PublishStatus& status) noexcept;

class RankGather {
 public:
  explicit RankGather(std::uint32_t world_size) : world_size_(world_size) {}

  // The number of ranks. Reports are expected of ranks 1 to world_size - 1.
  [[nodiscard]] std::uint32_t world_size() const noexcept { return world_size_; }

  // A rank has connected. A process with a higher incarnation replaces the process that is this
  // rank, connected or not. kInvalidInput: it is no rank of this trainer, or has another world
  // size. kBusy: another process of this incarnation is that rank. kFenced, naming both: a process
  // of a higher incarnation is or was that rank.
  [[nodiscard]] Result<> join(const control::RankHello& hello);
  // The part of the model that the rank holds, for the reports that follow. kInvalidInput, naming
  // the tensor; kFenced as join().
  [[nodiscard]] Result<> describe(const RankProcess& process, const control::RankShards& shards);
  // The rank has a snapshot, or has failed to take one. `arena` is its arena. When a report of the
  // same step waits already, with the same content and layout, the newer arena replaces the older
  // one; with another content the step fails on all ranks. kRefused: another content, or the step
  // is over. kBusy: too many steps of this rank wait. kFenced as join().
  [[nodiscard]] Result<> report(const RankProcess& process, const control::Snapshotted& snapshotted,
                                UniqueFd arena);
  // The rank has disconnected. Its reports stay good. Nothing happens when another process is that
  // rank by now.
  void leave(const RankProcess& process);

  // Waits until every other rank has reported `step`, then returns all shards as one model. `own`
  // are the shards of rank 0, borrowed until the source is destroyed; the source holds read leases
  // on the arenas of the others. kDeadline: names the missing ranks. kPeerLost: a rank was lost
  // meanwhile. kRefused: a rank reports another step, two contents, or a failure. kInvalidInput:
  // the shards are not one model; names rank and tensor. kCancelled: after cancel(). After a
  // failure the step is over, except after kPeerLost: then it may be collected again and accepts
  // reports.
  [[nodiscard]] Result<std::unique_ptr<publish::WeightSource>> collect(
      std::uint64_t step, const std::vector<publish::RankTensor>& own, TimePoint deadline);
  // Steps up to this one are over: their reports are dropped, and refused with this reason.
  void give_up(std::uint64_t step, const std::string& reason);
  // This step will be collected again: reports of it are accepted even if it is over.
  void expect(std::uint64_t step);
  // A rank was lost: collect() of this step, now or later, fails with kPeerLost instead of waiting
  // for missing reports. Holds until expect().
  void no_more(std::uint64_t step);
  // Ends collect(), now and later.
  void cancel();

 private:
  using Tensors = std::shared_ptr<const std::vector<publish::RankTensor>>;  // without bytes
  struct Report {
    control::Snapshotted snapshotted;
    Tensors tensors;
    UniqueFd arena;
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
    std::uint64_t last_step = 0;  // on this connection
    std::deque<Report> reports;   // in the order of steps
    // The step that was gathered of it last, and the process that had reported it.
    std::uint64_t gathered_step = 0;
    std::uint32_t gathered_pid = 0;
    Digest gathered_digest;
  };
  // Under mutex_:
  [[nodiscard]] static bool has_reported(const Rank& from, std::uint64_t step);
  [[nodiscard]] Result<> check_process(const RankProcess& process);
  void lose(std::uint32_t rank, std::string_view how);
  [[nodiscard]] Result<> report_again(std::uint32_t rank, Report& waiting, Report again);
  void reopen(std::uint64_t step);
  [[nodiscard]] Result<bool> complete(std::uint64_t step);
  [[nodiscard]] std::string missing(std::uint64_t step) const;
  void end_step(std::uint64_t step, const std::string& reason);

  const std::uint32_t world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Rank> ranks_;
  std::optional<std::uint64_t> collecting_;
  std::optional<Error> lost_;  // a rank was lost while its report was awaited
  std::optional<std::uint64_t> no_more_;
  std::uint64_t over_ = 0;   // highest step that is over
  std::string over_reason_;  // of that step
  bool is_cancelled_ = false;
};

// The shard of one rank as a tensor of its own, as it lies in the arena of that rank.
// kInvalidInput, naming the tensor, when a range is outside of it or not in whole bytes.
[[nodiscard]] Result<TensorInfo> shard_info(const publish::RankTensor& tensor);
// The description of a shard as a message, and back; without its bytes.
[[nodiscard]] control::EngineTensor to_message(const publish::RankTensor& tensor);
[[nodiscard]] Result<publish::RankTensor> from_message(const control::EngineTensor& tensor);

}  // namespace wsync::plugin
