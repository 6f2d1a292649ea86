#include "trainer_side/publish/coordinator_agent.h"

#include <algorithm>
#include <limits>
#include <random>
#include <thread>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/base/open_files.h"
#include "shared/config/address.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/trainer_config.h"
#include "shared/config/units.h"
#include "shared/control/codec.h"
#include "shared/control/zmq/ports.h"
#include "shared/observe/metrics/catalog.h"
#include "trainer_side/coordinator/missing_replicas.h"
#include "trainer_side/coordinator/page/page_routes.h"
#include "trainer_side/publish/fleet_place.h"
#include "trainer_side/publish/make_decision_store.h"

namespace wsync::publish {
namespace {

coordinator::CoordinatorOptions coordinator_options(const config::TrainerConfig& config) {
  coordinator::CoordinatorOptions options;
  std::random_device random;
  const auto word = [&random] { return (static_cast<std::uint64_t>(random()) << 32U) | random(); };
  for (std::uint64_t& half : options.run_id) half = word();
  options.new_fleet_id = {.high = word(), .low = word()};
  options.take_over = config.take_over;
  options.min_sidecars = config.min_sidecars;
  options.min_replicas = config.min_replicas;
  options.commit = config.commit;
  options.max_paused = config.max_paused;
  options.canary = config.canary;
  options.canary_time = config.canary_time;
  options.forget_after = config.forget_after;
  options.one_transport = !config.network.transport.empty();
  options.serves_other_hosts = config::is_beyond_this_host(config.listen) ||
                               config::is_beyond_this_host(config.network.data_address);
  options.security = config.network.data_security;
  options.pause_mode = config.pause_mode;
  options.caches = config.caches;
  options.boot_id = boot_id();
  options.gather_recorded = config.deadlines.gather;
  options.announce = config.deadlines.announce;
  options.stage = config.deadlines.stage;
  options.pause = config.deadlines.pause;
  options.load = config.deadlines.load;
  options.whole_switch = std::max<std::chrono::milliseconds>(
      config.deadlines.pause + config.deadlines.load + config.deadlines.commit,
      std::chrono::milliseconds(1));
  return options;
}

// No question of this process has this number. Each sidecar repeats it in its answer.
constexpr std::uint64_t kSignOffRequest = std::numeric_limits<std::uint64_t>::max();
// A sidecar that hangs holds up the end of its coordinator for this long.
constexpr std::chrono::milliseconds kSignOffWait{500};
// How long the end of this process waits for the record that is being stored, and how often it
// looks.
constexpr std::chrono::seconds kLastWriteWait{2};
constexpr std::chrono::milliseconds kLastWriteLook{5};

// Logged at the start, because a missing sidecar may not connect for a long time.
void log_record(const coordinator::CoordinatorRecord& record, std::chrono::milliseconds gather) {
  log_info("continuing from epoch {} of fleet {}, target {}{}", record.fence.epoch,
           record.fence.fleet.to_string(),
           record.target.none() ? "none" : record.target.to_string(),
           record.members.empty()
               ? std::string()
               : fmt::format("; waiting {} s at most (deadlines.gather) for sidecars {}",
                             gather.count() / 1000, fmt::join(record.members, ", ")));
}

std::string leave_text(const coordinator::Member& sidecar) {
  const std::uint32_t replicas = coordinator::attached_replicas(sidecar);
  if (replicas == 0) return "it has stopped, and no engine is attached to it";
  return fmt::format(
      "it has stopped in order, with {} replica{} attached, whose engines continue to serve; it is "
      "expected to return",
      replicas, replicas == 1 ? "" : "s");
}

// A sidecar of this host that was killed and restarted gets its name back at once, not only when
// its silence is noticed. On another host or in another pid namespace the process id proves
// nothing.
bool predecessor_is_gone(const coordinator::Roster& roster, const control::Hello& hello) {
  const coordinator::Member* known = roster.find(hello.name);
  if (known == nullptr) return false;
  const coordinator::Member& before = *known;
  const std::uint64_t own = pid_namespace();
  return own != 0 && before.pid_namespace == own && !before.boot_id.empty() &&
         before.boot_id == boot_id() && process_is_gone(before.report.pid);
}

// One coordinator for each store: a second one would stop the first at its next decision.
Result<> lead(coordinator::DecisionStore& store, const config::TrainerConfig& config) {
  auto leads = store.lead(std::string(kTakeOverAdvice));
  if (!leads) return fail(leads.error().with_context("the state of fleet '" + config.fleet + "'"));
  return {};
}

bool is_of_publisher(const control::Message& message) {
  return std::holds_alternative<control::PublisherHello>(message) ||
         std::holds_alternative<control::RoundRequest>(message) ||
         std::holds_alternative<control::SnapshotEnd>(message) ||
         std::holds_alternative<control::RoundReplaced>(message) ||
         std::holds_alternative<control::RoundGivenUp>(message) ||
         std::holds_alternative<control::Progress>(message) ||
         std::holds_alternative<control::PushReply>(message) ||
         std::holds_alternative<control::CancelReply>(message);
}

bool is_of_rank(const control::Message& message) {
  return std::holds_alternative<control::RankHello>(message) ||
         std::holds_alternative<control::RankServes>(message) ||
         std::holds_alternative<control::RankShards>(message) ||
         std::holds_alternative<control::Snapshotted>(message) ||
         std::holds_alternative<control::PartSummed>(message);
}

control::ErrorReply error_reply(const Error& error) {
  return {.code = error.code(), .message = error.message()};
}

}  // namespace

Result<OpenedStore> CoordinatorAgent::open_store(Loop& loop, const config::TrainerConfig& config) {
  OpenedStore opened;
  // Null before the agent is made, and after it has gone; used on the loop.
  const auto self = opened.agent;
  const auto posted = [&loop, self](auto act) {
    return [&loop, self, act](const std::string& text) {
      loop.post([self, act, text] {
        if (*self != nullptr) act(**self, text);
      });
    };
  };
  opened.store = WSYNC_TRY(make_decision_store(
      config, {.on_trouble = posted([](CoordinatorAgent& agent, const std::string& text) {
                 agent.recorder_.incident(text, now());
               }),
               .on_replaced = posted([](CoordinatorAgent& agent, const std::string& by) {
                 agent.step(coordinator::Replaced{.by = by, .what = "the fleet in etcd"});
               }),
               .on_lease_ended = posted([](CoordinatorAgent& agent, const std::string& why) {
                 agent.lose_lead(why);
               })}));
  return opened;
}

Result<std::unique_ptr<CoordinatorAgent>> CoordinatorAgent::create(
    Loop& loop, const config::TrainerConfig& config, CoordinatorAgentCallbacks callbacks,
    OpenedStore opened) {
  coordinator::CoordinatorOptions options = coordinator_options(config);
  options.publisher_attaches = callbacks.on_publisher_message != nullptr;
  coordinator::DecisionStore* store = opened.store.get();
  if (!opened.leads && store->leads_first()) WSYNC_TRY(lead(*store, config));
  options.record = WSYNC_TRY(store->read());
  options.store = store->write_deadline();
  if (!config.fleet_id.empty()) {
    const auto id = control::FleetId::parse(config.fleet_id);
    if (!id) return fail(id.error().with_context("fleet_id"));
    options.fleet_id = *id;
  }
  if (options.record && !options.fleet_id.none() && options.record->fence.fleet != options.fleet_id)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} is of fleet {}, but fleet_id names {}: choose another folder with "
                            "`fleet`, or leave fleet_id out",
                            store->name(), options.record->fence.fleet.to_string(),
                            options.fleet_id.to_string()));
  auto agent = std::unique_ptr<CoordinatorAgent>(new CoordinatorAgent(
      loop, config, std::move(callbacks), std::move(options), std::move(opened)));
  *agent->self_ = agent.get();
  WSYNC_TRY(agent->listen());
  return agent;
}

