// Ranks 1 and up: each copies its shards into arenas of its own, hands them to rank 0 and hears
// from it how far the version has come.
#include <algorithm>
#include <chrono>
#include <list>
#include <optional>
#include <stop_token>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/control/unix_stream.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "trainer_side/plugin/rank_gather.h"
#include "trainer_side/plugin/rank_role.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::plugin {
namespace {

using control::PublishState;

// One arena is read by rank 0 while the next one is written.
constexpr std::uint32_t kArenas = 2;

Result<publish::MemorySource> shard_source(const std::vector<publish::RankTensor>& tensors) {
  std::vector<publish::MemoryTensor> shards;
  shards.reserve(tensors.size());
  for (const publish::RankTensor& tensor : tensors) {
    auto info = shard_info(tensor);
    if (!info) return fail(std::move(info).error());
    shards.push_back({.info = std::move(*info), .bytes = tensor.bytes});
  }
  return publish::MemorySource::create(std::move(shards));
}

class FollowRank final : public RankRole {
 public:
  FollowRank(Loop& loop, const RankSettings& settings, PublishBoard& board)
      : loop_(loop),
        settings_(settings),
        board_(board),
        path_(rank_socket(settings.config)),
        snapshotter_(std::make_shared<publish::Snapshotter>(publish::SnapshotterOptions{
            .name = fmt::format("wsync-rank{}", settings.rank), .arenas = kArenas})),
        reconnect_(loop, [this] { connect(); }),
        deadline_(loop, [this] { check_deadlines(); }),
        worker_(std::make_unique<Worker>(
            loop, WorkerOptions{.name = "snapshot", .max_queued = limits::kPublishesRemembered})) {
    connect();
  }
  ~FollowRank() override {
    stop_.request_stop();
    worker_->stop();
  }
  FollowRank(const FollowRank&) = delete;
  FollowRank& operator=(const FollowRank&) = delete;

  void publish(PublishOrder order) override;
  void give_up(std::uint64_t /*step*/) override {}  // its snapshots wait for nobody
  void roll_back(const Version& /*to*/,
                 std::function<void(Result<control::RollbackReply>)> on_done) override {
    on_done(fail(ErrorCode::kInvalidInput,
                 fmt::format("rank {} cannot roll back: rank 0 does", settings_.rank)));
  }

 private:
  using Taken = Result<std::shared_ptr<const publish::Snapshot>>;
  // One publish, from its snapshot to the word of rank 0 about its end.
  struct Pending {
    PublishOrder order;
    control::PublishStatus status;
    control::Snapshotted report;
    std::shared_ptr<const publish::Snapshot> snapshot;  // until rank 0 holds it itself
    bool is_snapshotted = false;                        // or has failed to be
    bool is_sent = false;
    bool is_heard = false;              // rank 0 has spoken about this step
    std::optional<TimePoint> deadline;  // none while the weights are read
  };
  using PendingList = std::list<Pending>;

  [[nodiscard]] static Taken take(publish::Snapshotter& snapshotter, const PublishOrder& order,
                                  TimePoint deadline, std::stop_token stop);
  void on_snapshot(std::uint64_t id, Taken taken);
  void connect();
  void on_frame(const control::Frame& frame);
  void on_status(const control::PublishStatus& status);
  void on_close(const Error& error);
  void send_reports();
  [[nodiscard]] Result<> send_report(Pending& pending);
  void end(PendingList::iterator pending, ErrorCode code, const std::string& reason);
  void check_deadlines();
  void arm_deadline();

