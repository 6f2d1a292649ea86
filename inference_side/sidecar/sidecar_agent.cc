#include "inference_side/sidecar/sidecar_agent.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "inference_side/sidecar/plan_answer.h"
#include "inference_side/sidecar/sidecar_options.h"
#include "inference_side/sidecar/sidecar_trace.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/numa.h"
#include "shared/base/record_file.h"
#include "shared/base/units.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/units.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/zmq/ports.h"
#include "shared/observe/trace/progress.h"

namespace wsync::agent {
namespace {

constexpr std::uint64_t kRecordBytesMax = 1 * limits::kMiB;
constexpr std::chrono::milliseconds kVerifyDeadline{100'000};

Result<staging::SidecarRecord> stored_record(const std::filesystem::path& path) {
  const Result<Bytes> bytes = read_record(path, kRecordBytesMax);
  if (!bytes && bytes.error().code() == ErrorCode::kNotFound) return staging::SidecarRecord{};
  if (!bytes) return fail(bytes.error());
  auto record = staging::decode_record(*bytes);
  if (!record)
    return fail(record.error().with_context(
        path.string() + " (remove it only if no coordinator of this fleet is alive)"));
  return record;
}

std::string kinds_of(const std::vector<control::TransportAddress>& transports) {
  std::string kinds;
  for (const control::TransportAddress& each : transports)
    kinds += (kinds.empty() ? "" : ", ") + each.kind;
  return kinds.empty() ? "none" : kinds;
}

// Why no version can come from a trainer that serves by `served`.
std::string no_transport_text(const std::vector<control::TransportAddress>& served,
                              const std::vector<control::TransportAddress>& accepted) {
  return fmt::format(
      "this sidecar and its trainer have no transport in common: the trainer serves {}, the "
      "sidecar accepts {}; set `transport: auto` in both configurations",
      kinds_of(served), kinds_of(accepted));
}

// The key of the configuration, which a coordinator would refuse under another name.
Result<control::KeyFile> own_key(const config::SidecarConfig& config) {
  auto key = control::load_key_file(config.key);
  if (!key) return fail(key.error().with_context("key"));
  const control::KeyOwner expected{.role = control::KeyRole::kSidecar, .name = config.name};
  if (key->owner == expected) return key;
  return fail(ErrorCode::kInvalidInput,
              fmt::format("key: {}: expected the key of {}, found that of {}: make one with `wsync "
                          "keys add {}`, or set `name`",
                          config.key, expected.text(), key->owner.text(), expected.text()));
}

std::uint64_t random_generation() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32U) | random();
}

}  // namespace

std::string engine_socket_path(const std::string& run_dir, const std::string& name) {
  return run_dir + "/" + name + ".engines";
}
std::string sidecar_address(const std::string& run_dir, const std::string& name) {
  return "ipc://" + run_dir + "/" + name + ".control";
}

Result<std::unique_ptr<SidecarAgent>> SidecarAgent::create(Loop& loop,
                                                           const config::SidecarConfig& config) {
  WSYNC_TRY(make_private_directory(config.run_dir));
  WSYNC_TRY(make_private_directory(config.state_dir));
  const std::filesystem::path fleet = std::filesystem::path(config.state_dir) / config.fleet;
  WSYNC_TRY(make_private_directory(fleet.string()));
  const std::filesystem::path state = fleet / config.name;
  auto lock = LockFile::acquire(state.string() + ".lock");
  if (!lock) return fail(lock.error().with_context("sidecar '" + config.name + "'"));
  const std::filesystem::path record_file = state.string() + ".record";
  auto record = WSYNC_TRY(stored_record(record_file));
  auto agent = std::unique_ptr<SidecarAgent>(new SidecarAgent(loop, config, std::move(record)));
  agent->state_lock_.emplace(std::move(*lock));
  agent->record_file_ = record_file;
  WSYNC_TRY(agent->open());
  WSYNC_TRY(agent->connect());
  WSYNC_TRY(agent->open_pages());
  return agent;
}

SidecarAgent::SidecarAgent(Loop& loop, const config::SidecarConfig& config,
                           staging::SidecarRecord record)
    : loop_(loop),
      config_(config),
      options_(sidecar_options(config)),
      record_(std::move(record)),
      trace_(config.trace_spans, trace::WhenFull::kDropOldest),
      switch_trace_(trace_),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "record"})),
      timer_(loop, [this] { step(reload::Tick{}); }) {}