CoordinatorAgent::CoordinatorAgent(Loop& loop, const config::TrainerConfig& config,
                                   CoordinatorAgentCallbacks callbacks,
                                   coordinator::CoordinatorOptions options, OpenedStore opened)
    : loop_(loop),
      config_(config),
      callbacks_(std::move(callbacks)),
      coordinator_(options),
      record_before_(options.record),
      store_(std::move(opened.store)),
      must_lead_(!opened.leads && !store_->leads_first()),
      steps_down_(opened.leads),
      recorder_(config.trace_file, config.trace_spans),
      timer_(loop, [this] { step(coordinator::CoordinatorTick{}); }),
      // A separate worker, because a decision must not wait for a snapshot.
      store_worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "decisions"})),
      commands_(
          loop, coordinator_.roster(), recorder_.spans(),
          [this] { return callbacks_.trainer_peer(); },
          [this](const std::string& peer, std::uint64_t request, const control::Message& question) {
            control::Envelope envelope;
            envelope.fence = coordinator_.fence();
            envelope.request = request;
            return router_->send(peer, envelope, question);
          }),
      self_(std::move(opened.agent)) {}

Result<> CoordinatorAgent::listen() {
  // Each sidecar is a connection, and the usual soft limit is 1,024 files. If the hard limit is low
  // too, `wsync doctor` says so.
  raise_open_files();
  control::RouterCallbacks callbacks;
  callbacks.on_message = [this](const std::string& peer, control::Envelope envelope,
                                control::Message message) {
    handle_message(peer, std::move(envelope), std::move(message));
  };
  callbacks.on_lost = [this](const std::string& peer, const Error& error) {
    if (const auto* sidecar = coordinator_.roster().find_peer(peer))
      recorder_.incident(fmt::format("sidecar {} lost: {}", sidecar->name, error.message()), now());
    step(coordinator::PeerLost{.peer = peer, .reason = error.message()});
    commands_.lost(peer, error.message());
    callbacks_.on_peer_lost(peer, error);
  };
  callbacks.on_bad_message = [](const std::string& peer, const Error& error) {
    log_warning("a message from {} was dropped: {}", peer, error.message());
  };
  callbacks.heartbeat = [this] {
    control::Envelope envelope;
    envelope.fence = coordinator_.fence();
    control::Heartbeat heartbeat;
    heartbeat.target = coordinator_.target();
    return std::pair(std::move(envelope), std::move(heartbeat));
  };
  callbacks.on_address_taken = [this](const std::string& by) {
    step(coordinator::Replaced{.by = by});
  };
  control::RouterOptions options{.address = config_.listen,
                                 .times = {.heartbeat_interval = config_.heartbeat.interval,
                                           .silence_deadline = config_.heartbeat.deadline},
                                 .take_over = config_.take_over,
                                 .advice = std::string(kTakeOverAdvice)};
  if (!config_.keys.empty()) {
    keys_ = WSYNC_TRY(KeyWatch::create(config_.keys));
    options.keys = keys_->router_keys();
    keys_->guard(callbacks);
  }
  auto router = control::listen_zmq(loop_, options, std::move(callbacks));
  if (!router) return fail(router.error().with_context("the coordinator's address"));
  router_ = std::move(*router);
  if (keys_) keys_->follow_hangups(loop_, *router_);
  return {};
}

