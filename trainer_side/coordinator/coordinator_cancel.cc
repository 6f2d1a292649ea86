// Coordinator: how an update that has not been decided is stopped on request.
#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::publish {
namespace {

constexpr std::string_view kCancelled =
    "cancelled on request; the engines keep the version they serve";

control::ProgressPhase phase_of_round(CoordinatorPhase phase) {
  return phase == CoordinatorPhase::kStaging ? control::ProgressPhase::kStage
                                             : control::ProgressPhase::kAnnounce;
}

}  // namespace

// Empty when the round that runs is the one that is meant and may still end.
std::string Coordinator::why_not_cancelled(const Version& version) const {
  const std::string name = version.none() ? "no update" : "no update of " + version.to_string();
  if (!round_) return fmt::format("nothing to cancel: {} is running", name);
  const bool meant = version.none() || has_update(version);
  if (!meant)
    return fmt::format(
        "nothing to cancel: {} is running; that of {} is", name,
        round_->is_rollback ? record().target.to_string() : round_->publish.version.to_string());
  if (round_->is_rollback)
    return fmt::format(
        "the rollback to {} has been decided and goes on: replicas may have gone back already",
        record().target.to_string());
  const bool decided = phase_ == CoordinatorPhase::kSwitching || log_.is_storing();
  if (decided && !planted("cancel_after_the_decision"))
    return fmt::format(
        "{} has been decided and its switch goes on: replicas may serve it already; `wsync "
        "rollback` goes back to the version before it{}",
        round_->publish.version.to_string(),
        waiting_ ? fmt::format("; {} waits behind it: name it with --version to cancel that one",
                               waiting_->version.to_string())
                 : "");
  return {};
}

void Coordinator::on(const CancelRequested& event) {
  control::CancelReply reply;
  // A publish may wait in the queue, behind what is being stored.
  const auto queued = std::ranges::find_if(queue_, [&](const CoordinatorEvent& other) {
    const auto* publish = std::get_if<PublishRequested>(&other.what);
    return publish != nullptr && publish->version == event.version;
  });
  if (queued != queue_.end()) {
    reply = {.ok = true, .version = event.version, .phase = control::ProgressPhase::kSnapshot};
    const PublishRequested publish = std::get<PublishRequested>(queued->what);
    queue_.erase(queued);
    refuse_publish(publish, std::string(kCancelled), Refusal::kCancelled);
  } else if (waiting_ && waiting_->version == event.version) {
    reply = {.ok = true, .version = event.version, .phase = control::ProgressPhase::kSnapshot};
    refuse_publish(*std::exchange(waiting_, std::nullopt), std::string(kCancelled),
                   Refusal::kCancelled);
  } else if (reply.reason = why_not_cancelled(event.version); reply.reason.empty()) {
    reply.ok = true;
    reply.version = round_->publish.version;
    reply.phase = phase_of_round(phase_);
    round_->cancelled = true;
    abort_round(std::string(kCancelled));
  }
  context_.emit(CancelDone{.request = event.request, .reply = std::move(reply)});
}

}  // namespace wsync::publish