  Loop& loop_;
  const RankSettings settings_;
  PublishBoard& board_;
  const std::string path_;
  std::shared_ptr<publish::Snapshotter> snapshotter_;
  std::unique_ptr<control::UnixStream> stream_;
  std::string refusal_;  // why rank 0 closes this connection
  std::string problem_;  // of the last connection, for sentences
  RankTensors told_;     // what rank 0 knows on this connection
  std::chrono::milliseconds pause_{limits::kReconnectMinMs};
  PendingList pending_;  // in the order of their publishes
  Timer reconnect_;
  Timer deadline_;
  std::stop_source stop_;
  std::unique_ptr<Worker> worker_;
};

void FollowRank::publish(PublishOrder order) {
  Pending& added = pending_.emplace_back();
  added.order = order;
  added.status.step = order.step;
  const TimePoint deadline = now() + settings_.config.deadlines.gather;
  auto taken = std::make_shared<Taken>();
  const auto submitted = worker_->submit(
      [taken, order, deadline, snapshotter = snapshotter_, stop = stop_.get_token()] {
        *taken = take(*snapshotter, order, deadline, stop);
      },
      [this, taken, id = order.id] { on_snapshot(id, std::move(*taken)); });
  if (!submitted)
    end(std::prev(pending_.end()), submitted.error().code(), submitted.error().message());
  arm_deadline();
}

FollowRank::Taken FollowRank::take(publish::Snapshotter& snapshotter, const PublishOrder& order,
                                   TimePoint deadline, std::stop_token stop) {
  auto source = shard_source(*order.tensors);
  if (!source) return fail(std::move(source).error());
  publish::SnapshotRequest request;
  request.version = {.epoch = 0, .step = order.step};
  request.deadline = deadline;
  request.stop = std::move(stop);
  return snapshotter.take(*source, request);
}

void FollowRank::on_snapshot(std::uint64_t id, Taken taken) {
  const auto found = std::ranges::find(pending_, id, [](const Pending& p) { return p.order.id; });
  if (found == pending_.end()) return;  // its deadline has passed
  Pending& pending = *found;
  pending.is_snapshotted = true;
  pending.report.step = pending.order.step;
  if (taken) {
    pending.snapshot = std::move(*taken);
    const publish::Snapshot& snapshot = *pending.snapshot;
    pending.report.content_digest = snapshot.identity().content;
    pending.status.state = PublishState::kSnapshotted;
    pending.status.snapshot_ns = static_cast<std::uint64_t>(snapshot.times().copy.count());
    board_.update(id, pending.status);
  } else {
    pending.report.failure = taken.error().message();
  }
  // Rank 0 waits for it this long; a failure is told as well, so that it need not.
  pending.deadline = now() + settings_.config.deadlines.gather;
  if (!taken) {
    pending.status.state = PublishState::kFailed;
    pending.status.code = static_cast<std::uint8_t>(taken.error().code());
    pending.status.reason = taken.error().message();
    board_.update(id, pending.status);
  }
  send_reports();
  arm_deadline();
}

// ---- the link ----

void FollowRank::connect() {
  control::StreamCallbacks callbacks;
  callbacks.on_frame = [this](const control::Frame& frame) { on_frame(frame); };
  callbacks.on_close = [this](const Error& error) { on_close(error); };
  auto stream = control::UnixStream::connect(loop_, path_, std::move(callbacks));
  if (!stream) {
    problem_ = stream.error().message();
    reconnect_.start(pause_);
    pause_ = std::min(2 * pause_, std::chrono::milliseconds(limits::kRankReconnectMaxMs));
    return;
  }
  stream_ = std::move(*stream);
  told_.reset();
  refusal_.clear();
  const control::RankHello hello{.rank = settings_.rank,
                                 .world_size = settings_.world_size,
                                 .pid = static_cast<std::uint32_t>(::getpid())};
  if (const auto sent = stream_->send({}, hello); !sent) return;  // on_close follows
  send_reports();
}

void FollowRank::on_frame(const control::Frame& frame) {
  pause_ = std::chrono::milliseconds(limits::kReconnectMinMs);
  if (const auto* status = std::get_if<control::PublishStatus>(&frame.message))
    on_status(*status);
  else if (const auto* error = std::get_if<control::ErrorReply>(&frame.message))
    problem_ = refusal_ = error->message;
  else
    log_warning("rank {}: rank 0 sent {}, which is dropped", settings_.rank,
                control::message_name(control::type_of(frame.message)));
}

void FollowRank::on_close(const Error& error) {
  stream_.reset();
  const std::string why = refusal_.empty() ? error.message() : refusal_;
  problem_ = why;
  log_info("rank {}: rank 0 has gone: {}", settings_.rank, why);
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (it->is_sent)
      end(it, refusal_.empty() ? ErrorCode::kPeerLost : ErrorCode::kRefused,
          fmt::format("rank 0 has gone before it told the end of step {}: {}", it->order.step,
                      why));
    it = next;
  }
  reconnect_.start(pause_);
  pause_ = std::min(2 * pause_, std::chrono::milliseconds(limits::kRankReconnectMaxMs));
}

