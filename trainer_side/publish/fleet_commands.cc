#include "trainer_side/publish/fleet_commands.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/observe/trace/limits.h"
#include "trainer_side/publish/fleet_trace.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kVerifyDeadline{120'000};  // it reads every byte of a model
constexpr std::chrono::milliseconds kPlanDeadline{10'000};
constexpr std::chrono::milliseconds kForgetDeadline{5'000};
constexpr std::chrono::milliseconds kProbeDeadline{1'000};
constexpr std::chrono::milliseconds kTraceDeadline{5'000};

}  // namespace

void FleetCommands::verify(std::function<void(control::VerifyReply)> on_done) {
  questions_.ask(roster_, next_question_++, control::Verify{}, kVerifyDeadline,
                 [this, on_done = std::move(on_done)](std::vector<FleetAnswer> answers) {
                   control::VerifyReply gathered;
                   for (FleetAnswer& answer : answers) {
                     auto* verified = std::get_if<control::VerifyReply>(&answer.message);
                     if (answer.failure || verified == nullptr)
                       add_unverified(answer, gathered.ranks);
                     else
                       std::ranges::move(verified->ranks, std::back_inserter(gathered.ranks));
                   }
                   on_done(std::move(gathered));
                 });
}

void FleetCommands::add_unverified(const FleetAnswer& answer,
                                   std::vector<control::VerifyRank>& ranks) const {
  const std::string failure =
      fmt::format("sidecar {} {}", answer.name, answer.failure.value_or("gave another answer"));
  const coordinator::Member* sidecar = roster_.find(answer.name);
  const std::size_t before = ranks.size();
  if (sidecar != nullptr)
    for (const control::ReplicaReport& replica : sidecar->report.replicas)
      for (std::uint32_t rank = 0; rank < std::max(1U, replica.world_size); ++rank)
        ranks.push_back({.replica = replica.replica, .rank = rank, .failure = "its " + failure});
  if (ranks.size() == before)
    ranks.push_back({.failure = failure + ", and none of its replicas is known"});
}

void FleetCommands::plan(control::Plan plan, std::function<void(control::PlanReply)> on_done) {
  questions_.ask(roster_, next_question_++, std::move(plan), kPlanDeadline,
                 [on_done = std::move(on_done)](std::vector<FleetAnswer> answers) {
                   control::PlanReply gathered;
                   for (FleetAnswer& answer : answers) {
                     auto* planned = std::get_if<control::PlanReply>(&answer.message);
                     if (answer.failure || planned == nullptr)
                       gathered.sidecars.push_back(
                           {.name = answer.name, .failure = answer.failure.value_or("")});
                     else
                       std::ranges::move(planned->sidecars, std::back_inserter(gathered.sidecars));
                   }
                   on_done(std::move(gathered));
                 });
}

void FleetCommands::forget_replica(const control::Forget& what,
                                   std::function<void(control::ForgetReply)> on_done) {
  const coordinator::Member* sidecar = roster_.find(what.sidecar);
  if (sidecar == nullptr || !sidecar->joined)
    return on_done(
        {.reason = fmt::format(
             "sidecar '{}' is not connected, so only the whole sidecar can be forgotten, "
             "with its replicas: `wsync forget {}`",
             what.sidecar, what.sidecar)});
  questions_.ask(
      *sidecar, next_question_++, what, kForgetDeadline,
      [on_done = std::move(on_done)](std::vector<FleetAnswer> answers) {
        FleetAnswer& answer = answers.front();
        auto* reply = std::get_if<control::ForgetReply>(&answer.message);
        if (answer.failure || reply == nullptr)
          on_done({.reason = fmt::format("sidecar '{}' {}", answer.name,
                                         answer.failure.value_or("did not understand"))});
        else
          on_done(std::move(*reply));
      });
}

void FleetCommands::answered(const std::string& peer, std::uint64_t request,
                             control::Message message, TimePoint at) {
  if (auto* traced = std::get_if<control::TraceAnswer>(&message))
    for (control::TraceProcess& process : traced->processes) measure_clock(process, at);
  questions_.answered(peer, request, std::move(message));
}

void FleetCommands::ask_traces(control::TraceQuestion question, FleetQuestions::OnDone on_done) {
  question.asked_ns = static_cast<std::int64_t>(now());
  const auto deadline = question.max_bytes == 0 ? kProbeDeadline : kTraceDeadline;
  if (const auto trainer = trainer_())
    questions_.ask(OtherPeer{.name = "trainer", .peer = *trainer}, roster_, next_question_++,
                   question, deadline, std::move(on_done));
  else
    questions_.ask(roster_, next_question_++, question, deadline, std::move(on_done));
}

void FleetCommands::collect_trace(const control::TraceQuestion& question,
                                  std::function<void(control::TraceAnswer)> on_done) {
  const TimePoint received = now();
  control::TraceQuestion share = question;
  share.max_bytes =
      std::min(question.max_bytes, limits::kTraceAnswerBytes) / (roster_.members().size() + 2);
  auto probes = std::make_shared<std::vector<FleetAnswer>>();
  const auto finish = [this, probes, share, received,
                       on_done = std::move(on_done)](std::vector<FleetAnswer> answers) {
    on_done(gathered_trace(own_trace("coordinator", own_spans_, share, received), *probes,
                           std::move(answers), boot_id()));
  };
  const auto keep = [probes](std::vector<FleetAnswer>& answers) {
    std::ranges::move(answers, std::back_inserter(*probes));
  };
  // Probe first and collect the spans afterwards: a probe that waits behind the spans of another
  // answer would measure the transfer of those spans instead of the clock.
  ask_traces({}, [this, keep, finish, share](std::vector<FleetAnswer> first) {
    keep(first);
    ask_traces({}, [this, keep, finish, share](std::vector<FleetAnswer> second) {
      keep(second);
      ask_traces(share, finish);
    });
  });
}

}  // namespace wsync::publish
