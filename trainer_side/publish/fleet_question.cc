#include "trainer_side/publish/fleet_question.h"

namespace wsync::publish {

void FleetQuestions::ask(const coordinator::Roster& roster, std::uint64_t request,
                         const control::Message& question, std::chrono::milliseconds deadline,
                         OnDone on_done) {
  Pending& pending = pending_[request];
  pending.on_done = std::move(on_done);
  for (const auto& [name, member] : roster.members()) send(pending, member, request, question);
  wait(pending, request, deadline);
}

void FleetQuestions::ask(const OtherPeer& other, const coordinator::Roster& roster,
                         std::uint64_t request, const control::Message& question,
                         std::chrono::milliseconds deadline, OnDone on_done) {
  Pending& pending = pending_[request];
  pending.on_done = std::move(on_done);
  send(pending, pending.answers.emplace_back(FleetAnswer{.name = other.name, .is_sidecar = false}),
       other.peer, request, question);
  for (const auto& [name, member] : roster.members()) send(pending, member, request, question);
  wait(pending, request, deadline);
}

void FleetQuestions::ask(const coordinator::Member& sidecar, std::uint64_t request,
                         const control::Message& question, std::chrono::milliseconds deadline,
                         OnDone on_done) {
  Pending& pending = pending_[request];
  pending.on_done = std::move(on_done);
  send(pending, sidecar, request, question);
  wait(pending, request, deadline);
}

void FleetQuestions::send(Pending& pending, const coordinator::Member& sidecar,
                          std::uint64_t request, const control::Message& question) {
  FleetAnswer& answer = pending.answers.emplace_back(FleetAnswer{.name = sidecar.name});
  if (sidecar.joined) return send(pending, answer, sidecar.peer, request, question);
  answer.failure = "is not connected";
}

// `answer` is the last one of `pending`.
void FleetQuestions::send(Pending& pending, FleetAnswer& answer, const std::string& peer,
                          std::uint64_t request, const control::Message& question) {
  if (!send_(peer, request, question)) {
    answer.failure = "does not read its messages";
    return;
  }
  answer.failure = "did not answer before the deadline";
  pending.waiting[peer] = pending.answers.size() - 1;
}

void FleetQuestions::wait(Pending& pending, std::uint64_t request,
                          std::chrono::milliseconds deadline) {
  if (pending.waiting.empty()) return finish(request);
  pending.deadline = std::make_unique<Timer>(loop_, [this, request] { finish(request); });
  pending.deadline->start(deadline);
}

bool FleetQuestions::answered(const std::string& peer, std::uint64_t request,
                              control::Message message) {
  const auto it = pending_.find(request);
  if (it == pending_.end()) return false;
  auto place = it->second.waiting.extract(peer);
  if (place.empty()) return false;
  FleetAnswer& answer = it->second.answers[place.mapped()];
  answer.failure.reset();
  answer.message = std::move(message);
  if (it->second.waiting.empty()) finish(request);
  return true;
}

void FleetQuestions::lost(const std::string& peer, const std::string& why) {
  std::vector<std::uint64_t> complete;
  for (auto& [request, pending] : pending_) {
    const auto place = pending.waiting.extract(peer);
    if (place.empty()) continue;
    pending.answers[place.mapped()].failure = "was lost: " + why;
    if (pending.waiting.empty()) complete.push_back(request);
  }
  for (const std::uint64_t request : complete) finish(request);
}

void FleetQuestions::finish(std::uint64_t request) {
  auto entry = pending_.extract(request);
  if (!entry.empty()) entry.mapped().on_done(std::move(entry.mapped().answers));
}

}  // namespace wsync::publish