SidecarAgent::~SidecarAgent() {
  *alive_ = false;
  pages_.reset();
  dealer_.reset();
  if (receiver_) receiver_->stop();
  worker_->stop();
  hub_.reset();
  receiver_.reset();
  // Write the files last, when no thread of the store or the devices records spans any longer.
  write_trace_files(trace_, config_, buffer_bytes_);
}

Result<> SidecarAgent::open() {
  VersionReceiverOptions receiver;
  receiver.config = &config_;
  receiver.layouts = &layouts_;
  receiver.trace = &switch_trace_;
  receiver.metrics = &metrics_;
  receiver.fence = [this]() -> const control::Fence& { return sidecar_->fence(); };
  receiver.target = [this] { return sidecar_->record().target; };
  receiver.step = [this](auto what) { step(std::move(what)); };
  receiver.keep_changes = patch_options().enabled;
  receiver.prepare = [this](const auto& version, const auto& changes,
                            std::function<void()> on_ready, std::chrono::milliseconds wait) {
    hub_->add_version(version, std::move(on_ready), changes, wait);
  };
  receiver.prepare_changes = [this](const auto& version, const auto& changes,
                                    std::function<void()> on_ready,
                                    std::chrono::milliseconds wait) {
    hub_->add_changes(version, std::move(on_ready), changes, wait);
  };
  receiver.forget = [this](const Version& version, bool is_lent) {
    hub_->remove_version(version, is_lent);
  };
  receiver.serves_from_memory = [this] { return hub_->serves_from_memory(); };
  receiver.arenas_retired = [this] {
    if (hub_) hub_->arenas_retired();
  };
  receiver_ = WSYNC_TRY(VersionReceiver::create(loop_, std::move(receiver)));
  receiver_->store().on_patches_given_up([this] {
    if (hub_) hub_->drop_patches_back();
  });
  options_.transports = receiver_->transports();
  options_.relay_secret = receiver_->relay_secret();
  sidecar_.emplace(options_, record_);
  auto hub = EngineHub::create(
      loop_,
      {.socket = engine_socket_path(config_.run_dir, config_.name),
       .devices = config_.devices,
       .stages = config_.stages,
       .generation = random_generation(),
       .engine_deadline = config_.engine_deadline,
       .trace = trace_.wanted() ? &trace_ : nullptr,
       .patches = patch_options(),
       .scrub = {.interval = config_.scrub.interval,
                 .share_ppm = static_cast<std::uint32_t>(config_.scrub.max_share * 1e6)},
       .on_scrubbed = [this](bool is_equal,
                             std::chrono::nanoseconds cpu) { metrics_.scrubbed(is_equal, cpu); },
       .target =
           [this] {
             const staging::SidecarRecord& record = sidecar_->record();
             const bool is_withdrawn =
                 std::ranges::find(record.withdrawn, record.target) != record.withdrawn.end();
             return is_withdrawn ? Version{} : record.target;
           },
       .on_absent_changed =
           [this] {
             if (sidecar_->welcomed()) execute(staging::BeatNow{});
           },
       .on_unusable = [this](const Version& version,
                             const Error& why) { receiver_->unusable(version, why); }},
      [this](const std::string& replica, std::uint32_t world_size, RankEvent event) {
        handle_rank(replica, world_size, std::move(event));
      });
  if (!hub) return fail(hub.error());
  hub_ = std::move(*hub);
  hub_->set_fence(sidecar_->fence());
  if (const EngineDevices* devices = hub_->devices(); devices != nullptr) {
    buffer_bytes_ = devices->group().buffer_bytes();
    if (const auto node = devices->numa_node();
        node && config_.memory.near_gpus && has_numa_nodes()) {
      log_info("own arenas are allocated on NUMA node {}, where the GPUs are", *node);
      receiver_->store().prefer_node(node);
    }
  }
  return {};
}

PatchOptions SidecarAgent::patch_options() {
  // Nobody would find a bit that flips in what a patch leaves alone.
  const bool scrubs = config_.scrub.interval.count() != 0;
  return {.enabled = scrubs && config_.patch.mode != config::SwitchPatches::kOff,
          .compares = config_.patch.mode == config::SwitchPatches::kAuto,
          .max_share = config_.patch.max_share,
          .room = [this] { return receiver_->store().room(); },
          .on_bytes = [this](std::uint64_t bytes,
                             std::uint64_t back) { receiver_->store().count_patches(bytes, back); },
          .on_made =
              [this](const Version& base, const Version& target, const staging::HeldPatch* patch,
                     TimePoint begin, TimePoint end) {
                // What leads back is not part of an update.
                if (base < target) metrics_.patch_made(patch == nullptr ? 0 : patch->bytes());
                switch_trace_.patch_made(base, target, patch == nullptr ? 0 : patch->bytes(), begin,
                                         end);
              }};
}

