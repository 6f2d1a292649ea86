#include "trainer_side/publish/remote_coordinator.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/control/codec.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/zmq/ports.h"
#include "shared/observe/metrics/catalog.h"
#include "trainer_side/coordinator/round_metrics.h"
#include "trainer_side/coordinator/version_names.h"
#include "trainer_side/publish/fleet_trace.h"

namespace wsync::publish {
namespace {

using control::ProgressPhase;

// How often what is overdue is looked for.
constexpr std::chrono::milliseconds kLook{200};
// A Hello that was not answered is said again after this time.
constexpr std::chrono::seconds kHelloRetry{1};
// The coordinator ends a publish at its deadline. One that has not said so after this time is asked
// again, and one that does not answer then is not waited for.
constexpr std::chrono::seconds kOverdue{2};
constexpr std::chrono::seconds kGiveUp{10};
constexpr std::chrono::seconds kStatusPause{1};

std::uint64_t random_process() {
  std::random_device random;
  return ((static_cast<std::uint64_t>(random()) << 32U) | random()) | 1U;  // 0 means none
}

Result<control::KeyFile> publisher_key(const config::TrainerConfig& config) {
  auto key = control::load_key_file(config.publisher_key);
  if (!key) return fail(key.error().with_context("publisher_key"));
  const control::KeyRole role = key->owner.role;
  if (role == control::KeyRole::kPublisher || role == control::KeyRole::kOperator) return key;
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("publisher_key: {}: expected the key of a publisher or an operator, found that "
                  "of {}: make one with `wsync keys add publisher NAME`",
                  config.publisher_key, key->owner.text()));
}

}  // namespace

Result<std::unique_ptr<RemoteCoordinator>> RemoteCoordinator::create(
    Loop& loop, const config::TrainerConfig& config, CoordinatorAgentCallbacks callbacks) {
  std::optional<control::KeyFile> key;
  if (!config.publisher_key.empty()) key = WSYNC_TRY(publisher_key(config));
  return std::unique_ptr<RemoteCoordinator>(
      new RemoteCoordinator(loop, config, std::move(key), std::move(callbacks)));
}

RemoteCoordinator::RemoteCoordinator(Loop& loop, const config::TrainerConfig& config,
                                     std::optional<control::KeyFile> key,
                                     CoordinatorAgentCallbacks callbacks)
    : loop_(loop),
      config_(config),
      key_(std::move(key)),
      process_(random_process()),
      callbacks_(std::move(callbacks)),
      recorder_(config.trace_file, config.trace_spans),
      timer_(loop, [this] { look(); }) {}

RemoteCoordinator::~RemoteCoordinator() {
  pages_.reset();
  if (dealer_ && is_attached_) send(control::Leave{});  // so that nobody waits for it to come back
  recorder_.write_trace();
}

Result<> RemoteCoordinator::open(std::vector<control::TransportAddress> transports,
                                 const std::optional<transport::PairSecret>& secret) {
  transports_ = std::move(transports);
  if (secret) secret_.assign(secret->begin(), secret->end());
  WSYNC_TRY(open_pages());
  WSYNC_TRY(connect());
  timer_.start_repeating(kLook);
  return {};
}

Result<> RemoteCoordinator::open_pages() {
  if (config_.http.address.empty()) return {};
  metrics::StatusFacts facts;
  facts.readings = [this] {
    auto readings = coordinator::publish_readings(callbacks_.publish_facts());
    const auto add = [&](const metrics::Definition& what, double value) {
      readings.push_back({.what = &what, .value = value, .labels = {}});
    };
    add(metrics::kTrainerConnected, is_attached_ ? 1 : 0);
    add(metrics::kTargetEpoch, facts_.target.epoch);
    add(metrics::kTargetStep, static_cast<double>(facts_.target.step));
    add(metrics::kFenceEpoch, static_cast<double>(fence_.epoch));
    return readings;
  };
  facts.readiness = [this]() -> metrics::Readiness {
    if (is_attached_ && facts_.stopped.empty()) return {.ready = true, .reason = {}};
    return {.ready = false,
            .reason = fmt::format("{} does not take publishes of this trainer: {}", where(),
                                  is_attached_ ? facts_.stopped : why_detached_)};
  };
  pages_ = WSYNC_TRY(metrics::StatusPages::create(loop_,
                                                  {.address = config_.http.address,
                                                   .take_over = config_.take_over,
                                                   .role = "trainer",
                                                   .token = config_.http.token,
                                                   .open = config_.http.open_paths()},
                                                  recorder_.metrics(), std::move(facts)));
  return {};
}

