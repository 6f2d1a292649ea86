// TrainerAgent: the agent that rank 0 of a trainer runs. It connects the decisions of a
// PublishQueue with the Publisher, which copies and serves weights, and with the coordinator, which
// brings a version to the fleet. It decides nothing itself. The coordinator is a part of this
// process, or another process whose address the configuration names.
//
// Thread: the loop's; callbacks are called on the loop. The loop must outlive the agent.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/config/trainer_config.h"
#include "shared/control/messages.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "trainer_side/publish/coordinator_agent.h"
#include "trainer_side/publish/directory_publisher.h"
#include "trainer_side/publish/publish_queue.h"
#include "trainer_side/publish/publisher.h"

namespace wsync::publish {

// How a publish ended. `superseded`: a newer one replaced it before it was decided. `error`: it was
// cancelled (kCancelled), or never became a round, because its weights could not be read, no arena
// was free, or no sidecar had joined. The reply then contains the same sentence.
struct PublishResult {
  bool superseded = false;
  control::PushReply reply;
  std::optional<Error> error;
};
struct PublishProgress {
  control::ProgressPhase phase = control::ProgressPhase::kSnapshot;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
};

// One version to be published. The source is opened and read on a worker thread.
struct PublishJob {
  std::function<Result<std::unique_ptr<WeightSource>>()> open;
  std::uint64_t step = 0;  // 0 = the next free one
  // While too few sidecars or engines are there, its snapshot is kept without a limit, until a
  // newer publish replaces it; the same if its round loses every sidecar before its decision.
  // Otherwise it fails at deadlines.publish, or with its round.
  bool is_kept = false;
  // The longest wait for an arena for the snapshot; std::nullopt: until deadlines.publish.
  std::optional<std::chrono::milliseconds> arena_wait = std::nullopt;
  std::function<void(const PublishProgress&)>
      on_progress;  // about ten times a second; may be empty
  // The snapshot has been taken, so the caller may overwrite its weights. Called again when its
  // round is requested, if that must wait: `version` is none until its first round, and `waits_for`
  // says for what. May be empty.
  std::function<void(const Version& version, std::chrono::nanoseconds took,
                     const std::string& waits_for)>
      on_snapshotted;
  // The round enters a phase. kSwitch: every byte is staged and verified. May be empty.
  std::function<void(control::ProgressPhase)> on_phase;
  std::function<void(PublishResult)> on_done;
};

struct TrainerAgentCallbacks {
  // This coordinator has stopped: a newer one exists (kFenced), it cannot determine its fleet
  // (kRefused), or its claim could not be stored (kIo).
  std::function<void(const Error& reason)> on_stopped = [](const Error&) {};
  // The claim has succeeded. `target`: the version that the fleet already runs (0.0 = none).
  std::function<void(const Version& target)> on_ready = [](const Version&) {};
  // As in CoordinatorAgentCallbacks. Neither is called if the coordinator is another process.
  std::function<void(const std::string& peer, control::Message message)> on_rank_message = {};
  std::function<void(const std::string& peer, const Error&)> on_peer_lost = [](const std::string&,
                                                                               const Error&) {};
  // A version with parts is served from now on (ServedVersions::Observer::on_parts).
  std::function<void(const Snapshot&)> on_parts = [](const Snapshot&) {};
};

// This class has more than 25 methods: each command of the queue has an overload of apply().
class TrainerAgent {
 public:
  // Binds the control address, the host socket and http.address, reads the record of the
  // previous coordinator, and opens directory.publish. Returns kBusy if another process holds one
  // of them; kInvalidInput if the stored record is damaged or belongs to another fleet than
  // fleet_id; and as WeightDirectoryWriter::open().
  [[nodiscard]] static Result<std::unique_ptr<TrainerAgent>> create(
      Loop& loop, const config::TrainerConfig& config, TrainerAgentCallbacks callbacks = {});
  TrainerAgent(const TrainerAgent&) = delete;
  TrainerAgent& operator=(const TrainerAgent&) = delete;
  // Publishes in flight get no on_done.
  ~TrainerAgent();