Result<> CoordinatorAgent::open(std::vector<control::TransportAddress> transports,
                                const std::optional<transport::PairSecret>& secret) {
  coordinator_.serve_by(std::move(transports), secret);
  // After the address is bound, because operators identify a coordinator by its address.
  if (std::exchange(must_lead_, false)) WSYNC_TRY(lead(*store_, config_));
  if (record_before_) log_record(*record_before_, config_.deadlines.gather);
  record_before_.reset();
  if (config_.http.address.empty()) return {};
  const auto readiness = [this] {
    return coordinator::fleet_readiness(coordinator_, config_.min_replicas);
  };
  metrics::StatusFacts facts;
  facts.readings = [this] {
    auto readings = coordinator::fleet_readings(coordinator_, callbacks_.publish_facts());
    if (keys_)
      readings.push_back({.what = &metrics::kKeyRefusals,
                          .value = static_cast<double>(router_->counters().refused),
                          .labels = {}});
    return readings;
  };
  facts.readiness = readiness;
  const auto shown = [this, readiness]() -> page::PageFacts {
    const metrics::Readiness ready = readiness();
    const TimePoint at = now();
    return {.status = status(),
            .ready = ready.ready,
            .not_ready = ready.reason,
            .rounds = recorder_.rounds(at),
            .at = at};
  };
  auto pages = metrics::StatusPages::create(
      loop_,
      {.address = config_.http.address,
       .take_over = config_.take_over,
       .role = "coordinator",
       .token = config_.http.token,
       .open = config_.http.open_paths()},
      recorder_.metrics(), std::move(facts),
      [shown](Asker& asker) { return page::page_routes(asker, shown); });
  if (pages) {
    pages_ = std::move(*pages);
    return {};
  }
  // With --take-over this coordinator already has the fleet. Ending because the pages are missing
  // would leave the fleet without a coordinator.
  if (!config_.take_over) return fail(std::move(pages).error());
  log_warning("/metrics, /healthz, /readyz and the page are not served: {}",
              pages.error().message());
  return {};
}

