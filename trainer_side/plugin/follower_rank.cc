// FollowerRank: ranks 1 and above. Each copies its shards into its own arenas and reports them to
// rank 0, from which it receives the status of the version. A rank on the host of rank 0 hands its
// arenas over; one on another host serves them to sidecars (PartServer).
#include <algorithm>
#include <chrono>
#include <list>
#include <optional>
#include <stop_token>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"
#include "shared/control/codec.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "trainer_side/plugin/leader_link.h"
#include "trainer_side/plugin/part_server.h"
#include "trainer_side/plugin/rank_gather.h"
#include "trainer_side/plugin/rank_role.h"
#include "trainer_side/publish/publisher.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::plugin {
namespace {

using control::PublishState;

// Rank 0 reads one arena while the next one is written.
constexpr std::uint32_t kArenas = 2;

Result<publish::MemorySource> shard_source(const std::vector<publish::RankTensor>& tensors) {
  std::vector<publish::MemoryTensor> shards;
  shards.reserve(tensors.size());
  for (const publish::RankTensor& tensor : tensors) {
    auto info = WSYNC_TRY(shard_info(tensor));
    shards.push_back({.info = std::move(info), .bytes = tensor.bytes});
  }
  return publish::MemorySource::create(std::move(shards));
}

// The class has more than 25 methods: each command of a rank and each message of the leader has its
// own method.
class FollowerRank final : public RankRole {
 public:
  FollowerRank(Loop& loop, const RankSettings& settings, PublishBoard& board)
      : loop_(loop),
        settings_(settings),
        board_(board),
        snapshotter_(std::make_shared<publish::Snapshotter>(publish::SnapshotterOptions{
            .name = fmt::format("wsync-rank{}", settings.rank),
            // Rank 0 needs what it serves of as many versions as rank 0 has arenas. It makes room
            // for the next one when all ranks have their snapshots of that.
            .arenas = settings.config.leader.empty() ? kArenas : settings.config.arenas + 1,
            .threads = publish::Publisher::threads(settings.config.snapshot_threads),
            .huge_pages = settings.config.memory.huge_pages,
            .numa_node = settings.config.memory.numa_node,
            .near_gpus = settings.config.memory.near_gpus})),
        deadline_(loop, [this] { check_deadlines(); }),
        worker_(std::make_unique<Worker>(
            loop, WorkerOptions{.name = "snapshot", .max_queued = limits::kPublishesRemembered})) {}
  ~FollowerRank() override {
    stop_.request_stop();
    worker_->stop();
  }
  FollowerRank(const FollowerRank&) = delete;
  FollowerRank& operator=(const FollowerRank&) = delete;

  [[nodiscard]] Result<> start();
  void publish(PublishOrder order) override;
  [[nodiscard]] DraftMemory draft_memory() const override {
    return {.snapshotter = snapshotter_, .bucket_bytes = config::kBucketBytesDefault};
  }
  void give_up(std::uint64_t /*step*/) override {}  // its snapshots do not wait for anything
  void roll_back(const Version& /*to*/,
                 std::function<void(Result<control::RollbackReply>)> on_done) override {
    on_done(fail(ErrorCode::kInvalidInput,
                 fmt::format("rank {} cannot roll back: only rank 0 can", settings_.rank)));
  }

 private:
  using Taken = Result<std::shared_ptr<const publish::Snapshot>>;
  // One publish, from its snapshot until rank 0 reports its end.
  struct Pending {
    PublishOrder order;
    // A second publish of the same weights, received before the end of `order` is known. It gets
    // the result of `order`, or replaces it if `order` fails.
    std::optional<PublishOrder> again;
    control::PublishStatus status;
    control::Snapshotted report;
    // Kept until rank 0 has made a version of it.
    std::shared_ptr<const publish::Snapshot> snapshot;
    bool is_snapshotted = false;  // the snapshot is complete or has failed
    bool is_sent = false;
    bool is_heard = false;  // rank 0 has made a version of this step
    // The publish failed because another rank was lost. Rank 0 keeps the report and this rank keeps
    // the snapshot, in case the step is published again.
    bool is_kept = false;
    std::optional<TimePoint> deadline;  // absent while the weights are read
  };
  using PendingList = std::list<Pending>;

