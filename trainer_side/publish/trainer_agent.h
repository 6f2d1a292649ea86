// TrainerAgent: the trainer-side agent of rank 0. It joins the coordinator (update_round.h) to the
// control port, the snapshotter, and the sources that serve buckets.
//
// Thread: the loop's; callbacks come on the loop.
// Outlives: the loop outlives the agent.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/unix_socket.h"
#include "shared/config/trainer_config.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/metrics/status_pages.h"
#include "shared/transport/memfd/memfd_source.h"
#include "shared/transport/tcp/tcp_source.h"
#include "trainer_side/coordinator/decision_store.h"
#include "trainer_side/coordinator/page/round_history.h"
#include "trainer_side/coordinator/round_metrics.h"
#include "trainer_side/coordinator/update_round.h"
#include "trainer_side/publish/fleet_question.h"
#include "trainer_side/publish/round_trace.h"
#include "trainer_side/publish/snapshot.h"
#include "trainer_side/publish/update_journal.h"

namespace wsync::publish {

// How a publish ended. `superseded`: a newer one took its place before it was decided. `error`: it
// was cancelled (kCancelled), or never became a round (its weights could not be read, no arena was
// free, no sidecar has joined); the reply then holds the same sentence.
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
  std::function<void(const PublishProgress&)>
      on_progress;  // about ten times a second; may be empty
  // The snapshot has been taken: the caller may overwrite its weights. May be empty.
  std::function<void(const Version&, std::chrono::nanoseconds)> on_snapshotted;
  // What the fleet does with it now; kSwitch: every byte is staged and verified. May be empty.
  std::function<void(control::ProgressPhase)> on_phase;
  std::function<void(PublishResult)> on_done;
};

struct TrainerAgentCallbacks {
  // This coordinator does nothing any more: another one is newer (kFenced), it cannot tell which
  // fleet it leads (kRefused), or its claim could not be stored (kIo).
  std::function<void(const Error& reason)> on_stopped = [](const Error&) {};
  // The claim is over; `target` is what the fleet runs already (0.0 = nothing).
  std::function<void(const Version& target)> on_ready = [](const Version&) {};
};

class TrainerAgent {
 public:
  // Binds the control address, the host socket and http.address, and reads what the coordinator
  // before it has stored. kBusy when another process holds one of them; kInvalidInput when the
  // stored record is damaged or of another fleet than fleet_id.
  [[nodiscard]] static Result<std::unique_ptr<TrainerAgent>> create(
      Loop& loop, const config::TrainerConfig& config, TrainerAgentCallbacks callbacks = {});
  TrainerAgent(const TrainerAgent&) = delete;
  TrainerAgent& operator=(const TrainerAgent&) = delete;
  // Publishes in flight get no on_done.
  ~TrainerAgent();

  // Waits for the claim and for min_sidecars, then runs the job. Jobs run one after the other as
  // far as their snapshots go. on_done comes within deadlines.publish of this call, unless a read
  // of the source takes longer; a switch that has been decided then goes on without it.
  void publish(PublishJob job);
  // Ends the job of this step, if none of its bytes has been read yet: it fails with what it waits
  // for. One whose source is being opened ends when that is over. Any other goes on.
  void give_up(std::uint64_t step);
  // Brings the fleet back to `to` (0.0: the previous version). on_done comes once, on the loop: at
  // the latest when the switch's deadlines have passed, at once when this agent must not act.
  void roll_back(const Version& to, std::function<void(Result<control::RollbackReply>)> on_done);
  // Stops the publish of `version`, while it has not been decided; 0.0: the one in a round, else
  // the one whose snapshot is taken, else the next in the queue. Its on_done comes before this
  // returns, but of a snapshot when the piece that is being read is there.
  [[nodiscard]] control::CancelReply cancel(const Version& version);
  // What this agent and the sidecars that answer have traced. on_done comes once, on the loop,
  // within seconds; the clock of each sidecar is measured first, by questions of their own.
  void collect_trace(const control::TraceQuestion& question,
                     std::function<void(control::TraceAnswer)> on_done);
  [[nodiscard]] control::StatusReply status() const;
  [[nodiscard]] const std::string& address() const noexcept { return router_->address(); }
  // The last error that a sidecar has told of, why it does not join for instance; empty when none.
  [[nodiscard]] const std::string& complaint() const noexcept { return complaint_; }
  // Bytes that the TCP source has put on the wire; 0 without one.
  [[nodiscard]] std::uint64_t tcp_wire_bytes() const;