  // Takes the snapshot, waits for the claim and for min_sidecars, then runs the round. Snapshots
  // are taken one after the other. on_done is called within deadlines.publish of this call, unless
  // a read of the source takes longer or the job is kept. A switch that has been decided by then
  // continues.
  void publish(PublishJob job);
  // N of a directory named step_N or weight_vN, for a publish without a step of its own; 0, the
  // next free step, if the name has none or that step is not free. The log says why.
  [[nodiscard]] std::uint64_t named_step(const std::string& directory) const;
  // Ends the job of this step if none of its bytes has been read yet. If its source is being
  // opened, it ends after that. All other jobs continue.
  void give_up(std::uint64_t step);
  // Rolls the fleet back to `to` (0.0: the previous version). on_done is called once, on the loop,
  // at the latest when the deadlines of the switch have passed. If this coordinator has stopped, or
  // if an update travels (kBusy, and nothing has changed), it is called before this returns.
  void roll_back(const Version& to, std::function<void(Result<control::RollbackReply>)> on_done);
  // Cancels the publish of `version` if it has not been decided. 0.0 means the one in a round,
  // otherwise the one whose snapshot is being taken, otherwise the next in the queue. Its on_done
  // is called before this returns; for a snapshot, when the current read of the source has
  // returned.
  [[nodiscard]] control::CancelReply cancel(const Version& version);
  // Why no version can be named now; std::nullopt: one can.
  [[nodiscard]] std::optional<std::string> why_not_ready() const {
    return coordinator_->why_not_ready();
  }
  // Whether a publish that this agent has taken has not ended.
  [[nodiscard]] bool has_jobs() const noexcept { return !jobs_.empty(); }
  // Sends a message to a rank on another host; dropped if it cannot be sent.
  void send_to_rank(const std::string& peer, control::Message message) {
    coordinator_->reply(peer, 0, std::move(message));
  }
  // Shows a sentence in the incidents of `wsync status`.
  void report_incident(const std::string& text);
  // As CoordinatorLink::collect_trace().
  void collect_trace(const control::TraceQuestion& question,
                     std::function<void(control::TraceAnswer)> on_done) {
    coordinator_->collect_trace(question, std::move(on_done));
  }
  // Of the coordinator. One of another process is asked, and its last answer is returned.
  [[nodiscard]] control::StatusReply status() { return coordinator_->status(); }
  // A version that its trainer writes in place waits for memory: an older publish that waits for
  // its round is superseded now.
  void draft_awaits_memory(std::uint64_t step) { execute(queue_->draft_awaits_memory(step)); }
  // Takes the snapshots, and gives out arenas for drafts. Lives as long as a pointer to it.
  [[nodiscard]] const std::shared_ptr<Snapshotter>& snapshotter() const noexcept {
    return publisher_->snapshotter();
  }
  // Address of the coordinator's control port, to which sidecars and commands connect.
  [[nodiscard]] const std::string& address() const noexcept { return coordinator_->address(); }
  // The last error that a sidecar has reported, for example why it does not join.
  [[nodiscard]] const std::optional<std::string>& complaint() const noexcept {
    return coordinator_->complaint();
  }

 private:
  // The data that the agent keeps for a publish while the queue knows it.
  struct Job {
    PublishJob job;
    PublishProgress progress;
    std::shared_ptr<SnapshotProgress> snapshot = std::make_shared<SnapshotProgress>();
    std::stop_source stop;
    // Set from the end of the snapshot until its round has it. If the job is kept: until its end,
    // because its round may lose every sidecar.
    std::shared_ptr<Snapshot> taken;
    std::optional<CopiedSnapshot> copied;  // from the beginning of the copy to its end
    // Buckets of it, with the sums of their leaves.
    std::vector<std::pair<std::uint64_t, std::vector<WordSum>>> complete;
    bool is_recorded = false;  // its snapshot, by the recorder
    bool streams = false;      // its buckets are served as they become complete
    Version version;           // from then on
    Publisher::TakingTime snapshot_time;
  };
  TrainerAgent(Loop& loop, const config::TrainerConfig& config);
  [[nodiscard]] CoordinatorAgentCallbacks coordinator_callbacks(TrainerAgentCallbacks callbacks);
  void handle_push(const std::string& peer, std::uint64_t request, const control::Push& push);
  void advance();
  void execute(Result<PublishQueue::Commands> commands);
  void apply(const BeginSnapshot& command);
  void apply(const StopSnapshot& command);
  void apply(const HoldSnapshot& command);
  void apply(const RequestRound& command);
  void apply(const CompleteRound& command);
  void apply(const AbandonRound& command);
  void apply(EndPublish command);
  void apply(const ReplaceWaiting& command);
  void apply(const ReportWait& command);
  void lose_round(const coordinator::RoundLost& lost);
  // The snapshot of a version that is not decided is given up.
  void give_up_version(const Version& version, const std::string& why);
  void begin_copy(std::uint64_t request, const CopiedSnapshot& snapshot);
  void give_name(Snapshot& snapshot, const Version& version);
  void request_stream(const RequestRound& command);
  // The snapshot is complete: records it, tells the requester, and serves its bytes.
  std::shared_ptr<const Snapshot> serve(std::uint64_t request);
  void end_snapshot(std::uint64_t request, Result<std::shared_ptr<Snapshot>> snapshot,
                    const Publisher::TakingTime& time);
  void enter_phase(const coordinator::PhaseEntered& phase);
  void write(const Version& version);
  // Whether the next snapshot may be held as what changes from the target.
  [[nodiscard]] bool may_take_changes() const;
  void report_progress();

  const config::TrainerConfig config_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<CoordinatorLink> coordinator_;
  std::unique_ptr<DirectoryPublisher> directory_;  // null: directory.publish is empty
  // With a directory: the versions that the coordinator may still send to sidecars.
  std::map<Version, std::shared_ptr<const Snapshot>> held_;
  // The one that was last given to a round: sidecars hold it when the next one comes.
  Version last_served_;
  std::optional<PublishQueue> queue_;  // created after the coordinator
  std::map<std::uint64_t, Job> jobs_;  // by request
  Timer progress_timer_;
};

}  // namespace wsync::publish