  [[nodiscard]] static Taken take(publish::Snapshotter& snapshotter, const PublishOrder& order,
                                  TimePoint deadline, std::stop_token stop);
  void handle_snapshot(std::uint64_t id, Taken taken);
  [[nodiscard]] bool join_unended(const PublishOrder& order);
  [[nodiscard]] bool take_over_kept(Pending& pending);
  void introduce();
  void handle_message(const control::Message& message);
  void handle_part(const control::PartWanted& wanted);
  void send_part(control::PartSummed summed);
  void handle_status(const control::PublishStatus& status);
  void apply_status(PendingList::iterator pending, const control::PublishStatus& status);
  void handle_lost(const Error& error);
  [[nodiscard]] bool may_report_again(const Pending& pending) const;
  void stop(const Error& why);
  void send_reports();
  [[nodiscard]] Result<> send_report(Pending& pending);
  void notify(const Pending& pending);
  void fail_order(const PublishOrder& order, ErrorCode code, const std::string& reason,
                  control::PublishStatus status = {});
  void end(PendingList::iterator pending, ErrorCode code, const std::string& reason);
  void fail_or_try_again(PendingList::iterator pending, ErrorCode code, const std::string& reason);
  void check_deadlines();
  void arm_deadline();

  Loop& loop_;
  const RankSettings settings_;
  PublishBoard& board_;
  std::shared_ptr<publish::Snapshotter> snapshotter_;
  std::unique_ptr<LeaderLink> link_;
  std::unique_ptr<PartServer> parts_;  // null: rank 0 is on this host
  bool is_admitted_ = false;           // rank 0 takes reports on this connection
  std::optional<Error> refusal_;       // reason that rank 0 gave for ending this connection
  std::optional<Error> stopped_;       // set if another process is now this rank
  std::string problem_;                // of the last connection, for error sentences
  RankTensors described_;              // the description that was sent on this connection
  PendingList pending_;                // in the order of their publishes
  Timer deadline_;
  std::stop_source stop_;
  std::unique_ptr<Worker> worker_;
};

void FollowerRank::publish(PublishOrder order) {
  if (stopped_) return fail_order(order, stopped_->code(), stopped_->message());
  link_->leave_replaced();
  if (join_unended(order)) return;
  Pending& added = pending_.emplace_back();
  added.order = order;
  added.status.step = order.step;
  const TimePoint deadline = now() + settings_.config.deadlines.gather;
  auto taken = std::make_shared<Taken>();
  const auto submitted = worker_->submit(
      [taken, order, deadline, snapshotter = snapshotter_, stop = stop_.get_token()] {
        *taken = take(*snapshotter, order, deadline, stop);
      },
      [this, taken, id = order.id] { handle_snapshot(id, std::move(*taken)); });
  if (!submitted)
    end(std::prev(pending_.end()), submitted.error().code(), submitted.error().message());
  arm_deadline();
}

bool FollowerRank::join_unended(const PublishOrder& order) {
  const auto before = std::ranges::find_if(pending_, [&](const Pending& p) {
    return p.order.step == order.step && !p.is_kept && !is_final(p.status.state);
  });
  if (before == pending_.end()) return false;
  if (before->again)
    fail_order(*before->again, ErrorCode::kCancelled,
               fmt::format("step {} is published again", order.step));
  before->again = order;
  notify(*before);
  return true;
}

FollowerRank::Taken FollowerRank::take(publish::Snapshotter& snapshotter, const PublishOrder& order,
                                       TimePoint deadline, std::stop_token stop) {
  publish::SnapshotRequest request;
  request.version = {.epoch = 0, .step = order.step};
  request.deadline = deadline;
  request.stop = std::move(stop);
  if (order.draft) return snapshotter.take(*order.draft->source(), request);
  auto source = WSYNC_TRY(shard_source(*order.tensors));
  return snapshotter.take(source, request);
}

void FollowerRank::handle_snapshot(std::uint64_t id, Taken taken) {
  const auto found = std::ranges::find(pending_, id, [](const Pending& p) { return p.order.id; });
  if (found == pending_.end()) return;
  if (stopped_) return end(found, stopped_->code(), stopped_->message());
  Pending& pending = *found;
  pending.is_snapshotted = true;
  pending.report.step = pending.order.step;
  if (taken) {
    pending.snapshot = std::move(*taken);
    const publish::Snapshot& snapshot = *pending.snapshot;
    pending.report.content_digest = snapshot.identity().content;
    pending.status.state = PublishState::kSnapshotted;
    pending.status.snapshot_ns = static_cast<std::uint64_t>(snapshot.times().copy.count());
  } else {
    pending.report.failure = taken.error().message();
    pending.status.state = PublishState::kFailed;
    pending.status.code = taken.error().code();
    pending.status.reason = taken.error().message();
  }
  // Rank 0 waits this long for the report. A failure is reported too, so that rank 0 does not wait
  // in vain.
  pending.deadline = now() + settings_.config.deadlines.gather;
  notify(pending);
  if (take_over_kept(pending) && is_final(pending.status.state)) pending_.erase(found);
  send_reports();
  arm_deadline();
}

// Returns true if rank 0 already holds a report of this step with the same content. That report
// then also counts for this publish, and nothing needs to be sent.
bool FollowerRank::take_over_kept(Pending& pending) {
  const auto kept = std::ranges::find_if(
      pending_, [&](const Pending& p) { return p.is_kept && p.order.step == pending.order.step; });
  if (kept == pending_.end()) return false;
  const bool same = pending.snapshot && kept->order.tensors == pending.order.tensors &&
                    kept->report.content_digest == pending.report.content_digest;
  if (same) {
    pending.is_sent = true;
    pending.is_heard = kept->is_heard;
    pending.snapshot = kept->snapshot;
    pending.deadline =
        now() + settings_.config.deadlines.gather + settings_.config.deadlines.publish;
    if (kept->is_heard) {
      const std::uint64_t own_copy_ns = pending.status.snapshot_ns;
      pending.status = kept->status;
      pending.status.snapshot_ns = own_copy_ns;
      notify(pending);
    }
  }
  pending_.erase(kept);
  return same;
}

// ---- connection to rank 0 ----

Result<> FollowerRank::start() {
  LeaderLinkCallbacks callbacks;
  callbacks.on_connected = [this] { introduce(); };
  callbacks.on_message = [this](const control::Message& message) { handle_message(message); };
  callbacks.on_lost = [this](const Error& error) { handle_lost(error); };
  callbacks.on_no_reply = [this](const std::string& why) { problem_ = why; };
  const config::TrainerConfig& config = settings_.config;
  if (config.leader.empty()) {
    link_ = make_local_leader_link(loop_, rank_socket(config), std::move(callbacks));
  } else {
    parts_ = WSYNC_TRY(PartServer::create(loop_, config, settings_.rank,
                                          publish::Publisher::threads(config.snapshot_threads)));
    link_ = make_remote_leader_link(loop_, config, std::move(callbacks));
  }
  return link_->start();
}

void FollowerRank::introduce() {
  described_.reset();
  refusal_.reset();
  const control::RankHello hello{.rank = settings_.rank,
                                 .world_size = settings_.world_size,
                                 .pid = static_cast<std::uint32_t>(::getpid()),
                                 .incarnation = settings_.incarnation};
  if (const auto sent = link_->send(hello); !sent) return;  // on_lost is called next
  // Between hosts rank 0 answers with PartsKept, or refuses this rank.
  is_admitted_ = !parts_;
  if (parts_)
    (void)link_->send(parts_->serves());
  else
    send_reports();
}

void FollowerRank::handle_message(const control::Message& message) {
  if (const auto* status = std::get_if<control::PublishStatus>(&message)) {
    handle_status(*status);
  } else if (const auto* wanted = std::get_if<control::PartWanted>(&message); wanted && parts_) {
    handle_part(*wanted);
  } else if (const auto* kept = std::get_if<control::PartsKept>(&message); kept && parts_) {
    parts_->keep(*kept);
    is_admitted_ = true;
    send_reports();
  } else if (const auto* error = std::get_if<control::ErrorReply>(&message)) {
    refusal_.emplace(error->code, error->message);
    link_->restart(*refusal_);
  } else {
    log_warning("rank {}: the message {} of rank 0 was dropped", settings_.rank,
                control::message_name(control::type_of(message)));
  }
}

void FollowerRank::handle_part(const control::PartWanted& wanted) {
  const auto found = std::ranges::find_if(pending_, [&](const Pending& pending) {
    return pending.order.step == wanted.step && pending.is_sent && pending.snapshot;
  });
  if (found == pending_.end())
    return send_part(PartServer::refusal(
        wanted, fmt::format("it has no snapshot of step {} any more", wanted.step)));
  parts_->want(wanted, found->snapshot, *found->order.tensors,
               [this](control::PartSummed summed) { send_part(std::move(summed)); });
}

// If it cannot be sent, the connection ends, and rank 0 notices that.
void FollowerRank::send_part(control::PartSummed summed) {
  if (const auto sent = link_->send(std::move(summed)); !sent)
    log_warning("rank {}: {}", settings_.rank, sent.error().message());
}

void FollowerRank::handle_lost(const Error& error) {
  if (refusal_ && refusal_->code() == ErrorCode::kFenced) return stop(*refusal_);
  problem_ = refusal_ ? refusal_->message() : error.message();
  log_info("rank {}: rank 0 disconnected: {}", settings_.rank, problem_);
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (it->is_kept)
      pending_.erase(it);
    else if (it->is_sent && may_report_again(*it))
      it->is_sent = false;
    else if (it->is_sent)
      fail_or_try_again(
          it,
          refusal_ && refusal_->code() != ErrorCode::kPeerLost ? ErrorCode::kRefused
                                                               : ErrorCode::kPeerLost,
          fmt::format("rank 0 disconnected before it reported the outcome of step {}: {}",
                      it->order.step, problem_));
    it = next;
  }
  arm_deadline();
}

