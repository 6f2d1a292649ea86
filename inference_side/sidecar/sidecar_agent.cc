#include "inference_side/sidecar/sidecar_agent.h"

#include <algorithm>
#include <random>
#include <unistd.h>
#include <utility>

#include "inference_side/reload/pipeline_trace.h"
#include "inference_side/sidecar/plan_answer.h"
#include "inference_side/sidecar/sidecar_options.h"
#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/log.h"
#include "shared/base/numa.h"
#include "shared/base/units.h"
#include "shared/config/sidecar_config.h"
#include "shared/control/zmq/ports.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/span_codec.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::agent {
namespace {

constexpr std::uint64_t kRecordBytesMax = 1 * limits::kMiB;
constexpr std::chrono::milliseconds kVerifyDeadline{100'000};

Result<staging::SidecarRecord> read_record(const std::filesystem::path& path) {
  const Result<Bytes> bytes = read_small_file(path, kRecordBytesMax);
  if (!bytes && bytes.error().code() == ErrorCode::kNotFound) return staging::SidecarRecord{};
  if (!bytes) return fail(bytes.error());
  auto record = staging::decode_record(*bytes);
  if (!record)
    return fail(record.error().with_context(
        path.string() + " (remove it only if no coordinator of this fleet is alive)"));
  return record;
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
  auto record = WSYNC_TRY(read_record(record_file));
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
  if (memfd_sink_) memfd_sink_->cancel();
  if (tcp_sink_) tcp_sink_->cancel();
  worker_->stop();
  hub_.reset();
  store_.reset();
  write_trace();
}

Result<> SidecarAgent::open() {
  const transport::Post post = [this](std::function<void()> task, std::source_location made) {
    loop_.post(std::move(task), made);
  };
  staging::StoreOptions store;
  store.name = "wsync-" + config_.name;
  store.memory_bytes = config_.host_memory;
  store_ = std::make_unique<staging::Store>(store, post);
  bulk_thread_ = WSYNC_TRY(transport::tcp::UvThread::start());
  if (config_.transport != TransportPolicy::kMemfd) {
    auto relay = transport::tcp::TcpSource::listen(*bulk_thread_, {.listen = config_.data_address});
    if (!relay) return fail(relay.error().with_context("data_address"));
    relay_ = std::move(*relay);
    options_.data_address = relay_->address();
    tcp_sink_ = std::make_unique<transport::tcp::TcpSink>(*bulk_thread_, post);
  }
  memfd_sink_ = WSYNC_TRY(transport::memfd::MemfdSink::create(
      post, {.on_lost = [this](const Error& why) {
        log_info("the trainer's host socket has hung up: {}", why.message());
        step(staging::CoordinatorLost{});
      }}));
  sidecar_.emplace(options_, record_);
  auto hub = EngineHub::create(
      loop_,
      {.socket = engine_socket_path(config_.run_dir, config_.name),
       .devices = config_.devices,
       .stages = config_.stages,
       .generation = random_generation(),
       .trace = trace_.wanted() ? &trace_ : nullptr},
      [this](const std::string& replica, std::uint32_t world_size, RankEvent event) {
        if (std::holds_alternative<reload::RankDetached>(event)) metrics_.lost(replica);
        const auto* loaded = std::get_if<reload::RankLoaded>(&event);
        if (loaded != nullptr && loaded->failure.empty()) metrics_.loaded(loaded->bytes);
        if (hub_->devices() != nullptr || loaded == nullptr)
          switch_trace_.heard(replica, world_size, event, 0, now());
        else if (const auto version = store_->find(loaded->version))
          switch_trace_.heard(replica, world_size, event, version->data().size(), now());
        step(staging::ReplicaEvent{
            .replica = replica, .world_size = world_size, .what = std::move(event)});
      });
  if (!hub) return fail(hub.error());
  hub_ = std::move(*hub);
  if (const auto node = hub_->numa_node(); node && has_numa_nodes()) {
    log_info("own arenas are taken from NUMA node {}, where the GPUs are", *node);
    store_->prefer_node(node);
  }
  if (hub_->devices() != nullptr) buffer_bytes_ = hub_->devices()->buffer_bytes();
  hub_->set_fence(sidecar_->fence());
  return {};
}

Result<> SidecarAgent::connect() {
  const control::PortTimes times{.heartbeat_interval = config_.heartbeat.interval,
                                 .silence_deadline = config_.heartbeat.deadline};
  control::RouterCallbacks commands;
  commands.on_message = [this](const std::string& peer, control::Envelope envelope,
                               control::Message message) { on_command(peer, envelope, message); };
  router_ = WSYNC_TRY(control::listen_zmq(
      loop_, {.address = sidecar_address(config_.run_dir, config_.name), .times = times},
      std::move(commands)));

  control::DealerCallbacks callbacks;
  callbacks.on_message = [this](control::Envelope envelope, control::Message message) {
    on_message(std::move(envelope), std::move(message));
  };
  callbacks.on_connected = [this] {
    log_info("connected to the coordinator at {}", config_.coordinator);
    step(staging::LinkUp{});
  };
  callbacks.on_lost = [this](const Error& why) {
    log_warning("coordinator lost: {}; engines go on serving", why.message());
    metrics_.failed(why.code());
    step(staging::CoordinatorLost{});
  };
  callbacks.on_bad_message = [](const Error& error) {
    log_warning("message of the coordinator dropped: {}", error.message());
  };
  callbacks.heartbeat = [this] { return heartbeat(); };
  auto dealer = control::connect_zmq(
      loop_, {.address = config_.coordinator, .name = config_.name, .times = times},
      std::move(callbacks));
  if (!dealer) return fail(dealer.error().with_context("coordinator"));
  dealer_ = std::move(*dealer);
  return {};
}

Result<> SidecarAgent::open_pages() {
  if (config_.http_address.empty()) return {};
  metrics::StatusFacts facts;
  facts.readings = [this] {
    return sidecar_readings(*sidecar_,
                            {.staged_bytes = arriving_ ? store_->verified_bytes() : 0,
                             .arena_bytes = store_->bytes(),
                             .received_bytes = received_bytes_,
                             .device_copies = hub_->device_copies()},
                            now());
  };
  facts.readiness = [this] { return sidecar_readiness(replica_facts(*sidecar_, metrics_, now())); };
  pages_ = WSYNC_TRY(
      metrics::StatusPages::create(loop_, {.address = config_.http_address, .role = "sidecar"},
                                   metrics_.registry(), std::move(facts)));
  return {};
}

std::pair<control::Envelope, control::Heartbeat> SidecarAgent::heartbeat() {
  control::Envelope envelope;
  envelope.fence = sidecar_->fence();
  control::Heartbeat heartbeat = sidecar_->heartbeat(now());
  heartbeat.sequence = ++heartbeats_;
  heartbeat.staged_bytes = arriving_ ? store_->verified_bytes() : 0;
  return {std::move(envelope), std::move(heartbeat)};
}

// ---- the state machine ----

void SidecarAgent::step(decltype(staging::SidecarEvent::what) what) {
  auto commands = sidecar_->step({.now = now(), .what = std::move(what)});
  hub_->set_fence(sidecar_->fence());
  for (staging::SidecarCommand& command : commands)
    std::visit([this](auto& one) { carry_out(one); }, command);
  if (const auto wake = sidecar_->next_wake())
    timer_.start_at(*wake);
  else
    timer_.stop();
  const auto& replicas = sidecar_->replicas();
  hub_->expect_more_loads(std::any_of(replicas.begin(), replicas.end(), [](const auto& entry) {
    return entry.second.phase() == reload::SwitchPhase::kPausing;
  }));
}

void SidecarAgent::carry_out(const staging::Reply& command) {
  if (const auto* switched = std::get_if<control::Switched>(&command.message))
    metrics_.reported(command.envelope.fence, *switched);
  if (!dealer_) return;
  if (const auto sent = dealer_->send(command.envelope, command.message); !sent)
    log_debug("reply to the coordinator: {}", sent.error().message());
}

bool SidecarAgent::leave() {
  if (!dealer_ || hub_->replica_count() != 0) return false;
  return dealer_->send({.fence = sidecar_->fence()}, control::Leave{}).has_value();
}

void SidecarAgent::carry_out(const staging::BeatNow& /*command*/) {
  auto [envelope, beat] = heartbeat();
  carry_out(staging::Reply{.envelope = std::move(envelope), .message = std::move(beat)});
}

void SidecarAgent::carry_out(const staging::Persist& command) {
  auto failure = std::make_shared<std::string>();
  const std::uint64_t token = command.token;
  const auto submitted = worker_->submit(
      [file = record_file_, bytes = staging::encode(command.record), failure] {
        if (const auto written = write_durably(file, bytes); !written)
          *failure = written.error().message();
      },
      [this, alive = alive_, token, failure] {
        if (!*alive) return;
        if (!failure->empty()) log_error("the record could not be written: {}", *failure);
        step(staging::Persisted{.token = token, .failure = *failure});
      });
  if (submitted) return;
  loop_.post([this, alive = alive_, token, why = submitted.error().message()] {
    if (*alive) step(staging::Persisted{.token = token, .failure = why});
  });
}

void SidecarAgent::carry_out(const staging::Welcomed& command) {
  if (config_.transport == TransportPolicy::kTcp || command.welcome.host_socket.empty()) return;
  // Another coordinator: the process at the other end of the old link may only stand still.
  if (std::exchange(host_link_fence_, sidecar_->fence()) != sidecar_->fence())
    memfd_sink_->disconnect();
  if (const auto connected = memfd_sink_->connect(command.welcome.host_socket); !connected)
    log_debug("no host link to the trainer: {}", connected.error().message());
}

void SidecarAgent::carry_out(const staging::CheckLayout& command) {
  loop_.post([this, alive = alive_, verdict = check(command)] {
    if (*alive) step(verdict);
  });
}

staging::LayoutChecked SidecarAgent::check(const staging::CheckLayout& command) {
  staging::LayoutChecked verdict{.round = command.round};
  const control::Announce& announce = command.announce;
  Layout& known = layouts_[announce.layout_digest];
  if (!known.manifest) {
    if (announce.layout.empty()) {
      verdict.layout_unknown = true;
      verdict.reason = "the layout is not known here";
      return verdict;
    }
    ByteReader reader(announce.layout);
    auto manifest = Manifest::decode(reader);
    if (manifest && !reader.finish("layout"))
      manifest = fail(ErrorCode::kInvalidInput, "bytes left over");
    if (!manifest || manifest->layout_digest() != announce.layout_digest) {
      verdict.reason = manifest ? "the layout is not that of its digest"
                                : "the layout cannot be read: " + manifest.error().message();
      return verdict;
    }
    known.manifest = std::make_shared<const Manifest>(std::move(*manifest));
  }
  if (!known.plan || known.plan->bucket_bytes() != announce.bucket_bytes) {
    auto plan = BucketPlan::create(*known.manifest, announce.bucket_bytes);
    if (!plan) {
      verdict.reason = plan.error().message();
      return verdict;
    }
    known.plan = std::make_shared<const BucketPlan>(std::move(*plan));
  }
  if (known.plan->arena_bytes() != announce.arena_bytes) {
    verdict.reason = fmt::format("an arena of {} bytes is announced; this layout takes {}",
                                 announce.arena_bytes, known.plan->arena_bytes());
    return verdict;
  }
  verdict.problems = hub_->check_layout(*known.manifest);
  if (!verdict.problems.empty()) {
    const control::Problem& first = verdict.problems.front();
    verdict.reason = fmt::format(
        "it does not fit the engines: {} ({}){}{}", first.tensor, first.detail,
        first.nearest.empty() ? "" : "; nearest: " + first.nearest,
        verdict.problems.size() > 1 ? fmt::format("; and {} more", verdict.problems.size() - 1)
                                    : "");
    return verdict;
  }
  if (const auto fits = store_->check_budget(announce.arena_bytes, config_.versions_held); !fits)
    verdict.reason = fits.error().message();
  return verdict;
}

// ---- replicas ----

void SidecarAgent::carry_out(const staging::ForReplica& command) {
  std::visit(
      [&](const auto& what) {
        using What = std::remove_cvref_t<decltype(what)>;
        switch_trace_.sent(command.replica, what, now());
        metrics_.sent(command.replica, what, now());
        if constexpr (!std::is_same_v<What, reload::Done> &&
                      !std::is_same_v<What, reload::CopySuspect>)
          hub_->send(command.replica, what);
      },
      command.command);
}

// ---- messages that the state machine does not take ----

void SidecarAgent::on_message(control::Envelope envelope, control::Message message) {
  if (const auto* question = std::get_if<control::TraceQuestion>(&message)) {
    const TimePoint received = now();
    control::Envelope reply;
    reply.fence = sidecar_->fence();
    reply.request = envelope.request;
    if (const auto sent = dealer_->send(reply, trace_answer(*question, received)); !sent)
      log_debug("trace answer: {}", sent.error().message());
    return;
  }
  if (std::holds_alternative<control::Verify>(message)) {
    hub_->verify(kVerifyDeadline, [this, begin = now(), request = envelope.request](
                                      std::vector<control::VerifyRank> ranks) {
      switch_trace_.verified(begin, now());
      control::Envelope reply;
      reply.fence = sidecar_->fence();
      reply.request = request;
      if (!dealer_) return;
      if (const auto sent = dealer_->send(reply, control::VerifyReply{.ranks = std::move(ranks)});
          !sent)
        log_debug("verify reply: {}", sent.error().message());
    });
    return;
  }
  if (const auto* plan = std::get_if<control::Plan>(&message)) {
    control::Envelope reply;
    reply.fence = sidecar_->fence();
    reply.request = envelope.request;
    const control::PlanReply answer{.sidecars = {answer_plan(*plan, *hub_, *store_, config_)}};
    if (const auto sent = dealer_->send(reply, answer); !sent)
      log_debug("plan reply: {}", sent.error().message());
    return;
  }
  if (const auto* error = std::get_if<control::ErrorReply>(&message))
    log_warning("the coordinator says: {}", error->message);
  step(staging::CoordinatorMessage{.envelope = std::move(envelope), .message = std::move(message)});
}

void SidecarAgent::on_command(const std::string& peer, const control::Envelope& envelope,
                              const control::Message& message) {
  control::Envelope reply;
  reply.fence = sidecar_->fence();
  reply.request = envelope.request;
  const auto answer = [this, peer, reply](const control::Message& what) {
    if (const auto sent = router_->send(peer, reply, what); !sent)
      log_debug("reply to a command: {}", sent.error().message());
  };
  if (std::holds_alternative<control::Status>(message)) {
    control::StatusReply status = sidecar_->status(now());
    status.sidecars.front().staged_bytes = arriving_ ? store_->verified_bytes() : 0;
    if (store_->makes_memory()) status.activity += ": memory for it is being made ready";
    answer(std::move(status));
  } else if (std::holds_alternative<control::Verify>(message)) {
    hub_->verify(kVerifyDeadline,
                 [this, answer, begin = now()](std::vector<control::VerifyRank> ranks) {
                   switch_trace_.verified(begin, now());
                   answer(control::VerifyReply{.ranks = std::move(ranks)});
                 });
  } else if (const auto* plan = std::get_if<control::Plan>(&message)) {
    answer(control::PlanReply{.sidecars = {answer_plan(*plan, *hub_, *store_, config_)}});
  } else if (const auto* question = std::get_if<control::TraceQuestion>(&message)) {
    answer(trace_answer(*question, now()));
  } else if (!std::holds_alternative<control::Heartbeat>(message)) {
    answer(control::ErrorReply{
        .code = static_cast<std::uint8_t>(ErrorCode::kRefused),
        .message = fmt::format(
            "a sidecar answers status, verify, plan and trace; send {} to the coordinator",
            control::message_name(control::type_of(message)))});
  }
}

control::TraceAnswer SidecarAgent::trace_answer(const control::TraceQuestion& question,
                                                TimePoint received) const {
  control::TraceProcess process{.name = "sidecar " + config_.name,
                                .host = host_name(),
                                .pid = static_cast<std::uint32_t>(::getpid()),
                                .boot_id = boot_id(),
                                .asked_ns = question.asked_ns,
                                .received_ns = static_cast<std::int64_t>(received)};
  trace::EncodedSpans encoded = trace::answer_spans(
      trace_, std::chrono::nanoseconds(question.age_ns), question.max_bytes, received);
  process.dropped = encoded.left_out;
  process.spans = std::move(encoded.bytes);
  process.answered_ns = static_cast<std::int64_t>(now());
  control::TraceAnswer answer;
  answer.processes.push_back(std::move(process));
  return answer;
}

void SidecarAgent::write_trace() const {
  if (config_.trace_file.empty()) return;
  const std::string process = "sidecar " + config_.name;
  const std::vector<trace::Span> spans = trace_.spans();
  trace::Trace traces{.processes = {{.name = process,
                                     .pid = static_cast<std::uint32_t>(::getpid()),
                                     .spans = spans,
                                     .host = host_name(),
                                     .dropped = trace_.dropped()}}};
  traces.flows = trace::update_flows(traces.processes);
  const auto traced = trace::write_chrome_trace(config_.trace_file + ".json", traces);
  if (!traced) log_warning("trace: {}", traced.error().message());
  // The picture shows the latest update.
  const std::vector<trace::PauseBand> pauses = trace::pause_bands(spans);
  const auto drawn = trace::write_timeline_svg(
      config_.trace_file + ".svg",
      pauses.empty() ? spans : trace::spans_between(spans, pauses.back().begin, pauses.back().end),
      {.title = "Weight pipeline of " + process,
       .subtitle = fmt::format("{} devices, buffers of {} MiB", config_.devices.count,
                               buffer_bytes_ / limits::kMiB),
       .lanes = reload::PipelineTrace::chart_lanes(config_.devices.count)});
  if (!drawn) log_warning("trace: {}", drawn.error().message());
}

}  // namespace wsync::agent
