// RemoteCoordinator: a coordinator of another process (`coordinator` in the configuration of a
// trainer). It tells that process what this trainer serves and requests, and keeps what it has said
// of the fleet for the decisions of the PublishQueue. What is old by the time of a request is
// judged by the coordinator once more.
//
// It serves the pages of the trainer: its metrics, and whether it is connected. The fleet is shown
// by those of the coordinator.
//
// A connection that breaks loses nothing: after it, both sides compare which rounds are open and
// which versions are served (PublisherHello). A round that the coordinator does not know any more
// is lost: its publish is held if it is kept, and fails otherwise.
//
// Thread: the loop's; callbacks are called on the loop. The loop must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shared/config/trainer_config.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/observe/metrics/status_pages.h"
#include "trainer_side/publish/coordinator_agent.h"
#include "trainer_side/publish/coordinator_link.h"

namespace wsync::publish {

// This class has more than 25 methods: each message of the coordinator has its own.
class RemoteCoordinator final : public CoordinatorLink {
 public:
  // Of the callbacks, those about rounds, versions, pushes and cancellations are used. on_stopped
  // is never called: another coordinator may answer at the address at any time. Errors: those of
  // load_key_file() and connect_zmq().
  [[nodiscard]] static Result<std::unique_ptr<RemoteCoordinator>> create(
      Loop& loop, const config::TrainerConfig& config, CoordinatorAgentCallbacks callbacks);
  RemoteCoordinator(const RemoteCoordinator&) = delete;
  RemoteCoordinator& operator=(const RemoteCoordinator&) = delete;
  ~RemoteCoordinator() override;

  // CoordinatorLink:
  [[nodiscard]] Result<> open(std::vector<control::TransportAddress> transports,
                              const std::optional<transport::PairSecret>& secret) override;
  void request_round(coordinator::PublishRequested publish) override;
  void end_snapshot(coordinator::SnapshotEnded snapshot) override;
  void replace_waiting(const Version& version, const Version& by) override;
  control::CancelReply cancel(const Version& version, const std::string& why) override;
  [[nodiscard]] std::optional<std::string> why_rollback_waits() const override;
  void roll_back(const Version& to,
                 std::function<void(Result<control::RollbackReply>)> on_done) override;
  void collect_trace(const control::TraceQuestion& question,
                     std::function<void(control::TraceAnswer)> on_done) override;
  void reply(const std::string& peer, std::uint64_t request, control::Message message) override;
  [[nodiscard]] control::StatusReply status() override;
  [[nodiscard]] std::optional<Error> why_stopped() const override { return std::nullopt; }
  [[nodiscard]] std::optional<std::string> why_not_ready() const override;
  [[nodiscard]] std::optional<std::string> why_too_few_engines() const override;
  [[nodiscard]] Result<Version> next_version(std::uint64_t step) const override;
  [[nodiscard]] bool has_update(const Version& version) const override;
  [[nodiscard]] bool may_stream() const override;
  [[nodiscard]] const control::Fence& fence() const noexcept override { return fence_; }
  [[nodiscard]] std::uint32_t patch_value_cost() const override { return facts_.patch_value_cost; }
  [[nodiscard]] const Version& target() const noexcept override { return facts_.target; }
  [[nodiscard]] bool may_hold_changes() const override { return facts_.may_hold_changes; }
  [[nodiscard]] PhaseBytes moved_bytes() const override {
    return {.done = facts_.moved_bytes, .total = facts_.moved_total};
  }
  [[nodiscard]] const std::string& address() const noexcept override { return config_.coordinator; }
  [[nodiscard]] const std::optional<std::string>& complaint() const noexcept override {
    return refusal_;
  }
  [[nodiscard]] UpdateRecorder& recorder() noexcept override { return recorder_; }

 private:
  // A round that was requested and has not ended.
  struct Round {
    // At the coordinator. Each request has its own, also that for another round of the same
    // publish: a Hello that is said again is answered again, perhaps after that request.
    std::uint64_t number = 0;
    Version version;
    bool is_kept = false;
    std::optional<TimePoint> deadline;
    std::optional<control::SnapshotEnd> end;  // of a snapshot that was not complete at the request
    std::optional<control::ProgressPhase> phase;
  };

  RemoteCoordinator(Loop& loop, const config::TrainerConfig& config,
                    std::optional<control::KeyFile> key, CoordinatorAgentCallbacks callbacks);
  [[nodiscard]] Result<> connect();
  [[nodiscard]] Result<> open_pages();
  void say_hello();
  void look();
  void detach(const Error& why);
  void handle(const control::Envelope& envelope, control::Message message);
  void handle_facts(const control::Envelope& envelope, control::FleetFacts facts);
  void handle_error(const control::Envelope& envelope, const control::ErrorReply& error);
  // The publish whose round has this number at the coordinator; std::nullopt if none awaits it.
  [[nodiscard]] std::optional<std::uint64_t> request_of(std::uint64_t number) const;
  void handle_phase(const control::RoundPhase& phase);
  void enter(std::uint64_t request, control::ProgressPhase phase);
  void handle_end(const control::RoundEnd& end);
  void handle_loss(const control::RoundLoss& loss);
  void end_round(std::uint64_t request, coordinator::RoundDone done);
  void send(const control::Message& message, std::uint64_t request = 0);
  [[nodiscard]] std::string where() const;

  Loop& loop_;
  const config::TrainerConfig config_;
  const std::optional<control::KeyFile> key_;  // none: the coordinator has no keys
  const std::uint64_t process_;                // random bits
  CoordinatorAgentCallbacks callbacks_;
  UpdateRecorder recorder_;
  std::unique_ptr<metrics::StatusPages> pages_;  // null: http.address is none
  std::vector<control::TransportAddress> transports_;
  Bytes secret_;
  std::unique_ptr<control::DealerPort> dealer_;
  Timer timer_;
  bool is_connected_ = false;
  bool is_attached_ = false;  // facts have come on this connection
  bool was_ready_ = false;    // on_ready was called
  std::string why_detached_ = "it has not answered yet";
  std::optional<std::string> refusal_;
  TimePoint said_hello_{};
  TimePoint asked_status_{};
  control::Fence fence_;
  control::FleetFacts facts_;
  control::StatusReply status_;
  std::map<std::uint64_t, Round> rounds_;  // by the request of the publish
  std::uint64_t next_round_ = 1;
  std::set<Version> versions_;  // that sidecars may ask for
  std::uint64_t next_question_ = 1;
  std::map<std::uint64_t, std::function<void(Result<control::RollbackReply>)>> rollbacks_;
  std::map<std::uint64_t, std::function<void(control::TraceAnswer)>> traces_;
};

}  // namespace wsync::publish