// Rank 0 drops the report of a rank on another host with its connection. The snapshot is still
// here, so the next connection may bring it again, until its deadline.
bool FollowerRank::may_report_again(const Pending& pending) const {
  const bool is_refused =
      refusal_ && refusal_->code() != ErrorCode::kPeerLost && refusal_->code() != ErrorCode::kBusy;
  return parts_ && !is_refused && !pending.is_heard && pending.snapshot != nullptr;
}

void FollowerRank::stop(const Error& why) {
  log_error("rank {} stops: {}", settings_.rank, why.message());
  stopped_ = why;
  link_->stop();
  settings_.on_stopped(why);
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (it->is_snapshotted)
      // A publish that is being copied ends in handle_snapshot().
      end(it, why.code(), why.message());
    it = next;
  }
  arm_deadline();
}

// In the order of the publishes, because rank 0 only accepts increasing steps.
void FollowerRank::send_reports() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (!it->is_snapshotted) return;
    if (!it->is_sent) {
      if (!link_->is_connected() || !is_admitted_) return;
      if (const auto sent = send_report(*it); !sent) {
        if (sent.error().code() == ErrorCode::kPeerLost) return;  // on_close is called next
        end(it, sent.error().code(), sent.error().message());
      } else if (it->status.state == PublishState::kFailed) {
        pending_.erase(it);
      }
    }
    it = next;
  }
}