CoordinatorAgent::~CoordinatorAgent() {
  pages_.reset();
  sign_off();
  // The store worker still posts the end of a running write; that task must not use this object.
  *alive_ = false;
  if (self_) *self_ = nullptr;
  // A store that answers has written within this time; of another one nobody knows when it will.
  const TimePoint end = now() + kLastWriteWait;
  while (!store_worker_->is_idle() && now() < end) std::this_thread::sleep_for(kLastWriteLook);
  store_->cancel();
  store_worker_->stop();
  recorder_.write_trace();
}

// Tells the sidecars that this end is in order, so that they report no failure. Each answers with a
// heartbeat.
void CoordinatorAgent::sign_off() {
  if (!router_ || coordinator_.stopped()) return;
  control::Envelope envelope;
  envelope.fence = coordinator_.fence();
  envelope.request = kSignOffRequest;
  std::vector<std::string> sidecars;
  for (const auto& [name, member] : coordinator_.roster().members())
    if (member.joined) sidecars.push_back(member.peer);
  router_->say_last(sidecars, envelope, control::Leave{}, kSignOffWait);
}

// Who alone does not reach etcd would keep its sidecars and trainers from the coordinator that
// leads instead.
void CoordinatorAgent::lose_lead(const std::string& why) {
  if (!steps_down_ || coordinator_.stopped()) return;
  pages_.reset();
  callbacks_.on_stopped(
      Error(ErrorCode::kFenced,
            fmt::format("etcd has not extended the lease of this coordinator, so another one may "
                        "lead: {}",
                        why)));
}

// ---- the coordinator ----

void CoordinatorAgent::step(decltype(coordinator::CoordinatorEvent::what) what) {
  for (coordinator::CoordinatorCommand& command :
       coordinator_.step({.now = now(), .what = std::move(what)}))
    execute(std::move(command));
  if (const auto wake = coordinator_.next_wake(); wake)
    timer_.start_at(*wake);
  else
    timer_.stop();
  callbacks_.on_step();
}

void CoordinatorAgent::store(const coordinator::Store& command) {
  auto stored = std::make_shared<coordinator::Stored>(
      coordinator::Stored{.token = command.token, .record = {}});
  const auto answer = [this, alive = alive_, stored, target = command.record.target,
                       begin = now()] {
    if (!*alive) return;
    recorder_.record_stored(target, begin, now());
    step(std::move(*stored));
  };
  const auto submitted = store_worker_->submit(
      [store = store_, stored, record = command.record] { stored->record = store->write(record); },
      answer);
  if (submitted) return;
  stored->record = fail(submitted.error());
  loop_.post(answer);  // posted, because the coordinator is inside its step
}

