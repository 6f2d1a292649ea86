#include "inference_side/engine_link/led_steps.h"

#include <array>
#include <random>
#include <utility>

#include "inference_side/engine_link/engine_link.h"
#include "inference_side/engine_link/rank_machine.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::engine {
namespace {

using Follow = StepFollower::Decision;

constexpr std::array<Transition<LeaderState>, 13> kLeaderTransitions = {{
    {LeaderState::kStopped, "the next step", LeaderState::kStopped, "the last header once more"},
    {LeaderState::kStopped, "the next step, after the engine has stopped", LeaderState::kStopped,
     "header: stop"},
    {LeaderState::kStopped, "Pause", LeaderState::kStopped, ""},
    {LeaderState::kStopped, "Resume", LeaderState::kRunning, ""},
    {LeaderState::kStopped, "the engine has stopped", LeaderState::kStopped, ""},
    {LeaderState::kRunning, "the next step", LeaderState::kRunning, "header: go"},
    {LeaderState::kRunning, "Pause", LeaderState::kStopping, ""},
    {LeaderState::kRunning, "Resume", LeaderState::kRunning, ""},
    {LeaderState::kRunning, "the engine has stopped", LeaderState::kStopped, ""},
    {LeaderState::kStopping, "the next step", LeaderState::kStopped,
     "header: stop; report that the rank has paused"},
    {LeaderState::kStopping, "Pause, repeated", LeaderState::kStopping, ""},
    {LeaderState::kStopping, "Resume", LeaderState::kRunning, "withdraw the pause"},
    {LeaderState::kStopping, "the engine has stopped", LeaderState::kStopped, ""},
}};

constexpr std::array<Transition<FollowerState>, 9> kFollowerTransitions = {{
    {FollowerState::kStopped, "go", FollowerState::kRunning, "report that the rank runs; step"},
    {FollowerState::kStopped, "stop", FollowerState::kStopped, "report that the rank has paused"},
    {FollowerState::kStopped, "stop, repeated or before any decision", FollowerState::kStopped, ""},
    {FollowerState::kStopped, "go of another version, or out of order", FollowerState::kStopped,
     "refuse"},
    {FollowerState::kRunning, "go", FollowerState::kRunning, "step"},
    {FollowerState::kRunning, "stop", FollowerState::kStopped, "report that the rank has paused"},
    {FollowerState::kRunning, "go of another version, or out of order", FollowerState::kStopped,
     "refuse; report that the rank has paused"},
    {FollowerState::kRunning, "what is no header", FollowerState::kStopped,
     "refuse; report that the rank has paused"},
    {FollowerState::kRunning, "the engine has stopped", FollowerState::kStopped, ""},
}};

std::string text_of(const Version& version) {
  return version.none() ? "no version" : "version " + version.to_string();
}

std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32U | device();
}

HeldVersion held_by(const LinkStatus& status) {
  return {.version = status.active,
          .is_whole = status.state == control::RankState::kServing ||
                      status.state == control::RankState::kPaused,
          .state = rank_state_name(status.state)};
}

}  // namespace

std::string_view leader_state_name(LeaderState state) noexcept {
  switch (state) {
    case LeaderState::kStopped:
      return "stopped";
    case LeaderState::kRunning:
      return "running";
    case LeaderState::kStopping:
      return "stopping";
  }
  return "unknown";
}

std::string_view follower_state_name(FollowerState state) noexcept {
  switch (state) {
    case FollowerState::kStopped:
      return "stopped";
    case FollowerState::kRunning:
      return "running";
  }
  return "unknown";
}

TransitionTable step_leader_transitions() {
  return describe<LeaderState>("StepLeader",
                               "The steps of a replica, in the process of its leader. It begins in "
                               "`stopped`, or in `running` when it has weights of its own.",
                               kLeaderTransitions, leader_state_name);
}

TransitionTable step_follower_transitions() {
  return describe<FollowerState>("StepFollower",
                                 "The steps of a replica, in the process of another rank. What "
                                 "comes is the header of the leader.",
                                 kFollowerTransitions, follower_state_name);
}

// ---- the leader ----

void StepLeader::handle_pause() noexcept {
  if (state_ == LeaderState::kRunning) state_ = LeaderState::kStopping;
}

void StepLeader::handle_resume() noexcept {
  state_ = LeaderState::kRunning;
  is_new_stop_ = false;
}

void StepLeader::handle_stopped() noexcept {
  is_new_stop_ = is_new_stop_ || state_ != LeaderState::kStopped;
  state_ = LeaderState::kStopped;
}

StepLeader::Decision StepLeader::next(const Version& active) noexcept {
  last_.version = active;
  if (state_ == LeaderState::kRunning ||
      (state_ == LeaderState::kStopped && last_.decision != 0 && planted("led_goes_on"))) {
    last_.go = true;
    ++last_.step;
    ++last_.decision;
    return {.header = last_};
  }
  const bool has_paused = state_ == LeaderState::kStopping;
  if (has_paused || std::exchange(is_new_stop_, false)) ++last_.decision;
  state_ = LeaderState::kStopped;
  last_.go = false;
  return {.header = last_, .has_paused = has_paused};
}

// ---- a follower ----