Result<> RemoteCoordinator::connect() {
  control::DealerCallbacks callbacks;
  callbacks.on_message = [this](const control::Envelope& envelope, control::Message message) {
    handle(envelope, std::move(message));
  };
  callbacks.on_connected = [this] {
    is_connected_ = true;
    say_hello();
  };
  callbacks.on_lost = [this](const Error& why) { detach(why); };
  callbacks.on_bad_message = [](const Error& error) {
    log_warning("a message of the coordinator was dropped: {}", error.message());
  };
  callbacks.on_refused = [this](const Error& error) {
    // Each attempt is refused again.
    if (std::exchange(why_detached_, error.message()) != error.message())
      log_warning("not connected to the coordinator: {}", error.message());
    refusal_ = error.message();
  };
  control::DealerOptions options{.address = config_.coordinator,
                                 .name = "trainer",
                                 .times = {.heartbeat_interval = config_.heartbeat.interval,
                                           .silence_deadline = config_.heartbeat.deadline},
                                 .key = key_};
  auto dealer = control::connect_zmq(loop_, options, std::move(callbacks));
  if (!dealer) return fail(dealer.error().with_context("coordinator"));
  dealer_ = std::move(*dealer);
  return {};
}

void RemoteCoordinator::say_hello() {
  said_hello_ = now();
  control::PublisherHello hello{.host = host_name(),
                                .pid = static_cast<std::uint32_t>(::getpid()),
                                .pid_namespace = pid_namespace(),
                                .boot_id = boot_id(),
                                .process = process_,
                                .transports = transports_,
                                .secret = secret_,
                                .versions = {versions_.begin(), versions_.end()},
                                .take_over = config_.take_over};
  for (const auto& [request, round] : rounds_)
    hello.rounds.push_back({.request = round.number, .version = round.version});
  send(hello);
}

// ---- time ----

void RemoteCoordinator::look() {
  const TimePoint at = now();
  if (is_connected_ && !is_attached_ && at - said_hello_ >= kHelloRetry) say_hello();
  if (facts_.is_claimed && !was_ready_) (void)status();
  std::vector<std::uint64_t> overdue;
  for (const auto& [request, round] : rounds_) {
    if (!round.deadline || at < *round.deadline + kOverdue) continue;
    if (!is_attached_ || at >= *round.deadline + kGiveUp)
      overdue.push_back(request);
    else if (at - said_hello_ >= kHelloRetry)
      say_hello();
  }
  for (const std::uint64_t request : overdue) {
    const auto found = rounds_.find(request);
    if (found == rounds_.end()) continue;
    const Version version = found->second.version;
    end_round(request,
              {.request = request,
               .reply = {.reason = fmt::format(
                             "its deadline (deadlines.publish) passed, and {}, so it is not known "
                             "whether {} was decided: `wsync status` of the coordinator shows it",
                             is_attached_
                                 ? where() + " has not reported its end"
                                 : fmt::format("{} is not connected ({})", where(), why_detached_),
                             version.to_string()),
                         .version = version}});
  }
}

std::string RemoteCoordinator::where() const {
  return fmt::format("the coordinator at {}", dealer_ ? dealer_->address() : config_.coordinator);
}

void RemoteCoordinator::detach(const Error& why) {
  is_connected_ = is_attached_ = false;
  why_detached_ = why.message();
  log_warning(
      "{} is lost: {}; the sidecars keep what they have, and this trainer goes on when it "
      "is there again",
      where(), why.message());
  for (auto& [question, on_done] : std::exchange(rollbacks_, {}))
    on_done(
        fail(ErrorCode::kPeerLost,
             fmt::format("{} was lost: {}; `wsync status` shows whether the rollback was decided",
                         where(), why.message())));
  for (auto& [question, on_done] : std::exchange(traces_, {})) on_done({});
  callbacks_.on_step();
}

