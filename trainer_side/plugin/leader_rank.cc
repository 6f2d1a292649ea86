// LeaderRank: rank 0. Owns the TrainerAgent, and collects the shards of the other ranks for its
// snapshot.
#include <algorithm>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/plugin/awaited_text.h"
#include "trainer_side/plugin/rank_gather.h"
#include "trainer_side/plugin/rank_hub.h"
#include "trainer_side/plugin/rank_role.h"
#include "trainer_side/publish/fleet_place.h"
#include "trainer_side/publish/trainer_agent.h"

namespace wsync::plugin {
namespace {

using control::PublishState;

// Between two looks at what a publish waits for: callers see it in the status.
constexpr std::chrono::seconds kAwaitedAfter{1};

class LeaderRank final : public RankRole {
 public:
  LeaderRank(const RankSettings& settings, PublishBoard& board)
      : config_(settings.config),
        keeps_snapshots_(settings.keeps_snapshots),
        board_(board),
        gather_(settings.world_size, settings.config.bucket_bytes) {
    // With other ranks, the version is assembled in another arena than the one that is written.
    if (settings.world_size > 1)
      drafts_ = std::make_shared<publish::Snapshotter>(publish::SnapshotterOptions{
          .name = "wsync-rank0",
          .arenas = 2,
          .threads = publish::Publisher::threads(config_.snapshot_threads),
          .huge_pages = config_.memory.huge_pages,
          .numa_node = config_.memory.numa_node,
          .near_gpus = config_.memory.near_gpus});
  }
  ~LeaderRank() override {
    // Must come first: the agent waits for the running snapshot, which may wait for reports.
    gather_.cancel();
    *alive_ = false;
    agent_.reset();
  }

  [[nodiscard]] Result<> start(Loop& loop, const RankSettings& settings) {
    publish::PlaceWait wait(config_);
    while (!agent_) {
      publish::TrainerAgentCallbacks callbacks;
      callbacks.on_stopped = settings.on_stopped;
      if (settings.world_size > 1) {
        callbacks.on_rank_message = [this](const std::string& peer, control::Message message) {
          if (hub_) hub_->handle_remote(peer, std::move(message));
        };
        callbacks.on_peer_lost = [this](const std::string& peer, const Error& why) {
          if (hub_) hub_->lose_remote(peer, why);
        };
        callbacks.on_parts = [this](const publish::Snapshot& snapshot) { serve_parts(snapshot); };
      }
      auto agent = publish::TrainerAgent::create(loop, config_, std::move(callbacks));
      if (agent)
        agent_ = std::move(*agent);
      else if (!wait.may_try_again(agent.error()))
        return fail(std::move(agent).error());
      else
        std::this_thread::sleep_for(publish::kPlaceLook);
    }
    if (config_.coordinator.empty())
      log_info("coordinator listens at {}", agent_->address());
    else
      log_info("publishes to the coordinator at {}", agent_->address());
    if (gather_.world_size() == 1) return {};
    hub_ = WSYNC_TRY(RankHub::listen(
        loop, rank_socket(config_), gather_, config_.take_over ? Claim::kTakeOver : Claim::kIfFree,
        {.send =
             [this](const std::string& peer, control::Message message) {
               if (agent_) agent_->send_to_rank(peer, std::move(message));
             },
         .report =
             [this](const std::string& text) {
               if (agent_) agent_->report_incident(text);
             }}));
    const auto post = [this, &loop, alive = alive_](auto work) {
      loop.post([this, alive, work] {
        if (*alive) work(hub_->parts());
      });
    };
    gather_.observe(
        {.on_parts_wanted =
             [post](std::uint64_t question, const RankGather::Orders& orders) {
               post([question, orders](KeptParts& parts) { parts.ask(question, orders); });
             },
         .on_parts_released =
             [post](std::uint64_t question) {
               post([question](KeptParts& parts) { parts.release(question); });
             }});
    return {};
  }

  // The ranks on other hosts serve their parts of this version from now on.
  void serve_parts(const publish::Snapshot& snapshot) {
    const ArenaIdentity& identity = snapshot.identity();
    hub_->parts().serve(
        {.step = snapshot.parted()->step(),
         .version = snapshot.version(),
         .fence = {.epoch = identity.fence_epoch, .run_id = identity.fence_run_id, .fleet = {}},
         .layout = identity.layout});
  }