void CoordinatorAgent::execute(coordinator::CoordinatorCommand command) {
  if (auto* sent = std::get_if<coordinator::SendTo>(&command)) {
    if (const auto* sidecar = coordinator_.roster().find_peer(sent->peer))
      recorder_.sent(sidecar->name, sent->message, now());
    if (const auto result = router_->send(sent->peer, sent->envelope, sent->message); !result) {
      // This side's error: it cannot be encoded.
      if (result.error().code() == ErrorCode::kInvalidInput)
        log_error("a message to {} was not sent: {}", sent->peer, result.error().message());
      else
        log_debug("a message to {} was not sent: {}", sent->peer, result.error().message());
    }
  } else if (auto* record = std::get_if<coordinator::Store>(&command)) {
    store(*record);
  } else if (auto* reported = std::get_if<coordinator::Incident>(&command)) {
    recorder_.incident(reported->text, now());
    if (reported->refusal) complaint_ = reported->text;
  } else if (auto* ready = std::get_if<coordinator::Ready>(&command)) {
    log_info("fleet {}: fence epoch {} claimed; target {}", ready->fence.fleet.to_string(),
             ready->fence.epoch, ready->target.none() ? "none yet" : ready->target.to_string());
    loop_.post([this, alive = alive_, target = ready->target] {
      if (*alive) callbacks_.on_ready(target);
    });
  } else if (auto* phase = std::get_if<coordinator::PhaseEntered>(&command)) {
    recorder_.phase_entered(phase->request, phase->phase, now());
    callbacks_.on_phase(*phase);
  } else if (auto* done = std::get_if<coordinator::RoundDone>(&command)) {
    recorder_.round_ended(*done, now());
    callbacks_.on_round_done(*done);
  } else if (auto* lost = std::get_if<coordinator::RoundLost>(&command)) {
    recorder_.round_lost(
        lost->request, lost->reason + "; it is kept, and published again when a sidecar has joined",
        now());
    callbacks_.on_round_lost(*lost);
  } else if (auto* began = std::get_if<coordinator::RollbackBegan>(&command)) {
    recorder_.rollback_began(began->request, began->to, now());
    callbacks_.on_rolled_back(began->to);
  } else if (auto* back = std::get_if<coordinator::RollbackDone>(&command)) {
    end_rollback(std::move(*back));
  } else if (auto* promotion = std::get_if<coordinator::PromotionBegan>(&command)) {
    log_info("{} is promoted: every replica switches to it", promotion->version.to_string());
    recorder_.promotion_began(promotion->request, promotion->version, now());
  } else if (auto* promoted = std::get_if<coordinator::PromotionDone>(&command)) {
    end_promotion(std::move(*promoted));
  } else if (auto* cancel = std::get_if<coordinator::CancelDone>(&command)) {
    cancelled_ = std::move(cancel->reply);
  } else if (auto* forget = std::get_if<coordinator::ForgetDone>(&command)) {
    if (auto entry = forgets_.extract(forget->request); !entry.empty())
      entry.mapped()(std::move(forget->reply));
  } else if (auto* gone = std::get_if<coordinator::Forgotten>(&command)) {
    log_info("sidecar {} is forgotten: {}", gone->sidecar, gone->reason);
    recorder_.forget(gone->sidecar);
  } else if (auto* drop = std::get_if<coordinator::DropVersion>(&command)) {
    callbacks_.on_drop(drop->version);
  } else if (auto* stopped = std::get_if<coordinator::Stopped>(&command)) {
    log_error("{}", stopped->reason);
    loop_.post([this, alive = alive_, code = stopped->code, reason = stopped->reason] {
      if (!*alive) return;
      // Its data about the fleet no longer changes, and its successor may need the port.
      pages_.reset();
      callbacks_.on_stopped(Error(code, reason));
    });
  }
}