// ---- messages ----

void RemoteCoordinator::send(const control::Message& message, std::uint64_t request) {
  if (!dealer_) return;
  control::Envelope envelope;
  envelope.fence = fence_;
  envelope.request = request;
  const Result<> sent = dealer_->send(envelope, message);
  if (sent) return;
  const std::string_view name = control::message_name(control::type_of(message));
  // What is lost with a connection is compared on the next one.
  if (sent.error().code() == ErrorCode::kInvalidInput)
    log_error("a {} was not sent: {}", name, sent.error().message());
  else
    log_debug("a {} was not sent: {}", name, sent.error().message());
}

void RemoteCoordinator::handle(const control::Envelope& envelope, control::Message message) {
  if (auto* facts = std::get_if<control::FleetFacts>(&message)) {
    handle_facts(envelope, std::move(*facts));
  } else if (const auto* error = std::get_if<control::ErrorReply>(&message)) {
    handle_error(envelope, *error);
  } else if (const auto* phase = std::get_if<control::RoundPhase>(&message)) {
    handle_phase(*phase);
  } else if (const auto* end = std::get_if<control::RoundEnd>(&message)) {
    handle_end(*end);
  } else if (const auto* loss = std::get_if<control::RoundLoss>(&message)) {
    handle_loss(*loss);
  } else if (const auto* drop = std::get_if<control::VersionDropped>(&message)) {
    versions_.erase(drop->version);
    callbacks_.on_drop(drop->version);
  } else if (const auto* changed = std::get_if<control::TargetChanged>(&message)) {
    if (changed->how == control::TargetChange::kRolledBack)
      callbacks_.on_rolled_back(changed->target);
    else
      callbacks_.on_promoted(changed->target);
  } else if (const auto* push = std::get_if<control::Push>(&message)) {
    log_info("push of {} requested", push->directory);
    callbacks_.on_push({}, envelope.request, *push);
  } else if (const auto* stop = std::get_if<control::Cancel>(&message)) {
    callbacks_.on_cancel(stop->version, [this, request = envelope.request](auto answer) {
      send(std::move(answer), request);
    });
  } else if (auto* back = std::get_if<control::RollbackReply>(&message)) {
    if (auto entry = rollbacks_.extract(envelope.request); !entry.empty())
      entry.mapped()(std::move(*back));
  } else if (const auto* question = std::get_if<control::TraceQuestion>(&message)) {
    control::TraceAnswer answer;
    answer.processes.push_back(own_trace("trainer", recorder_.spans(), *question, now()));
    send(std::move(answer), envelope.request);
  } else if (auto* trace = std::get_if<control::TraceAnswer>(&message)) {
    if (auto entry = traces_.extract(envelope.request); !entry.empty())
      entry.mapped()(std::move(*trace));
  } else if (auto* status = std::get_if<control::StatusReply>(&message)) {
    status_ = std::move(*status);
    if (facts_.is_claimed && !std::exchange(was_ready_, true)) callbacks_.on_ready(facts_.target);
  }
}

void RemoteCoordinator::handle_facts(const control::Envelope& envelope, control::FleetFacts facts) {
  fence_ = envelope.fence;
  facts_ = std::move(facts);
  if (!std::exchange(is_attached_, true)) {
    refusal_.reset();
    log_info("{} has this trainer: epoch {}, target {}", where(), fence_.epoch,
             facts_.target.none() ? "none yet" : facts_.target.to_string());
    // The message that carried it may have been lost with the connection before.
    for (const auto& [request, round] : rounds_)
      if (round.end) send(*round.end);
  }
  // Who is told first looks at the sidecars, so their state comes before.
  if (facts_.is_claimed && !was_ready_) (void)status();
  callbacks_.on_step();
}

