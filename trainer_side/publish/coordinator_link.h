// CoordinatorLink: the coordinator as the publishing side sees it. It brings a version to the fleet
// and reports the progress of its round through CoordinatorAgentCallbacks. CoordinatorAgent is one
// of this process, RemoteCoordinator one of another process.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shared/control/messages.h"
#include "shared/transport/pair_key.h"
#include "trainer_side/coordinator/coordinator_events.h"
#include "trainer_side/publish/publish_queue.h"
#include "trainer_side/publish/update_recorder.h"

namespace wsync::publish {

class CoordinatorLink : public CoordinatorFacts {
 public:
  // Call it once, before the loop runs. `transports`: by which this trainer serves versions, the
  // preferred kind first. `secret`: see CoordinatorOptions. Errors: those of the implementation.
  [[nodiscard]] virtual Result<> open(std::vector<control::TransportAddress> transports,
                                      const std::optional<transport::PairSecret>& secret) = 0;
  // Begins the round of a snapshot, complete or not, or queues it behind the running round.
  virtual void request_round(coordinator::PublishRequested publish) = 0;
  // The end of the snapshot of a publish whose round was requested before.
  virtual void end_snapshot(coordinator::SnapshotEnded snapshot) = 0;
  // Ends the publish of `version` as superseded if it still waits for its round.
  virtual void replace_waiting(const Version& version, const Version& by) = 0;
  // Cancels the update of this version (0.0: the running update) if it has not been decided. `why`:
  // for the reply to its publish; empty: on request. A coordinator of another process is asked, and
  // the end of the round shows what it has done.
  virtual control::CancelReply cancel(const Version& version, const std::string& why) = 0;
  // Why a rollback would be refused now, and not later; std::nullopt: it would not.
  [[nodiscard]] virtual std::optional<std::string> why_rollback_waits() const = 0;
  // on_done is called once.
  virtual void roll_back(const Version& to,
                         std::function<void(Result<control::RollbackReply>)> on_done) = 0;
  // Collects the traces of the coordinator's process and of the sidecars that answer. on_done is
  // called once, on the loop, within seconds. The clock of each sidecar is measured first.
  virtual void collect_trace(const control::TraceQuestion& question,
                             std::function<void(control::TraceAnswer)> on_done) = 0;
  // Answers a peer's push (CoordinatorAgentCallbacks::on_push).
  virtual void reply(const std::string& peer, std::uint64_t request, control::Message message) = 0;
  // A coordinator of another process is asked, and its last answer is returned.
  [[nodiscard]] virtual control::StatusReply status() = 0;

  [[nodiscard]] virtual const control::Fence& fence() const noexcept = 0;
  // See Roster::patch_value_cost().
  [[nodiscard]] virtual std::uint32_t patch_value_cost() const = 0;
  // The version that was decided last.
  [[nodiscard]] virtual const Version& target() const noexcept = 0;
  // Whether every sidecar takes the next version as what changes from the target.
  [[nodiscard]] virtual bool may_hold_changes() const = 0;
  // Bytes moved in the running round.
  [[nodiscard]] virtual PhaseBytes moved_bytes() const = 0;
  [[nodiscard]] virtual const std::string& address() const noexcept = 0;
  // The last error that a sidecar has reported, for example why it does not join.
  [[nodiscard]] virtual const std::optional<std::string>& complaint() const noexcept = 0;
  // Numbers the updates of this process, and records them.
  [[nodiscard]] virtual UpdateRecorder& recorder() noexcept = 0;
};

}  // namespace wsync::publish