Result<> FollowerRank::send_report(Pending& pending) {
  if (described_ != pending.order.tensors) {
    control::RankShards shards;
    for (const publish::RankTensor& tensor : *pending.order.tensors)
      shards.tensors.push_back(to_message(tensor));
    WSYNC_TRY(link_->send(std::move(shards)));
    described_ = pending.order.tensors;
  }
  std::vector<UniqueFd> fds;
  if (pending.snapshot && !parts_) {
    auto arena = WSYNC_TRY(pending.snapshot->share());
    fds.push_back(std::move(arena));
  }
  WSYNC_TRY(link_->send(pending.report, std::move(fds)));
  pending.is_sent = true;
  pending.deadline = now() + settings_.config.deadlines.gather + settings_.config.deadlines.publish;
  return {};
}

void FollowerRank::handle_status(const control::PublishStatus& status) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    const std::uint64_t step = it->order.step;
    if (step < status.step && it->is_sent && (it->is_kept || !it->is_heard))
      end(it, ErrorCode::kRefused,
          fmt::format("rank 0 publishes step {}, not step {}", status.step, step));
    else if (step == status.step && it->is_sent)
      apply_status(it, status);
    it = next;
  }
  send_reports();
  arm_deadline();
}

void FollowerRank::apply_status(PendingList::iterator pending,
                                const control::PublishStatus& status) {
  if (is_lost(status)) {  // rank 0 keeps the report
    if (pending->is_kept) return;
    fail_order(pending->order, ErrorCode::kPeerLost, status.reason, pending->status);
    pending->is_kept = !pending->again;
    if (pending->again) pending->order = *std::exchange(pending->again, std::nullopt);
    pending->deadline =
        now() + settings_.config.deadlines.gather + settings_.config.deadlines.publish;
    return;
  }
  if (status.state == PublishState::kFailed && status.version.none())
    return fail_or_try_again(pending, status.code, status.reason);
  pending->is_heard = true;
  pending->snapshot.reset();
  const std::uint64_t own_copy_ns = pending->status.snapshot_ns;
  pending->status = status;
  pending->status.snapshot_ns = own_copy_ns;
  if (pending->is_kept) return;  // kept for the next publish of the same weights
  notify(*pending);
  if (is_final(status.state)) pending_.erase(pending);
}