void RemoteCoordinator::handle_error(const control::Envelope& envelope,
                                     const control::ErrorReply& error) {
  if (auto entry = traces_.extract(envelope.request); !entry.empty()) return entry.mapped()({});
  if (auto entry = rollbacks_.extract(envelope.request); !entry.empty())
    return entry.mapped()(fail(error.code, error.message));
  if (is_attached_ && error.code == ErrorCode::kPeerLost) {
    is_attached_ = false;
    why_detached_ = error.message;
    say_hello();
    return callbacks_.on_step();
  }
  if (is_attached_) return log_warning("{}: {}", where(), error.message);
  // It refuses this trainer. Each Hello is refused again.
  if (std::exchange(why_detached_, error.message) != error.message)
    log_warning("{} refuses this trainer: {}", where(), error.message);
  refusal_ = error.message;
}

std::optional<std::uint64_t> RemoteCoordinator::request_of(std::uint64_t number) const {
  for (const auto& [request, round] : rounds_)
    if (round.number == number) return request;
  return std::nullopt;
}

void RemoteCoordinator::handle_phase(const control::RoundPhase& phase) {
  if (const auto request = request_of(phase.request)) enter(*request, phase.phase);
}

// Phases that were entered while the connection was broken are entered now.
void RemoteCoordinator::enter(std::uint64_t request, ProgressPhase phase) {
  for (const ProgressPhase each :
       {ProgressPhase::kAnnounce, ProgressPhase::kStage, ProgressPhase::kSwitch}) {
    const auto found = rounds_.find(request);  // a callback may end it
    if (each > phase || found == rounds_.end()) return;
    if (found->second.phase && *found->second.phase >= each) continue;
    found->second.phase = each;
    recorder_.phase_entered(request, each, now());
    callbacks_.on_phase({.request = request, .phase = each});
  }
}

void RemoteCoordinator::handle_end(const control::RoundEnd& end) {
  const auto request = request_of(end.request);
  if (!request) return;  // said twice
  if (end.reply.switch_ns != 0) enter(*request, ProgressPhase::kSwitch);
  end_round(*request, {.request = *request,
                       .superseded = end.superseded,
                       .cancelled = end.cancelled,
                       .reply = end.reply});
}

void RemoteCoordinator::handle_loss(const control::RoundLoss& loss) {
  const auto request = request_of(loss.request);
  if (!request) return;
  const Round round = rounds_.at(*request);
  if (!round.is_kept)
    return end_round(*request, {.request = *request,
                                .reply = {.reason = loss.reason, .version = round.version}});
  rounds_.erase(*request);
  recorder_.round_lost(
      *request, loss.reason + "; it is kept, and published again when that is possible", now());
  callbacks_.on_round_lost({.request = *request, .version = round.version, .reason = loss.reason});
}

void RemoteCoordinator::end_round(std::uint64_t request, coordinator::RoundDone done) {
  rounds_.erase(request);
  recorder_.round_ended(done, now());
  callbacks_.on_round_done(done);
}

// ---- CoordinatorLink ----

void RemoteCoordinator::request_round(coordinator::PublishRequested publish) {
  const std::uint64_t number = next_round_++;
  control::RoundRequest request{.request = number,
                                .version = publish.version,
                                .layout_digest = publish.layout_digest,
                                .content_digest = publish.content_digest,
                                .layout = std::move(publish.layout),
                                .bucket_bytes = publish.bucket_bytes,
                                .arena_bytes = publish.arena_bytes,
                                .snapshot_ns = publish.snapshot_ns,
                                .is_complete = publish.is_complete,
                                .was_streamed = publish.was_streamed,
                                .is_kept = publish.is_kept};
  if (publish.deadline) {
    const auto rest =
        std::chrono::duration_cast<std::chrono::milliseconds>(*publish.deadline - now());
    request.deadline_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(rest.count(), 1));
  }
  rounds_[publish.request] = {.number = number,
                              .version = publish.version,
                              .is_kept = publish.is_kept,
                              .deadline = publish.deadline};
  versions_.insert(publish.version);
  send(std::move(request));
}

