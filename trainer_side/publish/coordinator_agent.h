// CoordinatorAgent: drives the pure Coordinator. It owns the control port with its connections, the
// decision store, the timers and the status pages, and answers the commands of operators (status,
// cancel, rollback, forget, verify, plan, trace). It knows nothing about weights: it receives a
// publish as a PublishRequested, and reports the progress of its rounds to the publishing side
// through callbacks. That side is a TrainerAgent of this process, or a PublisherDesk, which stands
// for a trainer of another process.
//
// Thread: the loop's; callbacks are called on the loop. The loop must outlive the agent.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "shared/base/unix_socket.h"
#include "shared/config/trainer_config.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/metrics/status_pages.h"
#include "trainer_side/coordinator/coordinator.h"
#include "trainer_side/coordinator/decision_store.h"
#include "trainer_side/publish/coordinator_link.h"
#include "trainer_side/publish/fleet_commands.h"
#include "trainer_side/publish/key_watch.h"
#include "trainer_side/publish/update_recorder.h"

namespace wsync::publish {

// Callbacks of the coordinator to the publishing side.
struct CoordinatorAgentCallbacks {
  // See TrainerAgentCallbacks. Both are posted, so no function of the agent is on the stack.
  std::function<void(const Error& reason)> on_stopped = [](const Error&) {};
  std::function<void(const Version& target)> on_ready = [](const Version&) {};
  // The round of a publish. Each requested publish gets one on_round_done, or one on_round_lost if
  // it is kept.
  std::function<void(const coordinator::PhaseEntered&)> on_phase =
      [](const coordinator::PhaseEntered&) {};
  std::function<void(const coordinator::RoundDone&)> on_round_done =
      [](const coordinator::RoundDone&) {};
  std::function<void(const coordinator::RoundLost&)> on_round_lost =
      [](const coordinator::RoundLost&) {};
  // The fleet has been decided to go back to this version.
  std::function<void(const Version& to)> on_rolled_back = [](const Version&) {};
  // The promotion of this version has ended; replicas that have not switched to it follow.
  std::function<void(const Version&)> on_promoted = [](const Version&) {};
  // This version will be sent to no sidecar any more.
  std::function<void(const Version&)> on_drop = [](const Version&) {};
  // Called after each step of the coordinator, because work that waits for it may begin.
  std::function<void()> on_step = [] {};
  // An operator requests a publish. Send the answers with reply(), using this peer and request.
  std::function<void(const std::string& peer, std::uint64_t request, const control::Push&)>
      on_push = [](const std::string&, std::uint64_t, const control::Push&) {};
  // An operator requests a cancellation. The publishing side is asked first, because it knows
  // publishes that the coordinator has not received yet. Call `answer` once.
  std::function<void(const Version&, std::function<void(control::CancelReply)> answer)> on_cancel =
      [](const Version&, const std::function<void(control::CancelReply)>& answer) { answer({}); };
  // Called with each message before all others: returns whether it was from a trainer of another
  // process. Empty: none may attach.
  std::function<bool(const std::string& peer, const control::Envelope&, control::Message&)>
      on_publisher_message = {};
  // Called with each message that only a rank of a trainer sends, from another host. Empty: this
  // trainer has one rank, or is another process.
  std::function<void(const std::string& peer, control::Message message)> on_rank_message = {};
  // The peer of the trainer of another process that is connected, if there is one.
  std::function<std::optional<std::string>()> trainer_peer = [] { return std::nullopt; };
  // A peer of the control port has hung up or is silent. Sidecars and commands are peers, too.
  std::function<void(const std::string& peer, const Error&)> on_peer_lost = [](const std::string&,
                                                                               const Error&) {};
  // For status and metrics: the bytes of the snapshot that is being taken for this request,
  // std::nullopt if there is none; and the values that a scrape reads from the publishing side.
  std::function<std::optional<PhaseBytes>(std::uint64_t request)> snapshot_bytes =
      [](std::uint64_t) { return std::nullopt; };
  // What the publish of this request, whose snapshot has been taken, waits for before its round;
  // std::nullopt if it waits for nothing.
  std::function<std::optional<std::string>(std::uint64_t request)> why_held = [](std::uint64_t) {
    return std::nullopt;
  };
  std::function<coordinator::PublishFacts()> publish_facts = [] {
    return coordinator::PublishFacts{};
  };
};

class CoordinatorAgent;

// A decision store, and the agent that hears of its troubles as soon as there is one.
struct OpenedStore {
  std::unique_ptr<coordinator::DecisionStore> store;
  std::shared_ptr<CoordinatorAgent*> agent = std::make_shared<CoordinatorAgent*>(nullptr);
  bool leads = false;  // stand_by() has returned, so others stand by as well
};

// This class has more than 25 methods: each kind of request from an operator or a trainer has its
// own.
class CoordinatorAgent final : public CoordinatorLink {
 public:
  // Asks no medium yet. Errors of make_decision_store().
  [[nodiscard]] static Result<OpenedStore> open_store(Loop& loop,
                                                      const config::TrainerConfig& config);
  // Reads the record of the previous coordinator in `opened`, and binds the control address. A
  // trainer of another process may attach if there is a callback for its messages. Errors as
  // TrainerAgent::create().
  [[nodiscard]] static Result<std::unique_ptr<CoordinatorAgent>> create(
      Loop& loop, const config::TrainerConfig& config, CoordinatorAgentCallbacks callbacks,
      OpenedStore opened);
  CoordinatorAgent(const CoordinatorAgent&) = delete;
  CoordinatorAgent& operator=(const CoordinatorAgent&) = delete;
  // Waits for the record that is being stored. Rollbacks in flight get no on_done.
  ~CoordinatorAgent() override;