 private:
  struct Active;  // one publish from its job to its end
  TrainerAgent(Loop& loop, const config::TrainerConfig& config, TrainerAgentCallbacks callbacks,
               CoordinatorOptions options, std::unique_ptr<DecisionStore> store);
  [[nodiscard]] Result<> listen();
  [[nodiscard]] Result<> open_pages();
  [[nodiscard]] metrics::Readiness readiness() const;
  // Of a publish that is ending: into what is told of it.
  void record_end(std::uint64_t request, UpdateEnd end, const control::PushReply& reply);
  void step(decltype(CoordinatorEvent::what) what);
  void carry_out(CoordinatorCommand command);
  void store(const Store& command);
  void incident(const std::string& text);
  [[nodiscard]] std::optional<Error> why_stopped() const;
  void arm_timer();
  void on_message(const std::string& peer, control::Envelope envelope, control::Message message);
  void on_push(const std::string& peer, const control::Envelope& envelope,
               const control::Push& push);
  void on_verify(const std::string& peer, const control::Envelope& envelope);
  void on_plan(const std::string& peer, const control::Envelope& envelope, control::Plan plan);
  [[nodiscard]] bool predecessor_is_gone(const control::Hello& hello) const;
  [[nodiscard]] std::string sidecar_of(const std::string& peer) const;  // empty: of none
  [[nodiscard]] control::TraceProcess own_trace(const control::TraceQuestion& question,
                                                TimePoint received) const;
  void reply(const std::string& peer, std::uint64_t request, control::Message message);
  void pump_jobs();
  // What keeps every job waiting; empty when nothing does.
  [[nodiscard]] std::string why_not_ready() const;
  void take_snapshot(const std::shared_ptr<Active>& active, const Version& version);
  void on_snapshot(const std::shared_ptr<Active>& active,
                   Result<std::shared_ptr<const Snapshot>> snapshot);
  [[nodiscard]] control::CancelReply cancel_job(const Version& version);
  [[nodiscard]] PhaseBytes moved_bytes() const;
  void end_round(const RoundDone& done);
  void end_rollback(RollbackDone done);
  void fail_job(const std::shared_ptr<Active>& active, const Error& why);
  void offer(const std::shared_ptr<const Snapshot>& snapshot);
  void report_progress();

  Loop& loop_;
  const config::TrainerConfig config_;
  TrainerAgentCallbacks callbacks_;
  Coordinator coordinator_;
  std::optional<LockFile> state_lock_;
  std::shared_ptr<DecisionStore> store_;
  std::shared_ptr<Snapshotter> snapshotter_;
  std::unique_ptr<transport::tcp::UvThread> bulk_thread_;
  std::unique_ptr<transport::memfd::MemfdSource> memfd_source_;
  std::unique_ptr<transport::tcp::TcpSource> tcp_source_;
  std::unique_ptr<control::RouterPort> router_;
  RoundTrace trace_;
  RoundMetrics metrics_;
  Timer timer_;
  Timer progress_timer_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Worker> store_worker_;  // writes records, which must not wait for a snapshot
  std::vector<std::shared_ptr<Active>> queued_;  // wait for their snapshot
  std::shared_ptr<Active> snapshotting_;
  std::map<std::uint64_t, std::shared_ptr<Active>> running_;  // with the coordinator
  std::map<std::uint64_t, std::function<void(Result<control::RollbackReply>)>> rollbacks_;
  std::optional<control::CancelReply> cancelled_;  // of the step that has just been made
  UpdateJournal journal_;
  page::RoundHistory history_;
  FleetQuestions questions_;
  std::uint64_t next_request_ = 1;
  std::string complaint_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what comes back by posts
  std::unique_ptr<metrics::StatusPages> pages_;                 // null: http.address is none
};

}  // namespace wsync::publish
