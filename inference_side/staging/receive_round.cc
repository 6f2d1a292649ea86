#include "inference_side/staging/receive_round.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/error.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/config/limits.h"
#include "shared/control/withdrawn.h"

namespace wsync::staging {

namespace {

constexpr std::size_t kQueueCount = 256;  // coordinator messages behind one write

}  // namespace

Sidecar::Sidecar(SidecarOptions options, SidecarRecord record, std::vector<HeldCopy> held)
    : options_(std::move(options)), record_(std::move(record)), held_(std::move(held)) {
  WSYNC_CHECK(options_.versions_held >= config::kVersionsHeldMin,
              "a sidecar holds at least the target and the next one");
}

std::vector<SidecarCommand> Sidecar::step(const SidecarEvent& event) {
  now_ = event.now;
  out_.clear();
  std::visit([this](const auto& what) { on(what); }, event.what);
  if (incoming_ && incoming_->stage == Stage::kWaiting) try_start();
  while (std::exchange(staged_changed_, false)) tell_staged();
  // Before a report that ends a round: the next one may follow at once.
  if (std::exchange(let_go_, false) && welcomed_) out_.push_back(BeatNow{});
  report_switched();
  if (hello_due_ && welcomed_ && !collecting_) send_hello();
  const std::string broken = invariants();
  WSYNC_CHECK(broken.empty(), broken);
  return std::exchange(out_, {});
}

// ---- the coordinator's link ----

void Sidecar::on(const LinkUp& /*event*/) {
  welcomed_ = false;
  send_hello();
}

void Sidecar::on(const CoordinatorLost& /*event*/) {
  welcomed_ = false;
  hello_at_ = now_ + options_.hello_retry;
}

void Sidecar::on(const reload::Tick& event) {
  if (!welcomed_ && hello_at_ && now_ >= *hello_at_) send_hello();
  std::vector<std::string> due;
  for (const auto& [name, replica] : replicas_)
    if (replica.next_wake() && *replica.next_wake() <= now_) due.push_back(name);
  for (const std::string& name : due) switch_step(name, {.now = now_, .what = event});
}

std::optional<TimePoint> Sidecar::next_wake() const {
  std::optional<TimePoint> wake = welcomed_ ? std::nullopt : hello_at_;
  for (const auto& [name, replica] : replicas_) {
    const std::optional<TimePoint> other = replica.next_wake();
    if (other && (!wake || *other < *wake)) wake = other;
  }
  return wake;
}

void Sidecar::on(const CoordinatorMessage& event) {
  if (writing_) {
    if (queue_.size() < kQueueCount)
      queue_.push_back(event);
    else
      ++dropped_;
    return;
  }
  take(event);
}

void Sidecar::take(const CoordinatorMessage& event) {
  const control::Envelope& envelope = event.envelope;
  if (is_foreign(envelope.fence)) {
    ++dropped_;
    if (std::holds_alternative<control::Heartbeat>(event.message) ||
        std::holds_alternative<control::ErrorReply>(event.message))
      return;  // no end of answers
    reply(
        envelope.round, envelope.request,
        control::ErrorReply{
            .code = static_cast<std::uint8_t>(ErrorCode::kRefused),
            .message = fmt::format(
                "sidecar '{}' belongs to fleet {} and obeys no coordinator of fleet {}; point it "
                "at its own coordinator, or, to move it for good, stop it and remove its record "
                "from its state_dir",
                options_.name, record_.fence.fleet.to_string(), envelope.fence.fleet.to_string())});
    return;
  }
  // Of another fleet than the one that it has not decided anything with: it follows that one.
  const bool moves = envelope.fence.fleet != record_.fence.fleet && !record_.fence.fleet.none();
  if (envelope.fence < record_.fence && !moves && !planted("fence_forgotten")) {
    ++dropped_;
    if (std::holds_alternative<control::Heartbeat>(event.message)) return;
    // Our envelope's fence tells it that it has been replaced.
    reply(envelope.round, envelope.request,
          control::ErrorReply{
              .code = static_cast<std::uint8_t>(ErrorCode::kFenced),
              .message = fmt::format("sidecar '{}' obeys fence epoch {}; this is epoch {}",
                                     options_.name, record_.fence.epoch, envelope.fence.epoch)});
    return;
  }
  // Signs of life and refusals reach also a sidecar that this coordinator does not take: they do
  // not make it one of its own.
  const bool claims = !std::holds_alternative<control::Heartbeat>(event.message) &&
                      !std::holds_alternative<control::ErrorReply>(event.message);
  if (!claims && envelope.fence != record_.fence) {
    ++dropped_;
    return;
  }
  if (envelope.fence > record_.fence || moves) {
    SidecarRecord next = record_;
    next.fence = envelope.fence;
    persist(std::move(next), event);
    return;
  }
  std::visit(
      [&](const auto& message) {
        if constexpr (requires { take(envelope, message); })
          take(envelope, message);
        else if constexpr (!std::is_same_v<decltype(message), const control::Heartbeat&>)
          ++dropped_;
      },
      event.message);
}

void Sidecar::persist(SidecarRecord record, CoordinatorMessage then) {
  writing_ = record;
  after_write_ = std::move(then);
  out_.push_back(Persist{.token = ++token_, .record = std::move(record)});
}

void Sidecar::on(const Persisted& event) {
  if (!writing_ || event.token != token_) {
    ++dropped_;
    return;
  }
  const SidecarRecord before = std::exchange(record_, *std::exchange(writing_, std::nullopt));
  const CoordinatorMessage then = std::move(after_write_);
  const auto* decide = std::get_if<control::Decide>(&then.message);
  const bool is_decision =
      decide != nullptr && !decide->target.none() && record_.decision != before.decision;
  if (!event.failure.empty()) {
    record_ = before;
    if (decide != nullptr) {
      owed_ = Owed{.withdrawn = decide->withdrawn, .why = event.failure};
      reply(then.envelope.round, then.envelope.request,
            control::Decided{
                .number = decide->number,
                .refused = true,
                .reason = fmt::format("its record could not be written: {}", event.failure)});
    } else {
      reply(then.envelope.round, then.envelope.request,
            control::ErrorReply{
                .code = static_cast<std::uint8_t>(ErrorCode::kIo),
                .message = fmt::format("sidecar '{}' cannot obey fence epoch {}: its record could "
                                       "not be written: {}",
                                       options_.name, then.envelope.fence.epoch, event.failure)});
    }
  } else if (is_decision) {
    decided(then.envelope, *decide);
  } else if (record_.fence == before.fence) {
    // Only withdrawn versions, of a decision without a target or of one that is refused.
    tell_withdrawn();
    take(then);
  } else {
    // A higher fence: what the lower one had begun is void. A complete copy stays: it may be the
    // target elsewhere, and the only bytes of it that are left.
    if (incoming_ && incoming_->stage == Stage::kStaged) incoming_.reset();
    drop_incoming();
    newest_round_ = 0;
    take(then);
  }
  work_queue();
}

void Sidecar::work_queue() {
  while (!writing_ && !queue_.empty()) {
    const CoordinatorMessage next = std::move(queue_.front());
    queue_.pop_front();
    take(next);
  }
}

void Sidecar::take(const control::Envelope& envelope, const control::Welcome& message) {
  welcomed_ = true;
  hello_at_.reset();
  out_.push_back(Welcomed{message});
  // One that answers a Hello, this one or one before it, asks for nothing once a Hello has been
  // said under its fence. A Hello too many would look like a sidecar that has lost what it was
  // sent, and take it out of its round.
  if (envelope.request == 0 || hello_fence_ != record_.fence) send_hello();
}

void Sidecar::take(const control::Envelope& /*envelope*/, const control::Leave& /*message*/) {
  on(CoordinatorLost{});
}

void Sidecar::send_hello() {
  hello_due_ = false;
  if (!welcomed_) hello_at_ = now_ + options_.hello_retry;
  control::Hello hello{.name = options_.name,
                       .host = options_.host,
                       .pid = options_.pid,
                       .boot_id = options_.boot_id,
                       .data_address = options_.data_address,
                       .decision = record_.decision,
                       .target = record_.target,
                       .withdrawn = record_.withdrawn,
                       .staged = held_versions(),
                       .layout = layout_,
                       .target_content = record_.content,
                       .origin = record_.origin,
                       .pid_namespace = options_.pid_namespace};
  for (const auto& [name, replica] : replicas_) hello.replicas.push_back(report(replica, now_));
  hello_fence_ = record_.fence;
  reply(0, ++hello_request_, std::move(hello));
}

void Sidecar::reply(std::uint64_t round, std::uint64_t request, control::Message message) {
  out_.push_back(
      Reply{.envelope = {.fence = record_.fence, .round = round, .request = request, .replica = {}},
            .message = std::move(message)});
}

// ---- what is offered ----

void Sidecar::refuse_offer(const control::Envelope& envelope, const Version& version,
                           const std::string& reason) {
  reply(envelope.round, envelope.request, control::Refuse{.version = version, .reason = reason});
}

void Sidecar::take(const control::Envelope& envelope, const control::Announce& message) {
  if (incoming_ && incoming_->round == envelope.round &&
      incoming_->announce.version == message.version) {  // the same once more
    ++dropped_;
    if (incoming_->stage != Stage::kChecking)
      reply(envelope.round, envelope.request, control::Accept{.version = message.version});
    return;
  }
  if (envelope.round <= newest_round_ && !planted("stale_round_accepted")) {
    ++dropped_;
    return;
  }
  newest_round_ = envelope.round;
  if (is_withdrawn(message.version)) {
    refuse_offer(envelope, message.version,
                 fmt::format("version {} was withdrawn", message.version.to_string()));
    return;
  }
  const HeldCopy* copy = find(message.version);
  const bool other_target = message.version == record_.target && record_.content != Digest{} &&
                            record_.content != message.content_digest;
  if (other_target || (copy != nullptr && copy->content != message.content_digest)) {
    refuse_offer(envelope, message.version,
                 fmt::format("version {} names other bytes here; a version is never used twice",
                             message.version.to_string()));
    return;
  }
  const bool held = copy != nullptr;
  if (held && incoming_ && incoming_->announce.version == message.version)
    incoming_.reset();  // offered again in a newer round: the copy stays
  drop_incoming();      // one version waits: the newer one
  incoming_ = Incoming{.round = envelope.round, .request = envelope.request, .announce = message};
  if (held) {
    incoming_->stage = Stage::kStaged;
    reply(envelope.round, envelope.request, control::Accept{.version = message.version});
    return;
  }
  out_.push_back(CheckLayout{.round = envelope.round, .announce = message});
}

void Sidecar::on(const LayoutChecked& event) {
  if (!incoming_ || incoming_->round != event.round || incoming_->stage != Stage::kChecking) {
    ++dropped_;
    return;
  }
  const Version version = incoming_->announce.version;
  if (event.layout_unknown || !event.problems.empty() || !event.reason.empty()) {
    const std::string reason = !event.reason.empty() ? event.reason
                               : event.layout_unknown
                                   ? "its layout is not known here"
                                   : fmt::format("{} tensors do not fit", event.problems.size());
    reply(incoming_->round, incoming_->request,
          control::Refuse{.version = version,
                          .reason = reason,
                          .layout_unknown = event.layout_unknown,
                          .problems = event.problems});
    incoming_.reset();
    return;
  }
  layout_ = incoming_->announce.layout_digest;
  incoming_->stage = Stage::kAccepted;
  reply(incoming_->round, incoming_->request, control::Accept{.version = version});
}

void Sidecar::take(const control::Envelope& envelope, const control::Stage& message) {
  if (!incoming_ || incoming_->round != envelope.round ||
      incoming_->announce.version != message.version || incoming_->stage == Stage::kChecking) {
    ++dropped_;
    return;
  }
  incoming_->request = envelope.request;
  if (incoming_->stage == Stage::kStaged) {
    reply_staged("", false);
    return;
  }
  const bool same =
      incoming_->stage == Stage::kStaging && incoming_->asked.source == message.source;
  if (same || incoming_->stage == Stage::kWaiting) {
    incoming_->asked = message;
    ++dropped_;
    return;
  }
  incoming_->asked = message;  // a first source, or another one to go on from
  incoming_->stage = Stage::kWaiting;
}

// Begins what waits, as soon as there is room for it.
void Sidecar::try_start() {
  if (!incoming_->begun && !make_room()) return;
  incoming_->stage = Stage::kStaging;
  incoming_->attempt = ++attempts_;
  out_.push_back(StartStaging{.attempt = incoming_->attempt,
                              .announce = incoming_->announce,
                              .stage = incoming_->asked,
                              .go_on = std::exchange(incoming_->begun, true)});
}

// Lets old copies go until one more fits; false while all of them are needed.
bool Sidecar::make_room() {
  while (held_.size() + 1 > options_.versions_held) {
    const auto old =
        std::ranges::find_if(held_, [this](const HeldCopy& copy) { return !needed(copy.version); });
    if (old == held_.end()) return false;
    release(old->version);
  }
  return true;
}

void Sidecar::on(const StagingDone& event) {
  if (!incoming_ || incoming_->stage != Stage::kStaging || incoming_->attempt != event.attempt) {
    ++dropped_;
    return;
  }
  const control::Announce& offer = incoming_->announce;
  if (event.content_digest != offer.content_digest) {
    out_.push_back(ReleaseVersion{offer.version});
    reply_staged(fmt::format("content digest {}, expected {}", event.content_digest.to_string(),
                             offer.content_digest.to_string()),
                 false);
    incoming_.reset();
    return;
  }
  held_.push_back({.version = offer.version,
                   .content = event.content_digest,
                   .bytes = event.bytes,
                   .was_target = offer.version == record_.target});
  incoming_->stage = Stage::kStaged;
  reply(incoming_->round, incoming_->request,
        control::Staged{.version = offer.version,
                        .content_digest = event.content_digest,
                        .bytes = event.bytes,
                        .staging_ns = event.staging_ns});
  tell_staged();
}

void Sidecar::on(const StagingFailed& event) {
  if (!incoming_ || incoming_->stage != Stage::kStaging || incoming_->attempt != event.attempt) {
    ++dropped_;
    return;
  }
  const std::string why = event.reason.empty() ? "its source was lost" : event.reason;
  reply_staged(why, event.source_lost);
  if (event.source_lost)
    incoming_->stage = Stage::kStalled;
  else
    incoming_.reset();
}

void Sidecar::reply_staged(const std::string& failure, bool source_lost) {
  const HeldCopy* copy = find(incoming_->announce.version);
  control::Staged staged{
      .version = incoming_->announce.version, .failure = failure, .source_lost = source_lost};
  if (failure.empty() && copy != nullptr) {
    staged.content_digest = copy->content;
    staged.bytes = copy->bytes;
  }
  reply(incoming_->round, incoming_->request, std::move(staged));
}

void Sidecar::take(const control::Envelope& envelope, const control::Abort& message) {
  if (!incoming_ || incoming_->round != envelope.round ||
      incoming_->announce.version != message.version) {
    ++dropped_;
    return;
  }
  drop_incoming();
}

// ---- what is held ----

void Sidecar::drop_incoming() {
  if (!incoming_) return;
  const Incoming old = *std::exchange(incoming_, std::nullopt);
  const Version version = old.announce.version;
  if (old.begun && old.stage != Stage::kStaged)
    out_.push_back(CancelStaging{version});
  else if (old.begun && !needed(version))
    release(version);  // staged, and never decided
}

void Sidecar::release(Version version) {
  if (std::erase_if(held_, [&](const HeldCopy& copy) { return copy.version == version; }) == 0)
    return;
  checking_.erase(version);
  let_go_ = true;
  tell_staged();  // first, so that nobody begins to read what goes
  out_.push_back(ReleaseVersion{version});
}

void Sidecar::tell_staged() {
  std::vector<std::string> names;
  for (const auto& [name, replica] : replicas_) names.push_back(name);
  for (const std::string& name : names)
    switch_step(name, {.now = now_, .what = reload::StagedSet{held_versions()}});
}

// ---- decisions ----

void Sidecar::take(const control::Envelope& envelope, const control::Decide& message) {
  const control::Decision decision{.fence = envelope.fence, .number = message.number};
  if (message.number == 0 || message.origin > decision) {
    reply(envelope.round, envelope.request,
          control::Decided{.number = message.number,
                           .refused = true,
                           .reason = "it has no number, or is older than its origin"});
    return;
  }
  if (decision == record_.decision) {  // once more: the answers may have been lost
    ++dropped_;
    reply(envelope.round, envelope.request, control::Decided{.number = message.number});
    if (switched_ && switched_->number == message.number)
      reply(envelope.round, envelope.request, *switched_);
    return;
  }
  if (decision < record_.decision) {
    ++dropped_;
    return;
  }
  SidecarRecord next = record_;
  for (const Version& version : message.withdrawn)
    if (!is_withdrawn(version)) next.withdrawn.push_back(version);
  control::bound_withdrawn(next.withdrawn, versions_in_use());
  // What is withdrawn counts in any case, also where there is no target or it cannot be taken.
  const std::string reason = message.target.none() ? std::string() : why_not(message);
  if (!message.target.none() && names_other_bytes(message)) other_bytes_ = message.target;
  if (message.target.none()) next.decision = decision;
  if (message.target.none() || (!reason.empty() && next != record_)) {
    persist(std::move(next), {.envelope = envelope, .message = message});
    return;
  }
  if (!reason.empty()) {
    reply(envelope.round, envelope.request,
          control::Decided{.number = message.number, .refused = true, .reason = reason});
    return;
  }
  next.decision = decision;
  next.origin = message.origin.none() ? decision : message.origin;
  next.kind = message.kind;
  next.target = message.target;
  next.content = message.content_digest;
  if (next.content == Digest{} && next.target == record_.target) next.content = record_.content;
  if (next.content == Digest{} && find(next.target) != nullptr)
    next.content = find(next.target)->content;
  if (planted("decision_not_persisted")) {
    record_ = next;
    decided(envelope, message);
    return;
  }
  persist(std::move(next), {.envelope = envelope, .message = message});
}

bool Sidecar::names_other_bytes(const control::Decide& decide) const {
  const Digest& content = decide.content_digest;
  const HeldCopy* copy = find(decide.target);
  const bool held = copy != nullptr && copy->content != content;
  const bool decided =
      decide.target == record_.target && record_.content != Digest{} && record_.content != content;
  return content != Digest{} && (held || decided);
}

std::string Sidecar::why_not(const control::Decide& decide) const {
  const Version& target = decide.target;
  const bool own = std::ranges::find(decide.withdrawn, target) != decide.withdrawn.end();
  if (own || (is_withdrawn(target) && !planted("withdrawn_decided")))
    return fmt::format("version {} was withdrawn", target.to_string());
  if (names_other_bytes(decide))
    return fmt::format("version {} names other bytes here", target.to_string());
  const Digest& content = decide.content_digest;
  if (content != Digest{} && incoming_ && incoming_->announce.version == target &&
      incoming_->announce.content_digest != content && !planted("decided_bytes_not_compared"))
    return fmt::format("version {} was announced with other bytes: content digest {}, decided {}",
                       target.to_string(), incoming_->announce.content_digest.to_string(),
                       content.to_string());
  // What was decided last goes on, unless it was withdrawn: then an older decision is the newest
  // one that is left.
  const bool keeps_own =
      !record_.target.none() && !is_withdrawn(record_.target) &&
      std::ranges::find(decide.withdrawn, record_.target) == decide.withdrawn.end();
  if (keeps_own && !decide.origin.none() && decide.origin < record_.origin &&
      !planted("older_origin_obeyed"))
    return fmt::format("a newer decision than that of {} was taken here: {}", target.to_string(),
                       record_.target.to_string());
  return {};
}

// A copy that was staged and then never decided, because its publish failed or was cancelled while
// this sidecar was cut off, is none to roll back to.
void Sidecar::let_go_undecided() {
  for (HeldCopy& copy : held_) copy.was_target |= copy.version == record_.target;
  std::vector<Version> others;
  for (const HeldCopy& copy : held_) {
    const bool comes = incoming_ && incoming_->announce.version == copy.version;
    if (!copy.was_target && !comes && !needed(copy.version)) others.push_back(copy.version);
  }
  for (const Version& version : others) release(version);
}

// The decision is on disc: now it is acted on.
void Sidecar::decided(const control::Envelope& envelope, const control::Decide& decide) {
  owed_.reset();
  other_bytes_ = {};
  let_go_undecided();
  decision_envelope_ = envelope;
  decision_ = decide;
  switched_.reset();
  collecting_ = control::Switched{.number = decide.number, .target = decide.target};
  if (incoming_ && incoming_->announce.version == decide.target &&
      incoming_->stage == Stage::kStaged)
    incoming_.reset();
  reply(envelope.round, envelope.request, control::Decided{.number = decide.number});
  std::vector<std::string> names;
  for (const auto& [name, replica] : replicas_) names.push_back(name);
  for (const std::string& name : names) {
    // A switch owes nothing for a replica whose engines are all gone; a rollback asks every one.
    const bool owed =
        replicas_.at(name).attached() > 0 || decide.kind == control::DecisionKind::kRollback;
    switch_step(name, {.now = now_, .what = target_event(owed)});
  }
}

reload::TargetSet Sidecar::target_event(bool owed) const {
  reload::TargetSet event{.decision = record_.decision,
                          .target = record_.target,
                          .withdrawn = record_.withdrawn,
                          .mode = decision_.mode,
                          .pause_deadline = options_.pause,
                          .load_deadline = options_.load,
                          .owed = owed};
  if (decision_.pause_deadline_ms != 0)
    event.pause_deadline = std::chrono::milliseconds(decision_.pause_deadline_ms);
  if (decision_.load_deadline_ms != 0)
    event.load_deadline = std::chrono::milliseconds(decision_.load_deadline_ms);
  return event;
}

}  // namespace wsync::staging