Result<> SidecarAgent::connect() {
  const control::PortTimes times{.heartbeat_interval = config_.heartbeat.interval,
                                 .silence_deadline = config_.heartbeat.deadline};
  control::RouterCallbacks commands;
  commands.on_message = [this](const std::string& peer, control::Envelope envelope,
                               control::Message message) {
    handle_command(peer, envelope, message);
  };
  router_ = WSYNC_TRY(control::listen_zmq(
      loop_, {.address = sidecar_address(config_.run_dir, config_.name), .times = times},
      std::move(commands)));

  control::DealerCallbacks callbacks;
  callbacks.on_message = [this](control::Envelope envelope, control::Message message) {
    handle(std::move(envelope), std::move(message));
  };
  callbacks.on_connected = [this] {
    log_info("connected to the coordinator at {}", dealer_->address());
    refusal_.clear();
    coordinator_left_ = false;
    step(staging::LinkUp{});
  };
  callbacks.on_lost = [this](const Error& why) {
    if (!coordinator_left_) {
      log_warning("coordinator lost: {}; the engines continue to serve", why.message());
      metrics_.failed(why.code());
    }
    step(staging::CoordinatorLost{});
  };
  callbacks.on_bad_message = [](const Error& error) {
    log_warning("a message of the coordinator was dropped: {}", error.message());
  };
  callbacks.on_refused = [this](const Error& error) {
    // Each attempt is refused again.
    if (std::exchange(refusal_, error.message()) != error.message())
      log_warning("not connected to the coordinator: {}", error.message());
  };
  callbacks.heartbeat = [this] { return heartbeat(); };
  control::DealerOptions options{
      .address = config_.coordinator, .name = config_.name, .times = times};
  if (!config_.key.empty()) options.key = WSYNC_TRY(own_key(config_));
  auto dealer = control::connect_zmq(loop_, options, std::move(callbacks));
  if (!dealer) return fail(dealer.error().with_context("coordinator"));
  dealer_ = std::move(*dealer);
  return {};
}

Result<> SidecarAgent::open_pages() {
  if (config_.http.address.empty()) return {};
  metrics::StatusFacts facts;
  facts.readings = [this] {
    return sidecar_readings(
        *sidecar_,
        {.staged_bytes = receiver_->staged_bytes(),
         .arena_bytes = receiver_->store().bytes(),
         .received_bytes = receiver_->received_bytes(),
         .refused_connections = receiver_->refused_connections(),
         .device_copies =
             hub_->devices() == nullptr ? reload::DeviceCopies{} : hub_->devices()->copies()},
        now());
  };
  facts.readiness = [this] {
    std::vector<control::ReplicaReport> absent;
    hub_->absent().add_to(absent, missing_ranks(), now());
    metrics::Readiness ready = sidecar_readiness(replica_facts(*sidecar_, metrics_, now()), absent);
    if (!ready.ready && !no_transport_.empty()) ready.reason += "; " + no_transport_;
    return ready;
  };
  pages_ = WSYNC_TRY(metrics::StatusPages::create(loop_,
                                                  {.address = config_.http.address,
                                                   .role = "sidecar",
                                                   .token = config_.http.token,
                                                   .open = config_.http.open_paths()},
                                                  metrics_.registry(), std::move(facts)));
  return {};
}

std::pair<control::Envelope, control::Heartbeat> SidecarAgent::heartbeat() {
  control::Envelope envelope = sidecar_->envelope();
  control::Heartbeat heartbeat = sidecar_->heartbeat(now());
  add_engines(heartbeat.replicas);
  heartbeat.sequence = ++heartbeats_;
  heartbeat.staged_bytes = receiver_->staged_bytes();
  heartbeat.last_copy = receiver_->last_copy();
  if (config_.patch.transfer == config::PatchMode::kAuto && receiver_->maps_target())
    heartbeat.patch_value_cost = hub_->patch_value_cost();
  heartbeat.lends_arenas = receiver_->lends_arenas();
  return {std::move(envelope), std::move(heartbeat)};
}

// ---- the state machine ----