// ---- end of a publish ----

void FollowerRank::notify(const Pending& pending) {
  board_.update(pending.order.id, pending.status);
  if (pending.again) board_.update(pending.again->id, pending.status);
}

void FollowerRank::fail_order(const PublishOrder& order, ErrorCode code, const std::string& reason,
                              control::PublishStatus status) {
  status.step = order.step;
  status.state = PublishState::kFailed;
  status.code = code;
  status.reason = reason;
  board_.update(order.id, status);
}

void FollowerRank::end(PendingList::iterator pending, ErrorCode code, const std::string& reason) {
  fail_order(pending->order, code, reason, pending->status);
  if (pending->again) fail_order(*pending->again, code, reason, pending->status);
  pending_.erase(pending);
}

// Rank 0 has made no version of this rank's report. A second publish of the same weights continues
// with the same snapshot, if there is one.
void FollowerRank::fail_or_try_again(PendingList::iterator pending, ErrorCode code,
                                     const std::string& reason) {
  if (!pending->again || !pending->snapshot) return end(pending, code, reason);
  fail_order(pending->order, code, reason, pending->status);
  pending->order = *std::exchange(pending->again, std::nullopt);
  pending->is_sent = false;
  pending->deadline = now() + settings_.config.deadlines.gather;
}

void FollowerRank::check_deadlines() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (it->deadline && *it->deadline <= now())
      end(it, ErrorCode::kDeadline,
          it->is_sent
              ? fmt::format("rank 0 did not report the outcome of step {} before the deadline",
                            it->order.step)
              : fmt::format("step {} could not be reported to rank 0 at {}: {}", it->order.step,
                            link_->where(), problem_));
    it = next;
  }
  arm_deadline();
}

void FollowerRank::arm_deadline() {
  std::optional<TimePoint> first;
  for (const Pending& pending : pending_)
    if (pending.deadline) first = std::min(first.value_or(*pending.deadline), *pending.deadline);
  if (!first) return deadline_.stop();
  deadline_.start_at(*first);
}

}  // namespace

Result<std::unique_ptr<RankRole>> make_follower_rank(Loop& loop, const RankSettings& settings,
                                                     PublishBoard& board) {
  auto role = std::make_unique<FollowerRank>(loop, settings, board);
  WSYNC_TRY(role->start());
  return role;
}

}  // namespace wsync::plugin