void CoordinatorAgent::end_rollback(coordinator::RollbackDone done) {
  recorder_.rollback_ended(done.request, done.reply, now());
  if (done.reply.ok)
    log_info("rolled back from {} to {}", done.reply.from.to_string(), done.reply.to.to_string());
  else
    log_warning("rollback: {}", done.reply.reason);
  if (auto entry = rollbacks_.extract(done.request); !entry.empty())
    entry.mapped()(std::move(done.reply));
}

void CoordinatorAgent::end_promotion(coordinator::PromotionDone done) {
  recorder_.promotion_ended(done.request, done.reply, now());
  if (!done.reply.ok) log_warning("promotion: {}", done.reply.reason);
  // Not if a rollback has ended it.
  if ((done.reply.ok || done.reply.partial) && coordinator_.target() == done.reply.version)
    callbacks_.on_promoted(done.reply.version);
  if (auto entry = promotions_.extract(done.request); !entry.empty())
    entry.mapped()(std::move(done.reply));
}

// ---- incoming messages ----

void CoordinatorAgent::handle_message(const std::string& peer, control::Envelope envelope,
                                      control::Message message) {
  if (callbacks_.on_publisher_message && callbacks_.on_publisher_message(peer, envelope, message))
    return;
  if (is_of_publisher(message)) {
    // Of a process that was the trainer before another one took its place.
    if (callbacks_.on_publisher_message)
      return reply(peer, 0,
                   error_reply(Error(ErrorCode::kPeerLost,
                                     "another trainer has taken the place of this one")));
    if (!std::holds_alternative<control::PublisherHello>(message)) return;
    return reply(peer, envelope.request,
                 error_reply(Error(ErrorCode::kRefused,
                                   "this coordinator is a part of a trainer, and no other trainer "
                                   "may publish to it: start one with `wsync coordinator`")));
  }
  if (is_of_rank(message)) {
    if (callbacks_.on_rank_message) return callbacks_.on_rank_message(peer, std::move(message));
    return reply(peer, envelope.request,
                 error_reply(Error(ErrorCode::kRefused,
                                   "no rank 0 of a trainer with several ranks is in this process: "
                                   "`leader` must be the address at which rank 0 listens, and rank "
                                   "0 must have its own coordinator")));
  }
  const auto answer = [this, peer, request = envelope.request](auto reply_message) {
    reply(peer, request, std::move(reply_message));
  };
  if (const auto* push = std::get_if<control::Push>(&message)) {
    log_info("push of {} requested{}", push->directory,
             push->host.empty() ? "" : " by a command on " + push->host);
    callbacks_.on_push(peer, envelope.request, *push);
  } else if (const auto* rollback = std::get_if<control::Rollback>(&message)) {
    roll_back(rollback->to, [answer](Result<control::RollbackReply> back) {
      if (back)
        answer(std::move(*back));
      else
        answer(error_reply(back.error()));
    });
  } else if (const auto* promotion = std::get_if<control::Promote>(&message)) {
    promote(promotion->force, answer);
  } else if (std::holds_alternative<control::Status>(message)) {
    answer(status());
  } else if (const auto* stop = std::get_if<control::Cancel>(&message)) {
    callbacks_.on_cancel(stop->version, answer);
  } else if (std::holds_alternative<control::Verify>(message)) {
    commands_.verify(answer);
  } else if (auto* plan = std::get_if<control::Plan>(&message)) {
    commands_.plan(std::move(*plan), [this, answer](control::PlanReply reply) {
      reply.arenas = config_.arenas;
      answer(std::move(reply));
    });
  } else if (const auto* unwanted = std::get_if<control::Forget>(&message)) {
    forget(*unwanted, answer);
  } else if (const auto* question = std::get_if<control::TraceQuestion>(&message)) {
    commands_.collect_trace(*question, answer);
  } else if (std::holds_alternative<control::TraceAnswer>(message) ||
             std::holds_alternative<control::VerifyReply>(message) ||
             std::holds_alternative<control::PlanReply>(message) ||
             std::holds_alternative<control::ForgetReply>(message)) {
    commands_.answered(peer, envelope.request, std::move(message), now());
  } else {
    handle_sidecar(peer, std::move(envelope), std::move(message));
  }
}