void SidecarAgent::step(decltype(staging::SidecarEvent::what) what) {
  auto commands = sidecar_->step({.now = now(), .what = std::move(what)});
  hub_->set_fence(sidecar_->fence());
  for (staging::SidecarCommand& command : commands)
    std::visit([this](auto& one) { execute(one); }, command);
  hub_->target_changed();
  if (const auto wake = sidecar_->next_wake())
    timer_.start_at(*wake);
  else
    timer_.stop();
  const auto& replicas = sidecar_->replicas();
  hub_->expect_more_loads(std::any_of(replicas.begin(), replicas.end(), [](const auto& entry) {
    return entry.second.phase() == reload::SwitchPhase::kPausing;
  }));
}

void SidecarAgent::execute(const staging::Reply& command) {
  if (const auto* switched = std::get_if<control::Switched>(&command.message)) {
    metrics_.reported(command.envelope.fence, *switched);
    // Who asks the coordinator about a version that is served is told how it was loaded.
    execute(staging::BeatNow{});
  }
  // A repeated report has no time.
  if (const auto* staged = std::get_if<control::Staged>(&command.message);
      staged != nullptr && staged->failure.empty() && staged->staging_ns != 0)
    log_info("{} is staged from {} by {}: {} in {}, its sums are those of its digest",
             staged->version.to_string(), source_.source, source_.transport,
             trace::format_bytes(staged->bytes),
             trace::format_duration(std::chrono::nanoseconds(staged->staging_ns)));
  if (!dealer_) return;
  const auto sent = dealer_->send(command.envelope, with_engines(command.message));
  if (!sent) log_debug("a reply to the coordinator was not sent: {}", sent.error().message());
}

control::Message SidecarAgent::with_engines(control::Message message) const {
  if (auto* hello = std::get_if<control::Hello>(&message)) add_engines(hello->replicas);
  if (auto* switched = std::get_if<control::Switched>(&message))
    hub_->absent().explain(switched->outcomes, missing_ranks(), config_.name, now());
  return message;
}

MissingOf SidecarAgent::missing_ranks() const {
  return [this](const std::string& replica) -> MissingRanks {
    const auto known = sidecar_->replicas().find(replica);
    if (known == sidecar_->replicas().end()) return {};
    return {.ranks = known->second.absent(), .are_all = known->second.attached() == 0};
  };
}

void SidecarAgent::add_engines(std::vector<control::ReplicaReport>& reports) const {
  hub_->add_to(reports);
  hub_->absent().add_to(reports, missing_ranks(), now());
}

bool SidecarAgent::leave() {
  if (!dealer_) return false;
  execute(staging::BeatNow{});
  const bool sent = dealer_->send({.fence = sidecar_->fence()}, control::Leave{}).has_value();
  return sent && hub_->registry().replica_count() == 0;
}

void SidecarAgent::execute(const staging::BeatNow& /*command*/) {
  auto [envelope, beat] = heartbeat();
  execute(staging::Reply{.envelope = std::move(envelope), .message = std::move(beat)});
}

void SidecarAgent::execute(const staging::Persist& command) {
  auto written = std::make_shared<Result<>>();
  const std::uint64_t token = command.token;
  const auto submitted = worker_->submit(
      [file = record_file_, bytes = staging::encode(command.record), written] {
        *written = write_record(file, bytes);
      },
      [this, alive = alive_, token, written, begin = now(), target = command.record.target] {
        if (!*alive) return;
        switch_trace_.record_stored(target, begin, now());
        const std::string failure = *written ? "" : written->error().message();
        if (!*written) log_error("the record could not be written: {}", failure);
        step(staging::Persisted{.token = token, .failure = failure});
      });
  if (submitted) return;
  loop_.post([this, alive = alive_, token, why = submitted.error().message()] {
    if (*alive) step(staging::Persisted{.token = token, .failure = why});
  });
}

void SidecarAgent::execute(const staging::Welcomed& command) {
  const std::vector<control::TransportAddress>& served = command.welcome.transports;
  const auto common = std::ranges::find_if(served, [this](const control::TransportAddress& each) {
    return control::find_transport(options_.transports, each.kind) != nullptr;
  });
  transport_ = common == served.end() ? "" : common->kind;
  // A coordinator that is a process of its own serves nothing before a trainer has attached to it.
  no_transport_ =
      transport_.empty() && !served.empty() ? no_transport_text(served, options_.transports) : "";
  receiver_->watch(command.welcome);
}

