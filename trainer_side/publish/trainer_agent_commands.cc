// TrainerAgent: what comes on the control port, and the commands among it.
#include <algorithm>
#include <iterator>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/control/codec.h"
#include "trainer_side/publish/checkpoint_source.h"
#include "trainer_side/publish/fleet_trace.h"
#include "trainer_side/publish/trainer_agent.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kVerifyDeadline{120'000};
constexpr std::chrono::milliseconds kPlanDeadline{10'000};

control::ErrorReply error_reply(const Error& error) {
  return {.code = static_cast<std::uint8_t>(error.code()), .message = error.message()};
}

}  // namespace

void TrainerAgent::on_message(const std::string& peer, control::Envelope envelope,
                              control::Message message) {
  if (const auto* push = std::get_if<control::Push>(&message)) {
    on_push(peer, envelope, *push);
  } else if (const auto* rollback = std::get_if<control::Rollback>(&message)) {
    roll_back(rollback->to,
              [this, peer, request = envelope.request](Result<control::RollbackReply> back) {
                if (back)
                  reply(peer, request, std::move(*back));
                else
                  reply(peer, request, error_reply(back.error()));
              });
  } else if (std::holds_alternative<control::Status>(message)) {
    reply(peer, envelope.request, status());
  } else if (const auto* stop = std::get_if<control::Cancel>(&message)) {
    reply(peer, envelope.request, cancel(stop->version));
  } else if (std::holds_alternative<control::Verify>(message)) {
    on_verify(peer, envelope);
  } else if (auto* plan = std::get_if<control::Plan>(&message)) {
    on_plan(peer, envelope, std::move(*plan));
  } else if (const auto* question = std::get_if<control::TraceQuestion>(&message)) {
    collect_trace(*question, [this, peer, request = envelope.request](control::TraceAnswer answer) {
      reply(peer, request, std::move(answer));
    });
  } else if (auto* traced = std::get_if<control::TraceAnswer>(&message)) {
    const TimePoint heard = now();
    for (control::TraceProcess& process : traced->processes) measure_clock(process, heard);
    questions_.answered(peer, envelope.request, std::move(message));
  } else if (std::holds_alternative<control::VerifyReply>(message) ||
             std::holds_alternative<control::PlanReply>(message)) {
    questions_.answered(peer, envelope.request, std::move(message));
  } else {
    if (const auto* error = std::get_if<control::ErrorReply>(&message)) {
      log_warning("{}: {}", peer, error->message);
      complaint_ = error->message;
    }
    if (const std::string name = sidecar_of(peer); !name.empty())
      if (const auto answered = trace_.heard(name, message, now()))
        history_.answered(name, answered->version, answered->stage, answered->begin, now());
    const bool leaves = std::holds_alternative<control::Leave>(message);
    if (const std::string name = sidecar_of(peer); leaves && !name.empty())
      log_info("sidecar {} has left: it has stopped, and no engine is attached to it", name);
    const auto* hello = std::get_if<control::Hello>(&message);
    const bool gone = hello != nullptr && predecessor_is_gone(*hello);
    step(coordinator::PeerMessage{.peer = peer,
                                  .envelope = std::move(envelope),
                                  .message = std::move(message),
                                  .predecessor_gone = gone});
    if (leaves) questions_.lost(peer, "it left");
  }
}

// A sidecar of this host that was killed and started anew gets its name back at once, and not only
// when its silence has been noticed. Elsewhere a process id says nothing.
bool TrainerAgent::predecessor_is_gone(const control::Hello& hello) const {
  const auto& members = coordinator_.roster().members();
  const auto known = members.find(hello.name);
  if (known == members.end()) return false;
  const coordinator::Member& before = known->second;
  const std::uint64_t own = pid_namespace();
  return own != 0 && before.pid_namespace == own && !before.boot_id.empty() &&
         before.boot_id == boot_id() && process_is_gone(before.report.pid);
}

void TrainerAgent::reply(const std::string& peer, std::uint64_t request, control::Message message) {
  control::Envelope envelope;
  envelope.fence = coordinator_.fence();
  envelope.request = request;
  Result<> sent = router_->send(peer, envelope, message);
  if (!sent && sent.error().code() == ErrorCode::kInvalidInput) {
    // It cannot be put on the wire: who asked is told, and need not wait for his deadline.
    const Error why = sent.error().with_context(
        fmt::format("the {} cannot be sent", control::message_name(control::type_of(message))));
    log_warning("reply to {}: {}", peer, why.message());
    sent = router_->send(peer, envelope, error_reply(why));
  }
  if (!sent) log_debug("reply to {}: {}", peer, sent.error().message());
}

// ---- commands ----

void TrainerAgent::on_push(const std::string& peer, const control::Envelope& envelope,
                           const control::Push& push) {
  const std::uint64_t request = envelope.request;
  log_info("push of {} asked for", push.directory);
  PublishJob job;
  job.open = [directory = push.directory] { return open_checkpoint_source(directory); };
  job.step = push.step;
  job.on_progress = [this, peer, request](const PublishProgress& progress) {
    reply(peer, request,
          control::Progress{.phase = progress.phase,
                            .done_bytes = progress.done_bytes,
                            .total_bytes = progress.total_bytes});
  };
  job.on_done = [this, peer, request](PublishResult result) {
    if (result.error)
      reply(peer, request, error_reply(*result.error));
    else
      reply(peer, request, std::move(result.reply));
  };
  publish(std::move(job));
}

void TrainerAgent::roll_back(const Version& to,
                             std::function<void(Result<control::RollbackReply>)> on_done) {
  if (const auto stopped = why_stopped()) return on_done(fail(*stopped));
  const std::uint64_t request = next_request_++;
  rollbacks_[request] = std::move(on_done);
  step(coordinator::RollbackRequested{.request = request, .to = to});
}

void TrainerAgent::on_verify(const std::string& peer, const control::Envelope& envelope) {
  questions_.ask(coordinator_.roster(), next_request_++, control::Verify{}, kVerifyDeadline,
                 [this, peer, request = envelope.request](std::vector<FleetAnswer> answers) {
                   control::VerifyReply gathered;
                   for (FleetAnswer& answer : answers) {
                     auto* verified = std::get_if<control::VerifyReply>(&answer.message);
                     if (!answer.failure.empty() || verified == nullptr)
                       gathered.ranks.push_back(
                           {.replica = answer.sidecar, .failure = "its sidecar " + answer.failure});
                     else
                       std::ranges::move(verified->ranks, std::back_inserter(gathered.ranks));
                   }
                   reply(peer, request, std::move(gathered));
                 });
}

void TrainerAgent::on_plan(const std::string& peer, const control::Envelope& envelope,
                           control::Plan plan) {
  questions_.ask(
      coordinator_.roster(), next_request_++, std::move(plan), kPlanDeadline,
      [this, peer, request = envelope.request](std::vector<FleetAnswer> answers) {
        control::PlanReply gathered;
        for (FleetAnswer& answer : answers) {
          auto* planned = std::get_if<control::PlanReply>(&answer.message);
          if (!answer.failure.empty() || planned == nullptr)
            gathered.sidecars.push_back({.name = answer.sidecar, .failure = answer.failure});
          else
            std::ranges::move(planned->sidecars, std::back_inserter(gathered.sidecars));
        }
        reply(peer, request, std::move(gathered));
      });
}

}  // namespace wsync::publish