void CoordinatorAgent::handle_sidecar(const std::string& peer, control::Envelope envelope,
                                      control::Message message) {
  if (const auto* error = std::get_if<control::ErrorReply>(&message)) {
    log_warning("{}: {}", peer, error->message);
    complaint_ = error->message;
  }
  const bool leaves = std::holds_alternative<control::Leave>(message);
  if (const auto* sidecar = coordinator_.roster().find_peer(peer)) {
    recorder_.received(sidecar->name, message, now());
    if (leaves) log_info("sidecar {} has left: {}", sidecar->name, leave_text(*sidecar));
  }
  const auto* hello = std::get_if<control::Hello>(&message);
  const bool is_gone = hello != nullptr && predecessor_is_gone(coordinator_.roster(), *hello);
  step(coordinator::PeerMessage{.peer = peer,
                                .envelope = std::move(envelope),
                                .message = std::move(message),
                                .predecessor_gone = is_gone});
  if (leaves) commands_.lost(peer, "the sidecar left the fleet");
}

void CoordinatorAgent::reply(const std::string& peer, std::uint64_t request,
                             control::Message message) {
  control::Envelope envelope;
  envelope.fence = coordinator_.fence();
  envelope.request = request;
  // Only who has named this capability is told of it.
  if (const auto* error = std::get_if<control::ErrorReply>(&message); error && error->may_publish)
    envelope.capabilities = bits(control::Capability::kPushOrigin);
  Result<> sent = router_->send(peer, envelope, message);
  if (!sent && sent.error().code() == ErrorCode::kInvalidInput) {
    // The reply cannot be encoded. Notify the requester, so that it does not wait for the deadline.
    const Error why = sent.error().with_context(
        fmt::format("the {} cannot be sent", control::message_name(control::type_of(message))));
    log_warning("reply to {}: {}", peer, why.message());
    sent = router_->send(peer, envelope, error_reply(why));
  }
  if (!sent) log_debug("reply to {}: {}", peer, sent.error().message());
}

Result<> CoordinatorAgent::send(const std::string& peer, std::uint64_t request,
                                const control::Message& message) {
  control::Envelope envelope;
  envelope.fence = coordinator_.fence();
  envelope.request = request;
  return router_->send(peer, envelope, message);
}

// ---- commands ----

void CoordinatorAgent::roll_back(const Version& to,
                                 std::function<void(Result<control::RollbackReply>)> on_done) {
  if (const auto stopped = why_stopped()) return on_done(fail(*stopped));
  const std::uint64_t request = recorder_.next_request();
  rollbacks_[request] = std::move(on_done);
  step(coordinator::RollbackRequested{.request = request, .to = to});
}

void CoordinatorAgent::promote(bool force, std::function<void(control::PromoteReply)> on_done) {
  if (const auto stopped = why_stopped()) return on_done({.reason = stopped->message()});
  const std::uint64_t request = recorder_.next_request();
  promotions_[request] = std::move(on_done);
  step(coordinator::PromoteRequested{.request = request, .force = force});
}

control::CancelReply CoordinatorAgent::cancel(const Version& version, const std::string& why) {
  cancelled_.reset();
  step(coordinator::CancelRequested{
      .request = recorder_.next_request(), .version = version, .why = why});
  WSYNC_CHECK(cancelled_.has_value(), "each request to cancel is answered in its step");
  return *std::exchange(cancelled_, std::nullopt);
}