void RemoteCoordinator::end_snapshot(coordinator::SnapshotEnded snapshot) {
  control::SnapshotEnd end{.version = snapshot.version,
                           .content_digest = snapshot.content_digest,
                           .snapshot_ns = snapshot.snapshot_ns,
                           .failure = std::move(snapshot.failure),
                           .cancelled = snapshot.cancelled};
  for (auto& [request, round] : rounds_)
    if (round.version == end.version) round.end = end;
  send(std::move(end));
}

void RemoteCoordinator::replace_waiting(const Version& version, const Version& by) {
  send(control::RoundReplaced{.version = version, .by = by});
}

control::CancelReply RemoteCoordinator::cancel(const Version& version, const std::string& why) {
  const bool is_own = std::ranges::any_of(
      rounds_, [&](const auto& entry) { return entry.second.version == version; });
  // An operator's request has been through the coordinator before it came here.
  if (why.empty() || !is_own)
    return {.reason = fmt::format("nothing to cancel: {} is not published now",
                                  version.none() ? "no version" : version.to_string())};
  send(control::RoundGivenUp{.version = version, .why = why});
  return {.ok = true, .version = version};
}

std::optional<std::string> RemoteCoordinator::why_rollback_waits() const {
  if (!is_attached_ || facts_.rollback_waits.empty()) return std::nullopt;
  return facts_.rollback_waits;
}

void RemoteCoordinator::roll_back(const Version& to,
                                  std::function<void(Result<control::RollbackReply>)> on_done) {
  if (!is_attached_)
    return on_done(
        fail(ErrorCode::kPeerLost, fmt::format("{} is not connected: {}", where(), why_detached_)));
  const std::uint64_t question = next_question_++;
  rollbacks_[question] = std::move(on_done);
  send(control::Rollback{.to = to}, question);
}

void RemoteCoordinator::collect_trace(const control::TraceQuestion& question,
                                      std::function<void(control::TraceAnswer)> on_done) {
  if (!is_attached_) return on_done({});
  const std::uint64_t number = next_question_++;
  traces_[number] = std::move(on_done);
  send(question, number);
}

void RemoteCoordinator::reply(const std::string&, std::uint64_t request, control::Message message) {
  send(std::move(message), request);
}

control::StatusReply RemoteCoordinator::status() {
  if (is_attached_ && now() - asked_status_ >= kStatusPause) {
    asked_status_ = now();
    send(control::Status{});
  }
  return status_;
}

// ---- CoordinatorFacts ----

std::optional<std::string> RemoteCoordinator::why_not_ready() const {
  if (!is_attached_) return fmt::format("{} is not connected: {}", where(), why_detached_);
  if (!facts_.stopped.empty()) return fmt::format("{} has stopped: {}", where(), facts_.stopped);
  if (!facts_.not_ready.empty()) return facts_.not_ready;
  return std::nullopt;
}

std::optional<std::string> RemoteCoordinator::why_too_few_engines() const {
  if (facts_.too_few_engines.empty()) return std::nullopt;
  return facts_.too_few_engines;
}

Result<Version> RemoteCoordinator::next_version(std::uint64_t step) const {
  if (!is_attached_ || !facts_.is_claimed)
    return fail(ErrorCode::kBusy, why_not_ready().value_or(where() + " has no fence yet"));
  coordinator::VersionNames names;
  names.note_seen({.step = facts_.seen_step});
  if (facts_.used_step != 0) names.note_used(facts_.used_step);
  return names.next(static_cast<std::uint32_t>(fence_.epoch), step);
}

bool RemoteCoordinator::has_update(const Version& version) const {
  if (version.none()) return facts_.has_round || !rounds_.empty();
  return std::ranges::find(facts_.updates, version) != facts_.updates.end() ||
         std::ranges::any_of(rounds_,
                             [&](const auto& entry) { return entry.second.version == version; });
}

bool RemoteCoordinator::may_stream() const {
  return is_attached_ && facts_.may_stream && rounds_.empty();
}

}  // namespace wsync::publish