// Post the answer, because it must not arrive inside the step that asked for it.
void SidecarAgent::execute(const staging::CheckLayout& command) {
  const staging::LayoutChecked verdict =
      layouts_.check(command, hub_->registry(), receiver_->store(), config_.versions_held);
  // The target is not staged then, and replicas would wait for it without a reason.
  if (command.announce.version == sidecar_->record().target && !verdict.problems.empty())
    hub_->notify_unfit(command.announce.version,
                       *layouts_.at(command.announce.layout_digest).manifest);
  loop_.post([this, alive = alive_, verdict] {
    if (*alive) step(verdict);
  });
}

void SidecarAgent::execute(const staging::StartStaging& command) {
  source_.source = command.stage.source;
  source_.transport = command.stage.transport;
  receiver_->start(command);
}
void SidecarAgent::execute(const staging::ExpectContent& command) { receiver_->expect(command); }
void SidecarAgent::execute(const staging::CancelStaging& command) { receiver_->cancel(command); }
void SidecarAgent::execute(const staging::ReleaseVersion& command) { receiver_->release(command); }
void SidecarAgent::execute(const staging::CompleteVersion& command) {
  receiver_->complete(command);
}
void SidecarAgent::execute(const staging::CheckCopy& command) { receiver_->check_copy(command); }

void SidecarAgent::execute(const staging::RelayHeld& command) {
  control::Envelope envelope;
  envelope.fence = sidecar_->fence();
  envelope.request = command.request;
  auto ready = receiver_->relay_held(command.version, command.with_layout);
  if (!ready)
    log_warning("{} is not passed on to other sidecars: {}", command.version.to_string(),
                ready.error().message());
  execute(staging::Reply{.envelope = std::move(envelope),
                         .message = ready
                                        ? std::move(*ready)
                                        : control::RelayReady{.version = command.version,
                                                              .failure = ready.error().message()}});
}

// ---- replicas ----

void SidecarAgent::handle_rank(const std::string& replica, std::uint32_t world_size,
                               RankEvent event) {
  if (std::holds_alternative<reload::RankDetached>(event)) metrics_.lost(replica);
  const auto* loaded = std::get_if<reload::RankLoaded>(&event);
  if (loaded != nullptr) {
    metrics_.loaded(*loaded);
    switch_log_.loaded(replica, *loaded);
    if (!loaded->failure.empty() && loaded->by_patch)
      log_warning("replica {} loads all of {}: its patch did not fit: {}", replica,
                  loaded->version.to_string(), loaded->failure);
  }
  // On separate devices the pipeline traces each bucket itself, but it has no part in a patch.
  std::uint64_t arena_bytes = 0;
  bool traced = true;
  if (loaded != nullptr && (hub_->devices() == nullptr || loaded->by_patch)) {
    const auto version = receiver_->store().find(loaded->version);
    traced = version != nullptr;
    if (traced) arena_bytes = version->arena_bytes();
  }
  if (traced) switch_trace_.heard(replica, world_size, event, arena_bytes, now());
  step(staging::ReplicaEvent{
      .replica = replica, .world_size = world_size, .what = std::move(event)});
}

void SidecarAgent::execute(const staging::ForReplica& command) {
  std::visit(
      [&](const auto& what) {
        using What = std::remove_cvref_t<decltype(what)>;
        switch_trace_.sent(command.replica, what, now());
        if (const std::string line = switch_log_.sent(command.replica, what, now()); !line.empty())
          log_info("{}", line);
        metrics_.sent(command.replica, what, now());
        if constexpr (!std::is_same_v<What, reload::Done> &&
                      !std::is_same_v<What, reload::CopySuspect>)
          hub_->send(command.replica, what);
      },
      command.command);
}

void SidecarAgent::execute(const staging::ReplicaForgotten& command) {
  log_info("replica {} is forgotten: it has no engines", command.replica);
  switch_trace_.forget(command.replica);
  switch_log_.forget(command.replica);
}