void CoordinatorAgent::forget(const control::Forget& what,
                              std::function<void(control::ForgetReply)> on_done) {
  const std::set<std::string> known = coordinator_.known_sidecars();
  if (!coordinator_.stopped() && !known.contains(what.sidecar))
    return on_done({.reason = fmt::format("this coordinator knows no sidecar '{}'{}", what.sidecar,
                                          config::known_names(what.sidecar, known))});
  if (!what.replica.empty()) return commands_.forget_replica(what, std::move(on_done));
  const std::uint64_t request = recorder_.next_request();
  forgets_[request] = std::move(on_done);
  step(coordinator::ForgetRequested{
      .request = request, .sidecar = what.sidecar, .force = what.force});
}

control::StatusReply CoordinatorAgent::status() {
  control::StatusReply reply = coordinator_.status();
  PhaseBytes moved;
  if (const auto bytes = callbacks_.snapshot_bytes(recorder_.shown()))
    moved = *bytes;
  else if (coordinator_.has_update({}))
    moved = moved_bytes();
  recorder_.report(moved, now(), reply);
  const std::optional<std::string> held = callbacks_.why_held(recorder_.shown());
  // The coordinator itself has nothing to do while a snapshot is taken. A version that only the
  // canary serves is what an operator must see first.
  if (const control::UpdateProgress& running = reply.running;
      coordinator_.phase() == coordinator::CoordinatorPhase::kReady && !running.version.none() &&
      coordinator_.canary_waiting() == 0)
    reply.activity = held ? "waiting to publish: " + *held
                     : running.phase == control::ProgressPhase::kSnapshot
                         ? "taking the snapshot of " + running.version.to_string()
                         : "beginning the round of " + running.version.to_string();
  return reply;
}

// ---- facts ----

std::optional<Error> CoordinatorAgent::why_stopped() const {
  const std::optional<coordinator::Stopped>& stopped = coordinator_.stopped();
  if (!stopped) return std::nullopt;
  return Error(stopped->code, "this coordinator has stopped: " + stopped->reason);
}

std::optional<std::string> CoordinatorAgent::why_not_ready() const {
  const std::size_t joined = coordinator_.roster().joined_count();
  // At least one, which brings the fence.
  const std::uint32_t needed = std::max(1U, config_.min_sidecars);
  if (coordinator_.phase() >= coordinator::CoordinatorPhase::kReady &&
      joined >= config_.min_sidecars)
    return std::nullopt;
  std::string why =
      fmt::format("{} of at least {} sidecars have joined {}", joined, needed, address());
  if (coordinator_.roster().size() == 0)
    why += fmt::format(": start one with `{}` on the host of the engines",
                       config::sidecar_command(address()));
  if (const std::vector<std::string> names = coordinator_.awaited(); !names.empty())
    why += fmt::format(
        "; sidecars of the record have not connected, and the coordinator waits for them at most "
        "{} s (deadlines.gather): {}",
        config_.deadlines.gather.count() / 1000, fmt::join(names, ", "));
  if (complaint_) why += "; " + *complaint_;
  return why;
}

std::optional<std::string> CoordinatorAgent::why_too_few_engines() const {
  std::uint32_t whole = 0;
  std::vector<const coordinator::Member*> joined;
  for (const auto& [name, member] : coordinator_.roster().members())
    if (member.joined) {
      whole += coordinator::whole_replicas(member);
      joined.push_back(&member);
    }
  const bool quorum = config_.commit.rule == CommitRule::kQuorum;
  const std::uint32_t needed = std::max(config_.min_replicas, quorum ? config_.commit.quorum : 0);
  if (whole >= needed) return std::nullopt;
  const std::string missing = coordinator::missing_replicas(joined);
  return fmt::format(
      "{} of at least {} replicas have all of their ranks attached to a sidecar ({}){}{}", whole,
      needed, quorum ? "the quorum of `commit`" : "min_replicas", missing.empty() ? "" : ": ",
      missing);
}

PhaseBytes CoordinatorAgent::moved_bytes() const {
  const coordinator::MovedBytes moved = coordinator_.moved_bytes();
  return {.done = moved.done, .total = moved.total};
}

}  // namespace wsync::publish