  // A trainer of another process.
  void attach_publisher(coordinator::PublisherAttached publisher) { step(std::move(publisher)); }
  void lose_publisher(std::string reason) {
    step(coordinator::PublisherLost{.reason = std::move(reason)});
  }

  // CoordinatorLink:
  // Takes the lock of the fleet's folder and binds http.address. Returns kBusy if another process
  // holds one of them. `transports`: empty if a trainer attaches later.
  [[nodiscard]] Result<> open(std::vector<control::TransportAddress> transports,
                              const std::optional<transport::PairSecret>& secret) override;
  void request_round(coordinator::PublishRequested publish) override { step(std::move(publish)); }
  void end_snapshot(coordinator::SnapshotEnded snapshot) override { step(std::move(snapshot)); }
  void replace_waiting(const Version& version, const Version& by) override {
    step(coordinator::WaitingReplaced{.version = version, .by = by});
  }
  // See Coordinator::why_rollback_waits(); std::nullopt if it has stopped.
  [[nodiscard]] std::optional<std::string> why_rollback_waits() const override {
    return why_stopped() ? std::nullopt : coordinator_.why_rollback_waits();
  }
  // As TrainerAgent::roll_back(), but refused while an update travels.
  void roll_back(const Version& to,
                 std::function<void(Result<control::RollbackReply>)> on_done) override;
  control::CancelReply cancel(const Version& version, const std::string& why) override;
  void collect_trace(const control::TraceQuestion& question,
                     std::function<void(control::TraceAnswer)> on_done) override {
    commands_.collect_trace(question, std::move(on_done));
  }
  // Answers a peer's message. A reply that cannot be sent is dropped, because the peer has a
  // deadline.
  void reply(const std::string& peer, std::uint64_t request, control::Message message) override;
  // Sends a message that answers none. Errors as RouterPort::send().
  [[nodiscard]] Result<> send(const std::string& peer, std::uint64_t request,
                              const control::Message& message);
  [[nodiscard]] control::StatusReply status() override;
  [[nodiscard]] const coordinator::Coordinator& machine() const noexcept { return coordinator_; }
  [[nodiscard]] std::optional<Error> why_stopped() const override;
  [[nodiscard]] std::optional<std::string> why_not_ready() const override;
  [[nodiscard]] std::optional<std::string> why_too_few_engines() const override;
  [[nodiscard]] Result<Version> next_version(std::uint64_t step) const override {
    return coordinator_.next_version(step);
  }
  [[nodiscard]] bool has_update(const Version& version) const override {
    return coordinator_.has_update(version);
  }
  [[nodiscard]] bool may_stream() const override { return coordinator_.may_stream(); }

  [[nodiscard]] const control::Fence& fence() const noexcept override {
    return coordinator_.fence();
  }
  [[nodiscard]] std::uint32_t patch_value_cost() const override {
    return coordinator_.roster().patch_value_cost();
  }
  [[nodiscard]] const Version& target() const noexcept override { return coordinator_.target(); }
  [[nodiscard]] bool may_hold_changes() const override { return coordinator_.may_hold_changes(); }
  [[nodiscard]] PhaseBytes moved_bytes() const override;
  [[nodiscard]] const std::string& address() const noexcept override { return router_->address(); }
  [[nodiscard]] const std::optional<std::string>& complaint() const noexcept override {
    return complaint_;
  }
  [[nodiscard]] UpdateRecorder& recorder() noexcept override { return recorder_; }

 private:
  CoordinatorAgent(Loop& loop, const config::TrainerConfig& config,
                   CoordinatorAgentCallbacks callbacks, coordinator::CoordinatorOptions options,
                   OpenedStore opened);
  [[nodiscard]] Result<> listen();
  void sign_off();
  void lose_lead(const std::string& why);
  void step(decltype(coordinator::CoordinatorEvent::what) what);
  void execute(coordinator::CoordinatorCommand command);
  void store(const coordinator::Store& command);
  void end_rollback(coordinator::RollbackDone done);
  void promote(bool force, std::function<void(control::PromoteReply)> on_done);
  void end_promotion(coordinator::PromotionDone done);
  void forget(const control::Forget& what, std::function<void(control::ForgetReply)> on_done);
  void handle_message(const std::string& peer, control::Envelope envelope,
                      control::Message message);
  void handle_sidecar(const std::string& peer, control::Envelope envelope,
                      control::Message message);

  Loop& loop_;
  const config::TrainerConfig config_;
  CoordinatorAgentCallbacks callbacks_;
  coordinator::Coordinator coordinator_;
  std::optional<coordinator::CoordinatorRecord> record_before_;  // stored record at the start
  std::shared_ptr<coordinator::DecisionStore> store_;  // shared with the store worker's tasks
  bool must_lead_;                                     // open() still has to call lead()
  bool steps_down_;  // when its lease has ended: another coordinator stands by
  UpdateRecorder recorder_;
  std::unique_ptr<KeyWatch> keys_;  // null without keys; outlives the port
  std::unique_ptr<control::RouterPort> router_;
  Timer timer_;
  std::unique_ptr<Worker> store_worker_;
  FleetCommands commands_;
  std::map<std::uint64_t, std::function<void(Result<control::RollbackReply>)>> rollbacks_;
  std::map<std::uint64_t, std::function<void(control::PromoteReply)>> promotions_;
  std::map<std::uint64_t, std::function<void(control::ForgetReply)>> forgets_;
  std::optional<control::CancelReply> cancelled_;  // result of the current step
  std::optional<std::string> complaint_;
  std::shared_ptr<CoordinatorAgent*> self_;  // for the store, whose threads report troubles
  // False after destruction; checked by posted tasks.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<metrics::StatusPages> pages_;  // null: http.address is none
};

}  // namespace wsync::publish
