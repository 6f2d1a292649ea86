#include "inference_side/staging/receive_round.h"

#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::staging {
namespace {

constexpr std::string_view kGivenUp = "it is aborted, or an offer or a fence replaces it";

constexpr auto kReceiveTransitions = [] {
  using enum ReceiveState;
  return std::array<Transition<ReceiveState>, 19>{{
      {kIdle, "a version is offered that is not held", kChecking, "CheckLayout"},
      {kIdle, "a version is offered that is held", kStaged, "Accept"},
      {kChecking, "its layout fits", kAccepted, "Accept"},
      {kChecking, "its layout does not fit, or it is cancelled", kIdle, "Refuse"},
      {kAccepted, "the coordinator names a source", kWaiting, ""},
      {kAccepted, kGivenUp, kIdle, ""},
      {kWaiting, "the coordinator names a source again", kWaiting, "note it"},
      {kWaiting, "there is room, or its memory is here already", kStaging, "StartStaging"},
      {kWaiting, kGivenUp, kIdle, "CancelStaging if it has begun"},
      {kStaging, "the coordinator names the same source again", kStaging, "note the request"},
      {kStaging, "its content digest becomes known", kStaging, "ExpectContent"},
      {kStaging, "the coordinator names another source", kWaiting, ""},
      {kStaging, "its content digest is known, and is that of its bytes", kStaged, "Staged"},
      {kStaging, "its source is lost", kStalled, "Staged with a failure"},
      {kStaging, "its bytes differ, staging fails, or it is cancelled", kIdle,
       "ReleaseVersion or CancelStaging; Staged with a failure"},
      {kStalled, "the coordinator names a source", kWaiting, ""},
      {kStalled, kGivenUp, kIdle, "CancelStaging"},
      {kStaged, "the coordinator names a source", kStaged, "Staged again"},
      {kStaged, "it is decided, its copy is lost, or it is cancelled", kIdle,
       "ReleaseVersion if it was staged but not decided"},
  }};
}();

}  // namespace

std::string_view receive_state_name(ReceiveState state) noexcept {
  switch (state) {
    case ReceiveState::kIdle:
      return "idle";
    case ReceiveState::kChecking:
      return "checking";
    case ReceiveState::kAccepted:
      return "accepted";
    case ReceiveState::kWaiting:
      return "waiting";
    case ReceiveState::kStaging:
      return "staging";
    case ReceiveState::kStalled:
      return "stalled";
    case ReceiveState::kStaged:
      return "staged";
  }
  return "unknown";
}

TransitionTable receive_transitions() {
  return describe<ReceiveState>("ReceiveRound", "The version that a sidecar is receiving.",
                                kReceiveTransitions, receive_state_name);
}

void ReceiveRound::move(ReceiveState to) {
  WSYNC_CHECK(allows<ReceiveState>(kReceiveTransitions, state_, to),
              fmt::format("the receiving of a version cannot go from {} to {}",
                          receive_state_name(state_), receive_state_name(to)));
  state_ = to;
}

bool ReceiveRound::is(std::uint64_t round, const Version& version) const {
  return state_ != ReceiveState::kIdle && round_ == round && announce_.version == version;
}

std::string ReceiveRound::activity() const {
  const std::string version = announce_.version.to_string();
  switch (state_) {
    case ReceiveState::kIdle:
      return {};
    case ReceiveState::kChecking:
      return "checking the layout of " + version;
    case ReceiveState::kAccepted:
      return version + " is accepted and waits for its source";
    case ReceiveState::kWaiting:
      return version + " waits for room among the held versions";
    case ReceiveState::kStaging:
      return "staging " + version + (has_content() ? "" : ", whose snapshot is under way");
    case ReceiveState::kStalled:
      return version + " has lost its source and waits for another one";
    case ReceiveState::kStaged:
      return version + " is staged and waits for its decision";
  }
  return {};
}

bool ReceiveRound::stages(std::uint64_t attempt) const {
  return state_ == ReceiveState::kStaging && attempt_ == attempt;
}

bool ReceiveRound::raise_round(std::uint64_t round) {
  if (round <= newest_round_ && !planted("stale_round_accepted")) return false;
  newest_round_ = round;
  return true;
}

void ReceiveRound::open(const control::Envelope& envelope, const control::Announce& announce,
                        bool held) {
  move(held ? ReceiveState::kStaged : ReceiveState::kChecking);
  round_ = envelope.round;
  request_ = envelope.request;
  announce_ = announce;
}

void ReceiveRound::accept() { move(ReceiveState::kAccepted); }

bool ReceiveRound::learn_content(const Digest& content) {
  if (content == Digest{} || content == announce_.content_digest) return false;
  WSYNC_CHECK(state_ != ReceiveState::kIdle && !has_content(), "a version has one content");
  announce_.content_digest = content;
  return true;
}

bool ReceiveRound::assign(std::uint64_t request, const control::Stage& stage) {
  request_ = request;
  const bool comes = state_ == ReceiveState::kStaging && stage_.transport == stage.transport &&
                     stage_.source == stage.source;
  const bool begins = state_ == ReceiveState::kAccepted || state_ == ReceiveState::kStalled ||
                      (state_ == ReceiveState::kStaging && !comes);
  if (state_ != ReceiveState::kStaged) stage_ = stage;
  if (begins) move(ReceiveState::kWaiting);
  return begins;
}

StartStaging ReceiveRound::start(const Version& base) {
  move(ReceiveState::kStaging);
  attempt_ = ++attempts_;
  if (!begun_) base_ = base;
  return {.attempt = attempt_,
          .announce = announce_,
          .stage = stage_,
          .resume = std::exchange(begun_, true),
          .base = base_};
}

void ReceiveRound::complete() { move(ReceiveState::kStaged); }

void ReceiveRound::stall() { move(ReceiveState::kStalled); }

void ReceiveRound::close() {
  move(ReceiveState::kIdle);
  round_ = request_ = attempt_ = 0;
  begun_ = false;
  base_ = {};
  announce_ = {};
  stage_ = {};
}

Result<> ReceiveRound::invariants() const {
  const auto broken = [](std::string_view rule) {
    return fail(ErrorCode::kInternal, std::string(rule));
  };
  if (state_ == ReceiveState::kIdle && !announce_.version.none())
    return broken("a version is kept while none is being received");
  if (begun_ && (state_ == ReceiveState::kIdle || state_ == ReceiveState::kChecking ||
                 state_ == ReceiveState::kAccepted))
    return broken("bytes of a version may have arrived before a source was named");
  if (state_ == ReceiveState::kStaging && (attempt_ == 0 || !begun_))
    return broken("a version is staged without an attempt");
  if (state_ == ReceiveState::kStaged && !has_content())
    return broken("a version is staged without its content digest");
  return {};
}

}  // namespace wsync::staging
