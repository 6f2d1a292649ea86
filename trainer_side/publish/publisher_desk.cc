#include "trainer_side/publish/publisher_desk.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/config/limits.h"
#include "shared/control/codec.h"
#include "shared/transport/pair_key.h"
#include "trainer_side/publish/push_origin.h"

namespace wsync::publish {
namespace {

control::RoundEnd decided_end(const control::OpenRound& open, std::string_view how) {
  return {.request = open.request,
          .reply = {.reason = fmt::format("{} was decided, and {}", open.version.to_string(), how),
                    .version = open.version,
                    .switch_ns = 1}};
}

// A step of the coordinator changes little, and with many sidecars there are thousands a second.
constexpr std::chrono::milliseconds kFactsPause{20};

}  // namespace

std::string PublisherDesk::Trainer::text() const {
  return fmt::format("process {} on {}", pid, host);
}

bool PublisherDesk::Trainer::is_gone() const {
  const std::uint64_t own = wsync::pid_namespace();
  return own != 0 && pid_namespace == own && !boot_id.empty() && boot_id == wsync::boot_id() &&
         process_is_gone(pid);
}

PublisherDesk::PublisherDesk(Loop& loop)
    : grace_(loop,
             [this] {
               drop(fmt::format("the trainer ({}) was lost, and did not come back within {} s: {}",
                                trainer_->text(), kPublisherGrace.count(), why_lost_));
             }),
      facts_timer_(loop, [this] { send_facts(); }) {}

CoordinatorAgentCallbacks PublisherDesk::callbacks(
    std::function<void(const Error& reason)> on_stopped) {
  CoordinatorAgentCallbacks own;
  own.on_stopped = [this, on_stopped = std::move(on_stopped)](const Error& reason) {
    send_facts();  // they say that it has stopped
    on_stopped(reason);
  };
  own.on_phase = [this](const coordinator::PhaseEntered& phase) { enter_phase(phase); };
  own.on_round_done = [this](const coordinator::RoundDone& done) {
    end_round(done.request, [&done](std::uint64_t request) {
      return control::RoundEnd{.request = request,
                               .superseded = done.superseded,
                               .cancelled = done.cancelled,
                               .reply = done.reply};
    });
  };
  own.on_round_lost = [this](const coordinator::RoundLost& lost) {
    end_round(lost.request, [&lost](std::uint64_t request) {
      return control::RoundLoss{.request = request, .version = lost.version, .reason = lost.reason};
    });
  };
  own.on_rolled_back = [this](const Version& to) {
    notify(control::TargetChanged{.how = control::TargetChange::kRolledBack, .target = to});
  };
  own.on_promoted = [this](const Version& version) {
    notify(control::TargetChanged{.how = control::TargetChange::kPromoted, .target = version});
  };
  own.on_drop = [this](const Version& version) {
    notify(control::VersionDropped{.version = version});
  };
  own.on_step = [this] { note_step(); };
  own.on_push = [this](const std::string& peer, std::uint64_t request, const control::Push& what) {
    push(peer, request, what);
  };
  own.on_cancel = [this](const Version& version, std::function<void(control::CancelReply)> answer) {
    cancel(version, std::move(answer));
  };
  own.on_publisher_message = [this](const std::string& peer, const control::Envelope& envelope,
                                    control::Message& message) {
    return handle(peer, envelope, message);
  };
  own.trainer_peer = [this] {
    return trainer_ && trainer_->is_connected ? std::optional(trainer_->peer) : std::nullopt;
  };
  own.on_peer_lost = [this](const std::string& peer, const Error& why) { handle_lost(peer, why); };
  return own;
}

// ---- messages of the trainer ----

bool PublisherDesk::handle(const std::string& peer, const control::Envelope& envelope,
                           control::Message& message) {
  if (const auto* hello = std::get_if<control::PublisherHello>(&message)) {
    handle_hello(peer, envelope.request, *hello);
    return true;
  }
  if (!is_trainer(peer)) {
    // This side has noticed a loss that the trainer has not, such as a cable that was cut in one
    // direction. Its heartbeat shows that it is there again.
    if (peer == last_peer_) ask_for_hello(peer);
    return false;
  }
  if (auto* request = std::get_if<control::RoundRequest>(&message)) {
    handle_request(*request);
  } else if (const auto* end = std::get_if<control::SnapshotEnd>(&message)) {
    agent_->end_snapshot({.version = end->version,
                          .content_digest = end->content_digest,
                          .snapshot_ns = end->snapshot_ns,
                          .failure = end->failure,
                          .cancelled = end->cancelled});
  } else if (const auto* replaced = std::get_if<control::RoundReplaced>(&message)) {
    agent_->replace_waiting(replaced->version, replaced->by);
  } else if (std::holds_alternative<control::Leave>(message)) {
    handle_leave();
  } else if (const auto* given_up = std::get_if<control::RoundGivenUp>(&message)) {
    (void)agent_->cancel(given_up->version, given_up->why);
  } else if (auto* reply = std::get_if<control::CancelReply>(&message)) {
    if (auto entry = cancels_.extract(envelope.request); !entry.empty())
      entry.mapped()(std::move(*reply));
  } else if (std::holds_alternative<control::Progress>(message) ||
             std::holds_alternative<control::PushReply>(message) ||
             std::holds_alternative<control::ErrorReply>(message)) {
    answered(envelope.request, std::move(message));
  } else {
    return false;
  }
  return true;
}

void PublisherDesk::ask_for_hello(const std::string& peer) {
  agent_->reply(peer, 0,
                control::ErrorReply{.code = ErrorCode::kPeerLost,
                                    .message = "the coordinator had lost this trainer"});
}

void PublisherDesk::handle_hello(const std::string& peer, std::uint64_t request,
                                 const control::PublisherHello& hello) {
  const bool is_known = trainer_ && trainer_->process == hello.process;
  if (trainer_ && !is_known) {
    if (trainer_->is_connected && !trainer_->is_gone() && !hello.take_over)
      return agent_->reply(
          peer, request,
          control::ErrorReply{
              .code = ErrorCode::kBusy,
              .message = fmt::format(
                  "{} publishes to this fleet already: stop it, or start the other one with "
                  "--take-over",
                  trainer_->text())});
    // One that hangs hears of it when it goes on.
    if (trainer_->is_connected) ask_for_hello(trainer_->peer);
    drop(trainer_->is_gone()
             ? fmt::format("the trainer ({}) has ended", trainer_->text())
             : fmt::format("another trainer, process {} on {}, has taken the place of {}",
                           hello.pid, hello.host, trainer_->text()));
  }
  grace_.stop();
  last_peer_ = peer;
  trainer_ = Trainer{.peer = peer,
                     .process = hello.process,
                     .pid = hello.pid,
                     .pid_namespace = hello.pid_namespace,
                     .host = hello.host,
                     .boot_id = hello.boot_id};
  if (!is_known) {
    unsent_ends_.clear();
    log_info("a trainer has attached: {}", trainer_->text());
    agent_->attach_publisher({.transports = hello.transports,
                              .secret = transport::pair_secret_of(hello.secret),
                              .boot_id = hello.boot_id,
                              .process = hello.process});
  }
  last_facts_.reset();
  compare(hello);
}

void PublisherDesk::compare(const control::PublisherHello& hello) {
  send_facts();
  for (const Version& version : hello.versions)
    if (!agent_->machine().holds(version)) notify(control::VersionDropped{.version = version});
  std::vector<std::uint64_t> unlisted;
  for (const auto& [number, round] : rounds_)
    if (round.process == hello.process &&
        std::ranges::find(hello.rounds, round.request, &control::OpenRound::request) ==
            hello.rounds.end())
      unlisted.push_back(number);
  for (const control::OpenRound& open : hello.rounds) {
    const auto round = std::ranges::find_if(rounds_, [&](const auto& entry) {
      return entry.second.process == hello.process && entry.second.request == open.request;
    });
    if (round != rounds_.end()) {
      if (round->second.phase)
        notify(control::RoundPhase{.request = open.request, .phase = *round->second.phase});
    } else if (auto end = unsent_ends_.extract(open.request); !end.empty()) {
      notify(end.mapped());
    } else if (const auto how = how_decided(open.version)) {
      notify(decided_end(open, *how));
    } else {
      notify(control::RoundLoss{.request = open.request,
                                .version = open.version,
                                .reason = "the coordinator does not know it: it was started again, "
                                          "or the request was lost with a connection"});
    }
  }
  unsent_ends_.clear();  // nobody waits for what is left
  // Its trainer waits for these no longer.
  for (const std::uint64_t number : unlisted)
    if (const auto round = rounds_.find(number); round != rounds_.end())
      (void)agent_->cancel(round->second.version, "given up by its trainer");
}

// Of a version whose round this coordinator does not know: std::nullopt if it was not decided, as
// far as the record says.
std::optional<std::string> PublisherDesk::how_decided(const Version& version) const {
  if (version == agent_->target())
    return "this coordinator has lost what it knew of its round: `wsync status` shows who serves "
           "it";
  const std::vector<Version>& withdrawn = agent_->machine().record().withdrawn;
  if (std::ranges::find(withdrawn, version) != withdrawn.end() &&
      !planted("withdrawn_round_is_lost"))
    return "taken back by a rollback";  // of a lost one, the trainer says: publish again
  return std::nullopt;
}

void PublisherDesk::handle_request(control::RoundRequest& request) {
  const bool is_repeated = std::ranges::any_of(rounds_, [&](const auto& entry) {
    return entry.second.process == trainer_->process && entry.second.request == request.request;
  });
  if (is_repeated) return;
  // Its trainer has taken the round for lost.
  if (const auto how = how_decided(request.version))
    return notify(decided_end({.request = request.request, .version = request.version}, *how));
  const std::uint64_t number = agent_->recorder().next_request();
  rounds_[number] = {
      .process = trainer_->process, .request = request.request, .version = request.version};
  agent_->recorder().publish_requested(number, request.version, request.arena_bytes, now());
  coordinator::PublishRequested publish{.request = number,
                                        .version = request.version,
                                        .layout_digest = request.layout_digest,
                                        .content_digest = request.content_digest,
                                        .layout = std::move(request.layout),
                                        .bucket_bytes = request.bucket_bytes,
                                        .arena_bytes = request.arena_bytes,
                                        .snapshot_ns = request.snapshot_ns,
                                        .is_complete = request.is_complete,
                                        .was_streamed = request.was_streamed,
                                        .is_kept = request.is_kept};
  if (request.deadline_ms != 0)
    publish.deadline =
        now() + std::chrono::milliseconds(std::min<std::uint64_t>(
                    request.deadline_ms, static_cast<std::uint64_t>(config::kDurationMsMax)));
  agent_->request_round(std::move(publish));
}

void PublisherDesk::answered(std::uint64_t number, control::Message message) {
  const auto push = pushes_.find(number);
  if (push == pushes_.end()) return;
  const Asked asked = push->second;
  if (!std::holds_alternative<control::Progress>(message)) pushes_.erase(push);
  agent_->reply(asked.peer, asked.request, std::move(message));
}

// ---- its end ----

void PublisherDesk::handle_lost(const std::string& peer, const Error& why) {
  std::erase_if(pushes_, [&](const auto& entry) { return entry.second.peer == peer; });
  if (!is_trainer(peer)) return;
  trainer_->is_connected = false;
  why_lost_ = why.message();
  agent_->recorder().incident(
      fmt::format("the trainer ({}) is lost: {}", trainer_->text(), why.message()), now());
  refuse_questions(fmt::format("the trainer was lost: {}", why.message()));
  if (trainer_->is_gone())
    drop(fmt::format("the trainer ({}) has ended", trainer_->text()));
  else
    grace_.start(kPublisherGrace);
}

void PublisherDesk::handle_leave() {
  const std::string who = trainer_->text();
  log_info("the trainer ({}) has left", who);
  // What it has begun may be decided.
  const bool has_begun = std::ranges::any_of(
      rounds_, [&](const auto& entry) { return entry.second.process == trainer_->process; });
  refuse_questions(fmt::format("the trainer ({}) has left", who), !has_begun);
  forget_trainer(fmt::format("the trainer ({}) has left", who));
}

void PublisherDesk::drop(const std::string& why) {
  log_warning("{}; it is not waited for any longer", why);
  forget_trainer(why);
}

void PublisherDesk::forget_trainer(const std::string& why) {
  grace_.stop();
  refuse_questions(why);
  trainer_.reset();
  last_facts_.reset();
  agent_->lose_publisher(why);
  unsent_ends_.clear();
}

void PublisherDesk::refuse_questions(const std::string& why, bool may_publish) {
  for (const auto& [number, asked] : std::exchange(pushes_, {}))
    agent_->reply(asked.peer, asked.request,
                  control::ErrorReply{.code = ErrorCode::kPeerLost,
                                      .message = why,
                                      .may_publish = may_publish && asked.may_publish});
  for (auto& [number, answer] : std::exchange(cancels_, {})) answer({.reason = why});
}

// ---- requests of operators ----

control::ErrorReply PublisherDesk::no_trainer() const {
  return {
      .code = ErrorCode::kNotFound,
      .message = fmt::format(
          "no trainer is connected to this coordinator, and the weights of a push are read by "
          "one: start it with `wsync trainer --set coordinator={}` on the host of the directory",
          agent_->address())};
}

void PublisherDesk::push(const std::string& peer, std::uint64_t request,
                         const control::Push& what) {
  const bool may_publish = !what.boot_id.empty();
  const auto refuse = [&](control::ErrorReply why) {
    why.may_publish = may_publish && why.code != ErrorCode::kRefused;
    agent_->reply(peer, request, std::move(why));
  };
  if (!trainer_ || !trainer_->is_connected) return refuse(no_trainer());
  if (const auto why = why_not_read_here(what, trainer_->host, trainer_->boot_id))
    return refuse({.code = ErrorCode::kRefused, .message = *why});
  const std::uint64_t number = next_question_++;
  pushes_[number] = {.peer = peer, .request = request, .may_publish = may_publish};
  const Result<> sent = agent_->send(trainer_->peer, number,
                                     control::Push{.directory = what.directory, .step = what.step});
  if (sent) return;
  pushes_.erase(number);
  // A connection that is gone, of which this side has not heard yet.
  if (sent.error().code() == ErrorCode::kPeerLost) return refuse(no_trainer());
  agent_->reply(peer, request,
                control::ErrorReply{.code = sent.error().code(),
                                    .message = "the trainer: " + sent.error().message()});
}

void PublisherDesk::cancel(const Version& version,
                           std::function<void(control::CancelReply)> answer) {
  // What has become a round is the coordinator's; what has not is known to the trainer alone.
  if (agent_->has_update(version) || !trainer_ || !trainer_->is_connected)
    return answer(agent_->cancel(version, {}));
  const std::uint64_t number = next_question_++;
  cancels_[number] = std::move(answer);
  if (const Result<> sent =
          agent_->send(trainer_->peer, number, control::Cancel{.version = version});
      !sent)
    if (auto entry = cancels_.extract(number); !entry.empty())
      entry.mapped()({.reason = "the trainer: " + sent.error().message()});
}

// ---- rounds ----

void PublisherDesk::enter_phase(const coordinator::PhaseEntered& phase) {
  const auto round = rounds_.find(phase.request);
  if (round == rounds_.end()) return;
  round->second.phase = phase.phase;
  if (trainer_ && trainer_->process == round->second.process)
    notify(control::RoundPhase{.request = round->second.request, .phase = phase.phase});
}

void PublisherDesk::end_round(std::uint64_t number,
                              const std::function<control::Message(std::uint64_t)>& end) {
  const auto entry = rounds_.extract(number);
  if (entry.empty() || !trainer_ || trainer_->process != entry.mapped().process) return;
  control::Message message = end(entry.mapped().request);
  if (trainer_->is_connected)
    notify(message);
  else
    unsent_ends_.insert_or_assign(entry.mapped().request, std::move(message));
}

// ---- facts ----

control::FleetFacts PublisherDesk::facts() const {
  const coordinator::Coordinator& machine = agent_->machine();
  const PhaseBytes moved = agent_->moved_bytes();
  control::FleetFacts facts{.seen_step = machine.names().seen_step(),
                            .used_step = machine.names().used_step(),
                            .is_claimed = machine.next_version().has_value(),
                            .has_round = agent_->has_update({}),
                            .may_stream = agent_->may_stream(),
                            .may_hold_changes = agent_->may_hold_changes(),
                            .patch_value_cost = agent_->patch_value_cost(),
                            .target = agent_->target(),
                            .moved_bytes = moved.done,
                            .moved_total = moved.total};
  if (const auto why = agent_->why_stopped()) facts.stopped = why->message();
  facts.not_ready = agent_->why_not_ready().value_or("");
  facts.too_few_engines = agent_->why_too_few_engines().value_or("");
  facts.rollback_waits = agent_->why_rollback_waits().value_or("");
  for (const auto& [number, round] : rounds_)
    if (agent_->has_update(round.version)) facts.updates.push_back(round.version);
  return facts;
}

void PublisherDesk::send_facts() {
  if (!trainer_ || !trainer_->is_connected) return;
  facts_timer_.stop();
  facts_sent_ = now();
  const control::FleetFacts now_true = facts();
  control::Envelope envelope;
  envelope.fence = agent_->fence();
  Result<Bytes> encoded = control::encode(envelope, now_true);
  if (encoded && last_facts_ == *encoded) return;
  if (agent_->send(trainer_->peer, 0, now_true) && encoded) last_facts_ = std::move(*encoded);
}

void PublisherDesk::note_step() {
  if (!trainer_ || !trainer_->is_connected) return;
  const TimePoint next = facts_sent_ + kFactsPause;
  if (now() >= next)
    send_facts();
  else
    facts_timer_.start_at(next);
}

void PublisherDesk::notify(const control::Message& message) {
  if (!trainer_ || !trainer_->is_connected) return;
  send_facts();
  if (const Result<> sent = agent_->send(trainer_->peer, 0, message); !sent)
    log_warning("the trainer was not notified: {}", sent.error().message());
}

}  // namespace wsync::publish