std::string StepFollower::other_version(const StepHeader& header, const HeldVersion& held) const {
  if ((held.is_whole && held.version == header.version) || planted("led_version_ignored"))
    return {};
  const std::string holds = held.is_whole
                                ? text_of(held.version)
                                : fmt::format("no whole version: it is {}, and held {} before",
                                              held.state, text_of(held.version));
  return fmt::format("{} holds {}, but its leader begins step {} under {}", name_, holds,
                     header.step, text_of(header.version));
}

// Headers of one leader come one after the other, each once.
std::string StepFollower::out_of_order(const StepHeader& header) const {
  if (!last_ || last_->leader != header.leader) return {};
  if (header.decision == last_->decision)
    return fmt::format("{} has got the header of step {} twice, and must not step twice", name_,
                       header.step);
  if (header.decision < last_->decision)
    return fmt::format("{} has got decision {} of its leader after decision {}", name_,
                       header.decision, last_->decision);
  if (header.decision != last_->decision + 1)
    return fmt::format(
        "{} has got decision {} of its leader after decision {}: it has missed a header, so it may "
        "have missed a step before step {}",
        name_, header.decision, last_->decision, header.step);
  return {};
}

Follow StepFollower::refuse(std::string why) {
  Follow decision;
  decision.refusal = std::move(why);
  if (std::exchange(state_, FollowerState::kStopped) == FollowerState::kRunning)
    decision = {.go = false,
                .report = Follow::Report::kPaused,
                .step = step_,
                .refusal = std::move(decision.refusal)};
  return decision;
}

Follow StepFollower::refuse_garbage() {
  return refuse(fmt::format(
      "{} has got what is no header of a step: the bytes of wsync_engine_lead_step must arrive as "
      "they are",
      name_));
}

Follow StepFollower::handle(const StepHeader& header, const HeldVersion& held) {
  Follow decision;
  if (!header.go) {
    const bool is_repeated = last_ && last_->leader == header.leader && !last_->go &&
                             header.decision == last_->decision && !planted("led_stop_told_twice");
    const bool was_running =
        std::exchange(state_, FollowerState::kStopped) == FollowerState::kRunning;
    last_ = header;
    step_ = header.step;
    if (was_running || (header.decision != 0 && !is_repeated)) {
      decision.report = Follow::Report::kPaused;
      decision.step = header.step;
    }
    return decision;
  }
  // The version first: it is what the weights are, and the rest is only the order.
  std::string why = other_version(header, held);
  if (why.empty()) why = out_of_order(header);
  last_ = header;
  if (!why.empty()) return refuse(std::move(why));
  decision.go = true;
  step_ = header.step;
  if (std::exchange(state_, FollowerState::kRunning) == FollowerState::kStopped) {
    decision.report = Follow::Report::kRunning;
    decision.step = header.step;
  }
  return decision;
}

// ---- with the link ----

LedSteps::LedSteps(std::string replica, std::uint32_t rank, bool is_leader, bool is_serving)
    : is_leader_(is_leader),
      leader_(random_number(), is_serving),
      follower_(fmt::format("replica {} rank {}", replica, rank), is_serving) {}

void LedSteps::handle_pause() {
  const std::lock_guard lock(mutex_);
  leader_.handle_pause();
  if (planted("led_paused_early")) link_->report_paused(leader_.step());
}

void LedSteps::handle_resume() {
  const std::lock_guard lock(mutex_);
  leader_.handle_resume();
}

void LedSteps::handle_stopped() {
  const std::lock_guard lock(mutex_);
  leader_.handle_stopped();
  follower_.handle_stopped();
}

Result<> LedSteps::check_attached() const {
  if (link_ != nullptr) return {};
  return fail(ErrorCode::kInvalidInput, "the engine is not attached; call wsync_engine_attach");
}

Result<StepHeader> LedSteps::lead() {
  if (!is_leader_)
    return fail(ErrorCode::kInvalidInput,
                "only the leader of a replica leads its steps; this rank follows");
  WSYNC_TRY(check_attached());
  // With the lock held, so that no pause and no resume comes between the two.
  const std::lock_guard lock(mutex_);
  const StepLeader::Decision decision = leader_.next(link_->status().active);
  // With the lock held: a Resume that comes now finds this report before it.
  if (decision.has_paused) link_->report_paused(decision.header.step);
  return decision.header;
}

void LedSteps::report(const Follow& decision) {
  switch (decision.report) {
    case Follow::Report::kNone:
      return;
    case Follow::Report::kRunning:
      return link_->report_running(decision.step);
    case Follow::Report::kPaused:
      return link_->report_paused(decision.step);
  }
}

Result<bool> LedSteps::follow(const std::optional<StepHeader>& header) {
  if (is_leader_)
    return fail(ErrorCode::kInvalidInput,
                "the leader of a replica does not follow; it steps when its own header says go");
  WSYNC_TRY(check_attached());
  const std::lock_guard lock(mutex_);
  Follow decision =
      header ? follower_.handle(*header, held_by(link_->status())) : follower_.refuse_garbage();
  report(decision);
  if (decision.report == Follow::Report::kRunning) {
    // A load that had begun before the report shows now.
    const Result<> handled = link_->wait_until_settled();
    std::string why = handled ? follower_.other_version(*header, held_by(link_->status()))
                              : handled.error().message();
    if (!why.empty()) {
      decision = follower_.refuse(std::move(why));
      report(decision);
    }
  }
  if (!decision.refusal.empty()) return fail(ErrorCode::kRefused, decision.refusal);
  return decision.go;
}

}  // namespace wsync::engine
