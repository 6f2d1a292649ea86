#include "inference_side/staging/sidecar.h"

#include <algorithm>
#include <utility>

#include "inference_side/staging/sidecar_replies.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/config/limits.h"

namespace wsync::staging {
Sidecar::Sidecar(SidecarOptions options, SidecarRecord record, std::vector<HeldCopy> held)
    : options_(std::move(options)),
      registration_(options_.hello_retry),
      record_(std::move(record)),
      held_(options_.versions_held, std::move(held)),
      replicas_(options_) {
  WSYNC_CHECK(options_.versions_held >= config::kVersionsHeldMin,
              "a sidecar holds at least the target and the next one");
}

std::vector<SidecarCommand> Sidecar::step(const SidecarEvent& event) {
  now_ = event.now;
  out_.clear();
  std::visit([this](const auto& what) { handle(what); }, event.what);
  // Any event may have released the copy that occupied the memory, for example the end of a switch
  // or a decision.
  // A version waits until the target is complete, because it may then come as what changes from it.
  if (round_.state() == ReceiveState::kWaiting && held_.completing().none() &&
      (round_.begun() || make_room()))
    out_.emplace_back(round_.start(base_to_keep()));
  release_surplus();
  while (std::exchange(notify_replicas_, false)) notify_staged();
  give_loads();
  complete_wanted();
  give_turns();
  // Send the heartbeat before a report that ends a round, because the next round may begin at once.
  if (std::exchange(beat_due_, false) && welcomed()) out_.emplace_back(BeatNow{});
  // Outcomes of a decision under a lower fence are not reported: under this one, another decision
  // may have the same number.
  if (auto report = replicas_.take_report(); report && report->fence == fence())
    reply(report->round, report->request, std::move(report->switched));
  if ((registration_.hello_requested() || registration_.is_due(now_)) && welcomed() &&
      !hello_must_wait())
    send_hello();
  const Result<> holds = invariants();
  WSYNC_CHECK(holds.has_value(), holds.error().message());
  return std::exchange(out_, {});
}

// A Hello removes this sidecar from its round, so it waits until the round has its outcomes.
bool Sidecar::hello_must_wait() const {
  return welcomed() && replicas_.outcome_state() == OutcomeState::kCollecting;
}

std::optional<TimePoint> Sidecar::next_wake() const {
  std::optional<TimePoint> wake;
  if (!hello_must_wait()) wake = registration_.next_wake();
  const std::optional<TimePoint> replica = replicas_.next_wake();
  if (replica && (!wake || *replica < *wake)) wake = replica;
  return wake;
}

// ---- the coordinator's link ----

void Sidecar::handle(const LinkUp& /*event*/) {
  registration_.connect();
  capabilities_ = 0;
  send_hello();
}

// Without its coordinator, this sidecar begins no pause that needs a turn: the coordinator may have
// given the turns to another one.
void Sidecar::handle(const CoordinatorLost& /*event*/) {
  replicas_.set_turns(0);
  registration_.lose(now_);
}

void Sidecar::handle(const reload::Tick& /*event*/) {
  if (!welcomed() && registration_.is_due(now_)) send_hello();
  forward(replicas_.tick(record(), now_));
  for (const std::string& replica : replicas_.due_to_forget(now_)) forget(replica);
}

void Sidecar::handle(const ForgetReplica& event) {
  if (replicas_.check_forget(event.replica))
    forget(event.replica);
  else
    ++dropped_;
}

void Sidecar::forget(const std::string& replica) {
  replicas_.forget(replica);
  held_back_.erase(replica);
  out_.emplace_back(ReplicaForgotten{replica});
  beat_due_ = true;
}

void Sidecar::handle(const CoordinatorMessage& event) {
  if (record_.state() == RecordState::kStored)
    apply(event);
  else if (!record_.defer(event))
    ++dropped_;
}

void Sidecar::apply(const CoordinatorMessage& event) {
  const control::Envelope& envelope = event.envelope;
  const FenceCheck check = record_.check(envelope.fence);
  if (check == FenceCheck::kOtherFleet || check == FenceCheck::kLower) {
    ++dropped_;
    if (auto refusal = fence_refusal(options_.name, fence(), event, check))
      reply(envelope.round, envelope.request, std::move(*refusal));
    return;
  }
  // Notices also reach a sidecar that does not follow their sender. They must not make it follow.
  if (is_notice(event.message) && envelope.fence != fence()) {
    ++dropped_;
    return;
  }
  if (check == FenceCheck::kHigher) {
    SidecarRecord next = record();
    next.fence = envelope.fence;
    out_.emplace_back(record_.write(std::move(next), event));
    return;
  }
  std::visit(
      [&](const auto& message) {
        if constexpr (requires { apply(envelope, message); })
          apply(envelope, message);
        else if constexpr (!std::is_same_v<decltype(message), const control::Heartbeat&>)
          ++dropped_;
      },
      event.message);
}

void Sidecar::handle(const Persisted& event) {
  const std::optional<FinishedWrite> finished = record_.finish(event);
  if (!finished) {
    ++dropped_;
    return;
  }
  const CoordinatorMessage& cause = finished->cause;
  switch (finished->effect) {
    case WriteEffect::kFailed:
      reply(cause.envelope.round, cause.envelope.request,
            write_refusal(options_.name, cause, event.failure));
      break;
    case WriteEffect::kDecided:
      apply_decision(cause.envelope, std::get<control::Decide>(cause.message));
      break;
    case WriteEffect::kWithdrawn:
      forward(replicas_.notify_withdrawn(record(), now_));
      apply(cause);
      break;
    case WriteEffect::kFence:
      // Everything that the lower fence had begun is void. A complete copy is kept: it may be the
      // target elsewhere, and its last remaining copy.
      if (round_.state() == ReceiveState::kStaged) round_.close();
      drop_incoming();
      round_.forget_rounds();
      replicas_.set_turns(0);
      apply(cause);
      break;
  }
  while (const auto next = record_.next_deferred()) apply(*next);
}

void Sidecar::apply(const control::Envelope& envelope, const control::Welcome& message) {
  const bool again = registration_.welcome(envelope.request, fence());
  if (registration_.is_answer(envelope.request))
    capabilities_ = message.capabilities & control::kCapabilities;
  out_.emplace_back(Welcomed{message});
  if (again) send_hello();
}

void Sidecar::apply(const control::Envelope& envelope, const control::Turns& message) {
  const control::Decision decision{.fence = envelope.fence, .number = message.number};
  if (decision != record().decision) {
    ++dropped_;
    return;
  }
  beat_due_ |= replicas_.turns() != message.turns;
  replicas_.set_turns(message.turns, message.replica);  // step() gives them
}

void Sidecar::apply(const control::Envelope& /*envelope*/, const control::Leave& /*message*/) {
  replicas_.set_turns(0);
  registration_.lose(now_);
}

// The coordinator begins with no turns for a sidecar that registers.
void Sidecar::send_hello() {
  replicas_.set_turns(0);
  control::Hello hello = hello_of(options_, record());
  hello.staged = held_.versions();
  hello.replicas = reports(now_);
  hello.layout = layout_;
  reply(0, registration_.send(fence(), now_), std::move(hello));
}

control::Envelope Sidecar::envelope() const {
  return {.fence = fence(), .replica = {}, .capabilities = capabilities_};
}

void Sidecar::reply(std::uint64_t round, std::uint64_t request, control::Message message) {
  control::Envelope answer = envelope();
  answer.round = round;
  answer.request = request;
  out_.emplace_back(Reply{.envelope = std::move(answer), .message = std::move(message)});
}

// ---- the incoming version ----

void Sidecar::apply(const control::Envelope& envelope, const control::Announce& message) {
  const Version& version = message.version;
  if (round_.is(envelope.round, version)) {  // a repetition
    ++dropped_;
    if (round_.state() != ReceiveState::kChecking)
      reply(envelope.round, envelope.request, control::Accept{.version = version});
    return;
  }
  if (!round_.raise_round(envelope.round)) {
    ++dropped_;
    return;
  }
  if (const auto reason = offer_refusal(message)) {
    reply(envelope.round, envelope.request, control::Refuse{.version = version, .reason = *reason});
    return;
  }
  const bool held = held_.find(version) != nullptr;
  if (held && round_.state() != ReceiveState::kIdle && round_.version() == version)
    round_.close();  // offered again in a newer round: keep the copy
  drop_incoming();   // only one version may be incoming: the newer one
  round_.open(envelope, message, held);
  if (held)
    reply(envelope.round, envelope.request, control::Accept{.version = version});
  else
    out_.emplace_back(CheckLayout{.round = envelope.round, .announce = message});
}

std::optional<std::string> Sidecar::offer_refusal(const control::Announce& announce) const {
  const Version& version = announce.version;
  if (record_.is_withdrawn(version))
    return fmt::format("version {} was withdrawn", version.to_string());
  if (knows_other_bytes(version, announce.content_digest))
    return fmt::format(
        "version {} names different bytes on this sidecar; a version never names two different "
        "byte strings",
        version.to_string());
  return std::nullopt;
}

// What has no digest yet is not known here: a version is decided, and a copy is kept, with a
// digest.
bool Sidecar::knows_other_bytes(const Version& version, const Digest& content) const {
  const HeldCopy* copy = held_.find(version);
  const bool other_target =
      version == record().target && record().content != Digest{} && record().content != content;
  return other_target || (copy != nullptr && copy->content != content);
}

void Sidecar::learn_content(const Digest& content) {
  if (round_.learn_content(content) && round_.begun())
    out_.emplace_back(ExpectContent{.version = round_.version(), .content_digest = content});
}

void Sidecar::handle(const LayoutChecked& event) {
  if (round_.state() != ReceiveState::kChecking || round_.round() != event.round) {
    ++dropped_;
    return;
  }
  const Version version = round_.version();
  if (auto reason = layout_refusal(event)) {
    reply(round_.round(), round_.request(),
          control::Refuse{.version = version,
                          .reason = std::move(*reason),
                          .layout_unknown = event.layout_unknown,
                          .problems = event.problems});
    round_.close();
    return;
  }
  layout_ = round_.announce().layout_digest;
  fits_beside_ = event.fits_beside;
  round_.accept();
  reply(round_.round(), round_.request(), control::Accept{.version = version});
}

void Sidecar::apply(const control::Envelope& envelope, const control::Stage& message) {
  if (!round_.is(envelope.round, message.version) || round_.state() == ReceiveState::kChecking) {
    ++dropped_;
    return;
  }
  const Digest& content = message.content_digest;
  const bool is_other = round_.has_content() ? content != round_.announce().content_digest
                                             : knows_other_bytes(message.version, content);
  if (content != Digest{} && is_other) {  // of a coordinator that has gone wrong
    ++dropped_;
    return;
  }
  learn_content(content);
  const bool begins = round_.assign(envelope.request, message);  // step() starts it
  if (round_.state() == ReceiveState::kStaged)
    reply_staged({});
  else if (!begins)
    ++dropped_;
}

void Sidecar::handle(const StagingDone& event) {
  if (!round_.stages(event.attempt)) {
    ++dropped_;
    return;
  }
  const Version version = round_.version();
  if (!event.base.none() && !held_.is_complete(event.base)) {
    out_.emplace_back(ReleaseVersion{version});
    reply_staged({.reason = fmt::format("it has come as what changes from {}, which has been "
                                        "released meanwhile",
                                        event.base.to_string())});
    round_.close();
    return;
  }
  const Digest expected = round_.announce().content_digest;
  // Without the digest of the trainer nothing proves these bytes, so they are not kept.
  if (!round_.has_content() || event.content_digest != expected) {
    out_.emplace_back(ReleaseVersion{version});
    reply_staged({.reason = fmt::format(
                      "content digest {}, expected {}", event.content_digest.to_string(),
                      round_.has_content() ? expected.to_string() : "one that is not known yet")});
    round_.close();
    return;
  }
  held_.add({.version = version,
             .content = event.content_digest,
             .bytes = event.bytes,
             .was_target = version == record().target,
             .base = event.base});
  round_.complete();
  reply(round_.round(), round_.request(),
        control::Staged{.version = version,
                        .content_digest = event.content_digest,
                        .bytes = event.bytes,
                        .staging_ns = event.staging_ns});
  notify_staged();
}

void Sidecar::handle(const StagingFailed& event) {
  if (!round_.stages(event.attempt)) {
    ++dropped_;
    return;
  }
  StagingFailed failure = event;
  if (failure.reason.empty()) failure.reason = "the source of the version was lost";
  reply_staged(failure);
  if (event.source_lost)
    round_.stall();
  else
    round_.close();
}

void Sidecar::reply_staged(const StagingFailed& failure) {
  const HeldCopy* copy = held_.find(round_.version());
  control::Staged staged{.version = round_.version(),
                         .failure = failure.reason,
                         .source_lost = failure.source_lost,
                         .is_refused = failure.is_refused};
  if (failure.reason.empty() && copy != nullptr) {
    staged.content_digest = copy->content;
    staged.bytes = copy->bytes;
  }
  reply(round_.round(), round_.request(), std::move(staged));
}

void Sidecar::apply(const control::Envelope& envelope, const control::Abort& message) {
  if (round_.is(envelope.round, message.version))
    drop_incoming();
  else
    ++dropped_;
}

void Sidecar::apply(const control::Envelope& envelope, const control::RelayVersion& message) {
  const Version& version = message.version;
  if (held_.is_complete(version) && !held_.is_changing(version)) {
    out_.emplace_back(RelayHeld{
        .request = envelope.request, .version = version, .with_layout = message.with_layout});
    return;
  }
  reply(envelope.round, envelope.request,
        control::RelayReady{.version = version,
                            .failure = fmt::format("sidecar '{}' does not hold {} as a whole now",
                                                   options_.name, version.to_string())});
}

void Sidecar::drop_incoming() {
  if (round_.state() == ReceiveState::kIdle) return;
  const Version version = round_.version();
  const bool staged = round_.state() == ReceiveState::kStaged;
  const bool begun = round_.begun();
  round_.close();
  if (begun && !staged)
    out_.emplace_back(CancelStaging{version});
  else if (begun && !needed(version))
    release(version);  // staged, but never decided
}

// ---- held copies ----

// Whether a copy must be kept: the target, a copy that a switch reads, or one that is decided but
// not stored yet.
bool Sidecar::needed(const Version& version) const {
  if (record_.targets(version) || replicas_.needs(version) || round_.reads(version) ||
      held_.is_changing(version))
    return true;
  if (planted("base_released_before_what_leads_from_it")) return false;
  const std::vector<Version> dependents = held_.dependents(version);
  return std::ranges::any_of(dependents, [this](const Version& each) { return needed(each); });
}

reload::StagedSet Sidecar::loadable() const {
  const Version& target = record().target;
  const bool comes = held_.find(target) != nullptr && !held_.is_complete(target);
  return {.versions = held_.complete_versions(),
          .coming = comes ? target : Version{},
          .changes = held_.changes()};
}

// What is being staged may be held as what changes from the target, which is needed anyway.
Version Sidecar::base_to_keep() const {
  const Version& target = record().target;
  return held_.is_complete(target) && target != round_.version() ? target : Version{};
}

// The target after its decision is stored, and before any pause: from then on it is what replicas
// load, also to be repaired. For a canary the other replicas may still need the version before.
// Otherwise what a replica goes back to that could not load the target, beside the target.
void Sidecar::complete_wanted() {
  if (record_.state() != RecordState::kStored) return;
  const Version target =
      planted("base_changed_before_the_decision") && round_.state() == ReceiveState::kStaged
          ? round_.version()
          : record().target;
  auto version = held_.next_to_complete(target);
  const bool is_target = version.has_value();
  for (auto load = held_back_.begin(); load != held_back_.end() && !version; ++load)
    version = held_.next_to_complete(load->second.version);
  if (!version) return;
  const Version base = held_.find(*version)->base;
  const bool in_place = is_target && record().kind != control::DecisionKind::kSwitchCanary &&
                        !record_.targets(base) && !round_.reads(base);
  // What is changed in place must not be suspect, because only the bytes that change are compared.
  if (in_place && held_.is_checking(base)) return;
  const CompleteVersion command = held_.begin_completion(*version, in_place);
  notify_staged();  // first, so that no switch begins to read the base
  out_.emplace_back(command);
}

// Whether a load waits until its version is complete, or was waiting so and is cancelled.
bool Sidecar::is_held_back(const ForReplica& command) {
  if (const auto* begin = std::get_if<reload::BeginLoad>(&command.command)) {
    held_back_.erase(command.replica);  // it is replaced
    if (held_.find(begin->version) == nullptr || held_.is_complete(begin->version)) return false;
    held_back_.emplace(command.replica, *begin);
    return true;
  }
  const auto* cancel = std::get_if<reload::CancelLoad>(&command.command);
  const auto waiting = held_back_.find(command.replica);
  if (cancel == nullptr || waiting == held_back_.end() ||
      waiting->second.request != cancel->request)
    return false;
  held_back_.erase(waiting);
  return true;
}

// Passes loads on whose versions are complete, and reports those whose versions are lost.
void Sidecar::give_loads() {
  for (const auto& [replica, load] : std::map(held_back_)) {
    const bool is_lost = held_.find(load.version) == nullptr;
    if (!is_lost && !held_.is_complete(load.version)) continue;
    held_back_.erase(replica);
    if (!is_lost) {
      out_.emplace_back(ForReplica{.replica = replica, .command = load});
      continue;
    }
    refuse_load(replica, load, "could not be made complete");
  }
}

void Sidecar::refuse_load(const std::string& replica, const reload::BeginLoad& load,
                          std::string_view why) {
  const reload::LoadNotBegun refused{
      .request = load.request,
      .why = fmt::format("the copy of {} {}", load.version.to_string(), why)};
  auto commands = replicas_.handle({.replica = replica, .world_size = 1, .what = refused}, record(),
                                   loadable(), now_);
  if (commands) forward(std::move(*commands));
}

// Whether the target is this version, or is made of it.
bool Sidecar::leads_to_target(const Version& version) const {
  const HeldCopy* copy = held_.find(record().target);
  while (copy != nullptr && copy->version != version) copy = held_.find(copy->base);
  return copy != nullptr;
}

// A version to go back to is not lost because one replica needs it beside the target.
void Sidecar::put_off_completion(const Version& version) {
  release_lost(held_.put_off_completion());
  for (const auto& [replica, load] : std::map(held_back_)) {
    if (held_.next_to_complete(load.version) != version) continue;
    held_back_.erase(replica);
    refuse_load(replica, load, "has no memory beside the others");
  }
}

void Sidecar::handle(const VersionCompleted& event) {
  if (event.version != held_.completing() || event.version.none()) {
    ++dropped_;
    return;
  }
  notify_replicas_ = true;
  if (event.failure.empty()) {
    release_lost(held_.complete(event.in_place));
    return;
  }
  if (event.no_memory && !event.base_lost && !leads_to_target(event.version))
    return put_off_completion(event.version);
  const Version base = held_.find(event.version)->base;
  release_lost(held_.fail_completion(event.base_lost));
  // Bytes of the base were found to be others, or what changes does not fit it.
  if (event.base_suspect)
    if (const auto check = held_.check(base)) out_.emplace_back(*check);
}

// They are requested from the coordinator again.
void Sidecar::release_lost(const std::vector<Version>& versions) {
  for (const Version& version : versions) {
    out_.emplace_back(ReleaseVersion{version});
    if (round_.state() == ReceiveState::kStaged && round_.version() == version) round_.close();
  }
  if (!versions.empty()) registration_.request_hello();
  notify_replicas_ = true;
}

// In the order in which copies are let go: those that were withdrawn can never be the target again.
std::vector<Version> Sidecar::release_order() const {
  std::vector<Version> versions = held_.oldest_first();
  std::ranges::stable_partition(
      versions, [this](const Version& version) { return record_.is_withdrawn(version); });
  return versions;
}

// A copy that need not be kept: one that was never decided, otherwise the first in order.
std::optional<Version> Sidecar::oldest_unneeded() const {
  for (const std::vector<Version>& held : {held_.never_decided(), release_order()})
    for (const Version& version : held)
      if (!needed(version)) return version;
  return std::nullopt;
}

// Releases old copies until another one fits. Returns false if all of them are needed. If the
// memory allows it, no version that could be rolled back to is released for one that may never be
// decided.
bool Sidecar::make_room() {
  const std::size_t beside = options_.versions_held - (fits_beside_ ? 0 : 1);
  while (held_.size() > beside) {
    const std::optional<Version> old = oldest_unneeded();
    if (!old) return false;
    release(*old);
  }
  return true;
}

// The version that was held in addition has been decided, so another one is let go. It is not
// replaced by a more useful one as long as a switch needs it.
void Sidecar::release_surplus() {
  if (held_.size() <= options_.versions_held || !held_.never_decided().empty()) return;
  const Version first = release_order().front();
  if (!needed(first)) release(first);
}

void Sidecar::release(const Version& version) {
  const std::vector<Version> removed = held_.remove(version);
  if (removed.empty()) return;
  beat_due_ = true;
  notify_staged();  // first, so that no switch begins to read a copy that is about to be released
  for (const Version& each : removed) out_.emplace_back(ReleaseVersion{each});
}

// Releases copies that were staged but never decided, because their publish failed or was cancelled
// while this sidecar was disconnected. A rollback must not choose them.
void Sidecar::release_undecided() {
  held_.mark_decided(record().target);
  std::vector<Version> undecided = held_.never_decided();
  std::erase_if(undecided, [this](const Version& version) {
    const bool comes = round_.state() != ReceiveState::kIdle && round_.version() == version;
    return comes || needed(version);
  });
  for (const Version& version : undecided) release(version);
}

void Sidecar::handle(const CopyChecked& event) {
  const std::optional<Version> version = held_.checked_by(event.check);
  if (!version) {
    ++dropped_;
    return;
  }
  if (event.intact) {
    held_.confirm(*version);
    return;
  }
  release_lost(held_.lose(*version));
}

// ---- decisions ----

TargetFacts Sidecar::facts_of(const Version& target) const {
  TargetFacts facts;
  if (const HeldCopy* copy = held_.find(target)) facts.held = copy->content;
  if (round_.state() != ReceiveState::kIdle && round_.version() == target && round_.has_content())
    facts.announced = round_.announce().content_digest;
  facts.in_use = held_.versions();
  for (const auto& [name, replica] : replicas_.all())
    facts.in_use.push_back(replica.report(now_).version);
  return facts;
}

void Sidecar::apply(const control::Envelope& envelope, const control::Decide& message) {
  Judgement judgement = record_.judge(envelope.fence, message, facts_of(message.target));
  if (judgement.other_bytes) record_.set_other_bytes(message.target);
  const CoordinatorMessage cause{.envelope = envelope, .message = message};
  switch (judgement.verdict) {
    case DecisionVerdict::kRefused:
      reply(
          envelope.round, envelope.request,
          control::Decided{.number = message.number, .refused = true, .reason = judgement.reason});
      return;
    case DecisionVerdict::kRepeated:  // the answers may have been lost
      ++dropped_;
      reply(envelope.round, envelope.request, control::Decided{.number = message.number});
      if (const control::Switched* switched =
              replicas_.reported({.fence = envelope.fence, .number = message.number}))
        reply(envelope.round, envelope.request, *switched);
      return;
    case DecisionVerdict::kOutdated:
      ++dropped_;
      return;
    case DecisionVerdict::kWithdraws:
    case DecisionVerdict::kDecides:
      break;
  }
  Persist persist = record_.write(std::move(judgement.next), cause);
  if (judgement.verdict == DecisionVerdict::kDecides && planted("decision_not_persisted")) {
    (void)record_.finish({.token = persist.token, .failure = {}});
    apply_decision(envelope, message);
    return;
  }
  out_.emplace_back(std::move(persist));
}

// The decision is on disk, so it may be applied now.
void Sidecar::apply_decision(const control::Envelope& envelope, const control::Decide& decide) {
  release_undecided();
  if (round_.state() == ReceiveState::kStaged && round_.version() == decide.target) round_.close();
  // A quorum may have decided what is still arriving here.
  if (round_.state() != ReceiveState::kIdle && round_.version() == decide.target &&
      !round_.has_content())
    learn_content(decide.content_digest);
  reply(envelope.round, envelope.request, control::Decided{.number = decide.number});
  notify_staged();  // first: the target may be one that is made complete now
  forward(replicas_.decide(envelope, decide, record(), now_));
}

// ---- replicas ----

void Sidecar::handle(const ReplicaEvent& event) {
  // The coordinator counts replicas when it decides, so it is told at once.
  beat_due_ |= std::holds_alternative<reload::RankAttached>(event.what) ||
               std::holds_alternative<reload::RankDetached>(event.what);
  auto commands = replicas_.handle(event, record(), loadable(), now_);
  if (commands)
    forward(std::move(*commands));
  else
    ++dropped_;
}

void Sidecar::notify_staged() { forward(replicas_.notify_staged(loadable(), record(), now_)); }

void Sidecar::give_turns() {
  forward(replicas_.give_turns(record(), now_));
  const TurnCounts counts = replicas_.turn_counts();
  beat_due_ |= counts != std::exchange(turn_counts_, counts);
}

void Sidecar::forward(ReplicaSet::Commands commands) {
  for (ReplicaCommand& command : commands) {
    if (auto* to_replica = std::get_if<ForReplica>(&command)) {
      if (!is_held_back(*to_replica)) out_.emplace_back(std::move(*to_replica));
    } else if (auto check = held_.check(std::get<reload::CopySuspect>(command).version)) {
      // The engines may also be at fault, so only a copy that has changed is released.
      out_.emplace_back(*check);
    }
  }
}

// ---- reports ----

control::Heartbeat Sidecar::heartbeat(TimePoint now) const {
  return {.target = record().target,
          .staged = held_.versions(),
          .replicas = reports(now),
          .turns = replicas_.turns()};
}

std::vector<control::ReplicaReport> Sidecar::reports(TimePoint now) const {
  std::vector<control::ReplicaReport> all;
  for (const auto& [name, replica] : replicas()) all.push_back(report(replica, now));
  return all;
}

control::ReplicaReport Sidecar::report(const reload::ReplicaSwitch& replica, TimePoint now) const {
  control::ReplicaReport report = replica.report(now);
  report.turn = replicas_.turn_of(report.replica);
  if (!report.ready && report.state == control::ReplicaState::kLoading && report.version.none() &&
      record().target.none())
    report.reason =
        "it has attached, and no version has been decided since: publish one, or publish again";
  if (!report.ready) return report;
  if (auto reason = record_.unready_reason(report.version)) {
    report.ready = false;
    report.reason = std::move(*reason);
  }
  return report;
}

control::StatusReply Sidecar::status(TimePoint now) const {
  control::StatusReply reply{.role = "sidecar",
                             .fence = fence(),
                             .decision = record().decision.number,
                             .target = record().target,
                             .withdrawn = record().withdrawn};
  if (const auto older = held_.rollback_target(record().target, record().withdrawn)) {
    reply.can_roll_back = true;
    reply.rollback_target = *older;
  }
  std::string receiving = round_.activity();
  if (!held_.completing().none())
    receiving = fmt::format(
        "{} the copy of {} to {}",
        held_.is_changing(held_.find(held_.completing())->base) ? "changing"
                                                                : "copying and changing",
        held_.find(held_.completing())->base.to_string(), held_.completing().to_string());
  const bool is_idle =
      receiving.empty() || (held_.completing().none() && round_.state() == ReceiveState::kStaged);
  reply.activity =
      is_idle ? replicas_.activity().value_or(receiving.empty() ? "idle" : receiving) : receiving;
  control::SidecarReport self{.name = options_.name,
                              .host = options_.host,
                              .pid = options_.pid,
                              .connected = welcomed(),
                              .target = record().target,
                              .staged = held_.versions()};
  self.replicas = reports(now);
  reply.sidecars.push_back(std::move(self));
  return reply;
}

Result<> Sidecar::invariants() const {
  WSYNC_TRY(record_.invariants());
  WSYNC_TRY(held_.invariants());
  WSYNC_TRY(round_.invariants());
  WSYNC_TRY(registration_.invariants());
  const HeldCopy* target = held_.find(record().target);
  if (target != nullptr && record().content != Digest{} && target->content != record().content)
    return fail(ErrorCode::kInternal,
                fmt::format("the copy of {} has different bytes than were decided",
                            record().target.to_string()));
  if (round_.state() == ReceiveState::kStaged && held_.find(round_.version()) == nullptr)
    return fail(ErrorCode::kInternal, "a staged version is not held");
  return replicas_.invariants(record());
}

}  // namespace wsync::staging
