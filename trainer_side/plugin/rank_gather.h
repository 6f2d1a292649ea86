// RankGather: what the other ranks of a trainer have told rank 0, and the wait for all of them. A
// version exists only when every rank has reported `snapshotted` for the same step; this is the
// place that says so.
//
// Steps only grow. A report of a step above the one that is gathered waits for its turn; one of a
// step that is over (gathered, failed, or passed) is refused, and the rank is told.
//
// What has been reported is there for good: the arena is held here, whatever becomes of its
// process. So a step that was lost with one rank is not over: the reports of the others wait for it
// to be published once more, and one that is said again (by the process that took the place of the
// lost one, too) has to be of the same bytes.
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

// One process of a rank. The one with the highest incarnation that was heard of is the rank.
struct RankProcess {
  std::uint32_t rank = 0;
  std::uint32_t incarnation = 0;
};

// The publish failed because a rank was lost before it had reported: no version came of it, and all
// ranks may publish the step once more.
[[nodiscard]] bool is_lost(const control::PublishStatus& status) noexcept;

class RankGather {
 public:
  explicit RankGather(std::uint32_t world_size) : world_size_(world_size) {}

  // Rank 0 and its world; the ranks that are expected are 1 .. world_size - 1.
  [[nodiscard]] std::uint32_t world_size() const noexcept { return world_size_; }

  // A rank has connected. A higher incarnation than that of the process which is this rank takes
  // its place, connected or not. kInvalidInput when it is no rank of this trainer or has another
  // world size; kBusy while another process of this incarnation is that rank; kFenced, naming both,
  // when one of a higher incarnation is, or was.
  [[nodiscard]] Result<> join(const control::RankHello& hello);
  // What the rank has of the model, for the reports that follow. kInvalidInput, naming the tensor;
  // kFenced as join().
  [[nodiscard]] Result<> describe(const RankProcess& process, const control::RankShards& shards);
  // The rank has a snapshot (or failed). `arena` is its arena. A step that waits with the same
  // content and layout is taken once, out of the newer arena; with others it fails on all ranks.
  // kRefused for that, and when the step is over; kBusy when too many of its steps wait; kFenced as
  // join().
  [[nodiscard]] Result<> report(const RankProcess& process, const control::Snapshotted& said,
                                UniqueFd arena);
  // The rank is gone; what it has reported stays good. Nothing happens when another process is that
  // rank by now.
  void leave(const RankProcess& process);

  // Waits until every other rank has reported `step`, then gives all shards as one model. `own` are
  // rank 0's, borrowed until the source is gone; the source holds read leases on the others'
  // arenas. kDeadline: which ranks are missing; kPeerLost: a rank went away meanwhile; kRefused: a
  // rank reports another step, two contents, or that it failed; kInvalidInput: the shards are not
  // one model, with rank and tensor; kCancelled after cancel(). The step is over after a failure,
  // except for kPeerLost: it may be collected again, and reports of it are taken all the time.
  [[nodiscard]] Result<std::unique_ptr<publish::WeightSource>> collect(
      std::uint64_t step, const std::vector<publish::RankTensor>& own, TimePoint deadline);
  // Steps up to this one are over: reports of them are dropped and refused, with this reason.
  void give_up(std::uint64_t step, const std::string& reason);
  // This step is about to be collected once more: reports of it are taken again if it is over.
  void expect(std::uint64_t step);
  // A rank was lost: collect() of this step, now or later, does not wait for reports that have not
  // come (kPeerLost). Until expect().
  void no_more(std::uint64_t step);
  // Ends collect(), now and later.
  void cancel();

 private:
  using Tensors = std::shared_ptr<const std::vector<publish::RankTensor>>;  // without bytes
  struct Report {
    control::Snapshotted said;
    Tensors tensors;
    UniqueFd arena;
    std::uint32_t pid = 0;
    std::uint64_t connection = 0;
    bool is_disputed = false;  // two contents were reported; `said` has the sentence
  };
  struct Rank {
    bool joined = false;
    std::uint32_t pid = 0;
    std::uint32_t incarnation = 0;
    std::uint64_t connection = 0;  // counts them
    Tensors tensors;
    std::uint64_t last_step = 0;  // on this connection
    std::deque<Report> reports;   // in the order of steps
    // What was gathered of it last, by which process.
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
  std::optional<Error> lost_;  // a rank went away while its report was awaited
  std::optional<std::uint64_t> no_more_;
  std::uint64_t over_ = 0;   // highest step that is over
  std::string over_reason_;  // of that step
  bool is_cancelled_ = false;
};

// The shards of one rank as tensors of their own: what its arena holds, in the order of a manifest.
// kInvalidInput, naming the tensor, when a range is outside of it or not in whole bytes.
[[nodiscard]] Result<TensorInfo> shard_info(const publish::RankTensor& tensor);
// As it travels, and back.
[[nodiscard]] control::EngineTensor to_message(const publish::RankTensor& tensor);
[[nodiscard]] Result<publish::RankTensor> from_message(const control::EngineTensor& tensor);

}  // namespace wsync::plugin