// In the order of the publishes, so that rank 0 sees steps that grow.
void FollowRank::send_reports() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (!it->is_snapshotted) return;
    if (!it->is_sent) {
      if (!stream_) return;
      if (const auto sent = send_report(*it); !sent) {
        if (sent.error().code() == ErrorCode::kPeerLost) return;  // on_close follows
        end(it, sent.error().code(), sent.error().message());
      } else if (it->status.state == PublishState::kFailed) {
        pending_.erase(it);
      }
    }
    it = next;
  }
}

Result<> FollowRank::send_report(Pending& pending) {
  if (told_ != pending.order.tensors) {
    control::RankShards shards;
    for (const publish::RankTensor& tensor : *pending.order.tensors)
      shards.tensors.push_back(to_message(tensor));
    WSYNC_TRY(stream_->send({}, shards));
    told_ = pending.order.tensors;
  }
  std::vector<UniqueFd> fds;
  if (pending.snapshot) {
    auto arena = pending.snapshot->share();
    if (!arena) return fail(std::move(arena).error());
    fds.push_back(std::move(*arena));
  }
  WSYNC_TRY(stream_->send({}, pending.report, std::move(fds)));
  pending.is_sent = true;
  pending.deadline = now() + settings_.config.deadlines.gather + settings_.config.deadlines.publish;
  return {};
}

void FollowRank::on_status(const control::PublishStatus& status) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    Pending& pending = *it;
    if (pending.order.step < status.step && pending.is_sent && !pending.is_heard) {
      end(it, ErrorCode::kRefused,
          fmt::format("rank 0 publishes step {} and not step {}", status.step, pending.order.step));
    } else if (pending.order.step == status.step && pending.is_sent) {
      pending.is_heard = true;
      pending.snapshot.reset();
      const std::uint64_t own_copy_ns = pending.status.snapshot_ns;
      pending.status = status;
      pending.status.snapshot_ns = own_copy_ns;
      board_.update(pending.order.id, pending.status);
      if (is_final(status.state)) pending_.erase(it);
    }
    it = next;
  }
  arm_deadline();
}

// ---- how a publish ends here ----

void FollowRank::end(PendingList::iterator pending, ErrorCode code, const std::string& reason) {
  pending->status.state = PublishState::kFailed;
  pending->status.code = static_cast<std::uint8_t>(code);
  pending->status.reason = reason;
  board_.update(pending->order.id, pending->status);
  pending_.erase(pending);
}

void FollowRank::check_deadlines() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (it->deadline && *it->deadline <= now())
      end(it, ErrorCode::kDeadline,
          it->is_sent ? fmt::format("rank 0 has not told the end of step {} before the deadline",
                                    it->order.step)
                      : fmt::format("step {} could not be reported to rank 0 at {}: {}",
                                    it->order.step, path_, problem_));
    it = next;
  }
  arm_deadline();
}

void FollowRank::arm_deadline() {
  std::optional<TimePoint> first;
  for (const Pending& pending : pending_)
    if (pending.deadline) first = std::min(first.value_or(*pending.deadline), *pending.deadline);
  if (!first) return deadline_.stop();
  deadline_.start_at(*first);
}

}  // namespace

Result<std::unique_ptr<RankRole>> make_follow_rank(Loop& loop, const RankSettings& settings,
                                                   PublishBoard& board) {
  return std::make_unique<FollowRank>(loop, settings, board);
}

}  // namespace wsync::plugin