control::ForgetReply SidecarAgent::forget(const control::Forget& what) {
  if (what.sidecar != config_.name)
    return {.reason = fmt::format("this is sidecar '{}', not '{}'", config_.name, what.sidecar)};
  if (what.replica.empty())
    return {.reason = fmt::format(
                "a sidecar forgets only replicas ({}/REPLICA); only its coordinator can forget it",
                config_.name)};
  // A replica may be known by engines that were refused, by those that were attached, or by both.
  const Result<> absent = hub_->absent().check_forget(what.replica);
  const Result<> may = sidecar_->check_forget(what.replica);
  const auto is_known = [](const Result<>& check) {
    return check || check.error().code() != ErrorCode::kNotFound;
  };
  if (!is_known(absent) && !is_known(may)) {
    std::set<std::string> known = hub_->absent().replicas();
    for (const auto& [name, replica] : sidecar_->replicas()) known.insert(name);
    return {.reason = may.error().message() + config::known_names(what.replica, known)};
  }
  for (const Result<>& check : {may, absent})
    if (!check && is_known(check)) return {.reason = check.error().message()};
  if (absent) hub_->forget_absent(what.replica);
  if (may) step(staging::ForgetReplica{what.replica});
  return {.ok = true};
}

// ---- messages that the state machine does not handle ----

// Answers questions that both a coordinator and a command may ask. Returns false if the message is
// none of them.
bool SidecarAgent::answer(const control::Message& question, const Reply& reply) {
  if (const auto* asked = std::get_if<control::TraceQuestion>(&question)) {
    reply(answer_trace(trace_, config_.name, *asked, now()));
  } else if (std::holds_alternative<control::Verify>(question)) {
    hub_->verify(kVerifyDeadline,
                 [this, reply, begin = now()](std::vector<control::VerifyRank> ranks) {
                   switch_trace_.verified(begin, now());
                   if (ranks.empty()) ranks = hub_->absent().unverified(now());
                   for (control::VerifyRank& rank : ranks)
                     if (!rank.failure.empty() && !no_transport_.empty())
                       rank.failure += "; " + no_transport_;
                   reply(control::VerifyReply{.ranks = std::move(ranks)});
                 });
  } else if (const auto* plan = std::get_if<control::Plan>(&question)) {
    control::SidecarPlan answer = answer_plan(*plan, *hub_, receiver_->store(), config_);
    if (!no_transport_.empty()) answer.problems.push_back({.detail = no_transport_});
    reply(control::PlanReply{.sidecars = {std::move(answer)}});
  } else if (const auto* unwanted = std::get_if<control::Forget>(&question)) {
    reply(forget(*unwanted));
  } else {
    return false;
  }
  return true;
}

void SidecarAgent::handle(control::Envelope envelope, control::Message message) {
  const Reply reply = [this, request = envelope.request](control::Message what) {
    control::Envelope back;
    back.fence = sidecar_->fence();
    back.request = request;
    execute(staging::Reply{.envelope = std::move(back), .message = std::move(what)});
  };
  if (answer(message, reply)) return;
  if (const auto* error = std::get_if<control::ErrorReply>(&message))
    log_warning("the coordinator reports: {}", error->message);
  if (std::holds_alternative<control::Leave>(message) && envelope.fence == sidecar_->fence()) {
    log_info("the coordinator has ended; the engines continue to serve");
    auto [last, beat] = heartbeat();
    last.request = envelope.request;  // the coordinator waits for it
    execute(staging::Reply{.envelope = std::move(last), .message = std::move(beat)});
    coordinator_left_ = true;
  }
  step(staging::CoordinatorMessage{.envelope = std::move(envelope), .message = std::move(message)});
}

void SidecarAgent::handle_command(const std::string& peer, const control::Envelope& envelope,
                                  const control::Message& message) {
  const Reply reply = [this, peer, fence = sidecar_->fence(),
                       request = envelope.request](const control::Message& what) {
    control::Envelope back;
    back.fence = fence;
    back.request = request;
    if (const auto sent = router_->send(peer, back, what); !sent)
      log_debug("a reply to a command was not sent: {}", sent.error().message());
  };
  if (answer(message, reply)) return;
  if (std::holds_alternative<control::Status>(message)) {
    control::StatusReply status = sidecar_->status(now());
    status.sidecars.front().staged_bytes = receiver_->staged_bytes();
    status.sidecars.front().last_copy = receiver_->last_copy();
    status.sidecars.front().transport = transport_;
    add_engines(status.sidecars.front().replicas);
    if (receiver_->store().makes_memory()) status.activity += ": its memory is being prepared";
    reply(std::move(status));
  } else if (!std::holds_alternative<control::Heartbeat>(message)) {
    reply(control::ErrorReply{
        .code = ErrorCode::kRefused,
        .message = fmt::format("a sidecar answers only status, verify, plan, trace and forget; "
                               "send {} to the coordinator",
                               control::message_name(control::type_of(message)))});
  }
}

}  // namespace wsync::agent