  void publish(PublishOrder order) override {
    gather_.expect(order.step);
    publish::PublishJob job;
    job.step = order.step;
    job.arena_wait = config_.deadlines.snapshot;
    job.is_kept = keeps_snapshots_;
    job.open = [this, order, deadline = now() + config_.deadlines.publish] {
      return open_weights(order, deadline);
    };
    auto status = std::make_shared<control::PublishStatus>();
    status->step = order.step;
    job.on_progress = [this, id = order.id, status, look = now() + kAwaitedAfter](
                          const publish::PublishProgress& progress) mutable {
      board_.progress(id, progress.phase, progress.done_bytes, progress.total_bytes);
      if (now() < look) return;
      look = now() + kAwaitedAfter;
      board_.awaits(id, awaited_text(agent_->status(), {.version = status->version,
                                                        .phase = progress.phase,
                                                        .done_bytes = progress.done_bytes,
                                                        .total_bytes = progress.total_bytes}));
    };
    job.on_snapshotted = [this, id = order.id, status](const Version& version,
                                                       std::chrono::nanoseconds time,
                                                       const std::string& waits_for) {
      status->state = PublishState::kSnapshotted;
      status->version = version;
      status->reason = waits_for;
      status->snapshot_ns = static_cast<std::uint64_t>(time.count());
      notify(id, *status);
    };
    job.on_phase = [this, id = order.id, status](control::ProgressPhase phase) {
      if (phase != control::ProgressPhase::kSwitch) return;
      status->state = PublishState::kStaged;
      notify(id, *status);
    };
    job.on_done = [this, id = order.id, status](const publish::PublishResult& result) {
      finish(*status, result);
      notify(id, *status);
    };
    agent_->publish(std::move(job));
  }

  void draft_awaits_memory(std::uint64_t step) override {
    if (!drafts_) agent_->draft_awaits_memory(step);
  }
  [[nodiscard]] DraftMemory draft_memory() const override {
    return {.snapshotter = drafts_ ? drafts_ : agent_->snapshotter(),
            .bucket_bytes = config_.bucket_bytes};
  }
  void give_up(std::uint64_t step) override { agent_->give_up(step); }
  void expect(std::uint64_t step) override { gather_.expect(step); }
  void no_more(std::uint64_t step) override { gather_.no_more(step); }

  void roll_back(const Version& to,
                 std::function<void(Result<control::RollbackReply>)> on_done) override {
    agent_->roll_back(to, std::move(on_done));
  }

 private:
  // Called on the agent's worker thread.
  [[nodiscard]] Result<std::unique_ptr<publish::WeightSource>> open_weights(
      const PublishOrder& order, TimePoint deadline) {
    if (gather_.world_size() > 1)
      return gather_.collect(order.step, order.draft ? order.draft->rank_tensors() : *order.tensors,
                             std::min(now() + config_.deadlines.gather, deadline));
    if (order.draft) return order.draft->source();
    auto source = WSYNC_TRY(publish::GatheredSource::create({*order.tensors}));
    return std::make_unique<publish::GatheredSource>(std::move(source));
  }

  static void finish(control::PublishStatus& status, const publish::PublishResult& result) {
    const control::PushReply& reply = result.reply;
    status.state = PublishState::kFailed;
    if (reply.ok) status.state = PublishState::kCommitted;
    if (result.superseded) status.state = PublishState::kSuperseded;
    status.content_digest = reply.content_digest;
    status.bytes = reply.bytes;
    status.staged_ns = reply.staged_ns;
    status.reason = reply.ok ? std::string() : reply.reason;
    if (status.state == PublishState::kFailed && !reply.problems.empty())
      status.problems = {reply.problems.front()};
    if (status.state == PublishState::kFailed)
      status.code = result.error ? result.error->code() : control::failure_code(reply);
    for (const control::ReplicaOutcome& outcome : reply.outcomes) {
      if (outcome.outcome == control::SwitchOutcome::kCommitted) ++status.replicas;
      status.paused_ns = std::max(status.paused_ns, outcome.paused_ns);
    }
  }

  // The board is notified last: a caller that sees a failure there may publish the step again at
  // once. The gather and the other ranks must be notified before that.
  void notify(std::uint64_t id, const control::PublishStatus& status) {
    // After the loss of a rank, the reports of the other ranks are kept for the next attempt.
    if (status.state == PublishState::kFailed && status.version.none() && !is_lost(status))
      gather_.give_up(status.step, status.reason);
    if (hub_) hub_->notify(status);
    board_.update(id, status);
  }

  const config::TrainerConfig config_;
  const bool keeps_snapshots_;
  PublishBoard& board_;
  RankGather gather_;
  std::shared_ptr<publish::Snapshotter> drafts_;  // null: those of the agent
  std::unique_ptr<RankHub> hub_;
  std::unique_ptr<publish::TrainerAgent> agent_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what other threads post
};

}  // namespace

std::string rank_socket(const config::TrainerConfig& config) {
  return config.run_dir + "/trainer-ranks.sock";
}

Result<std::unique_ptr<RankRole>> make_leader_rank(Loop& loop, const RankSettings& settings,
                                                   PublishBoard& board) {
  if (!settings.config.leader.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("leader: expected 'auto' for rank 0, found '{}': rank 0 listens at "
                            "`listen`, and the ranks of other hosts name that address",
                            settings.config.leader));
  auto role = std::make_unique<LeaderRank>(settings, board);
  WSYNC_TRY(role->start(loop, settings));
  return role;
}

}  // namespace wsync::plugin
