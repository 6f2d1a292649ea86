#include "inference_side/sidecar/engine_hub.h"

#include <algorithm>
#include <utility>

#include "inference_side/reload/layout_check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/config/units.h"

namespace wsync::agent {
namespace {

// A refused engine has this long to read the refusal before its connection is closed.
constexpr std::chrono::milliseconds kFinishDeadline{1'000};
// What follows from a commit begins when the engine serves again, because it would compete with it
// for the processors. One that does not serve again is not awaited for longer.
constexpr std::chrono::milliseconds kResumeWait{1'000};

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::uint64_t value_cost_of(const config::DevicesConfig& devices, const PatchOptions& patches) {
  return devices.kind == DeviceKind::kCuda ? patch::kGpuValueCost : patches.value_cost;
}

}  // namespace

// ---- creation and destruction ----

Result<std::unique_ptr<EngineHub>> EngineHub::create(Loop& loop, EngineHubOptions options,
                                                     OnRank on_rank) {
  auto hub =
      std::unique_ptr<EngineHub>(new EngineHub(loop, std::move(options), std::move(on_rank)));
  WSYNC_TRY(hub->open());
  return hub;
}

EngineHub::EngineHub(Loop& loop, EngineHubOptions options, OnRank on_rank)
    : loop_(loop),
      options_(std::move(options)),
      on_rank_(std::move(on_rank)),
      refused_processes_(
          loop,
          [this](const std::string& replica, std::uint32_t rank, pid_t pid) {
            if (!absent_.process_ended(replica, rank, static_cast<std::uint64_t>(pid))) return;
            log_info("engine {} rank {} was refused, and its process {} has ended", replica, rank,
                     pid);
            absent_changed();
          }),
      pacer_(options_.pauses),
      pacer_timer_(loop, [this] { send_pauses(pacer_.tick(now())); }),
      readback_worker_(loop,
                       WorkerOptions{.name = "readback", .max_queued = limits::kReplicaCount}),
      readback_(loop, readback_worker_,
                [this](const EngineRank& rank, const ReadDifference& difference) {
                  return scrubbing_->verified(rank, difference);
                }),
      liveness_timer_(loop, [this] { check_liveness(); }),
      commit_timer_(loop, [this] { active_changed(); }) {}

EngineHub::~EngineHub() {
  *alive_ = false;
  readback_worker_.stop();
  if (!devices_) return;
  // The staged bytes must be unregistered after the last copy has stopped reading them, and while
  // the devices still exist.
  devices_->stop_runs();
  preparation_.reset();
  listener_.reset();
  for (const auto& rank : std::exchange(ranks_, {})) rank->stream.reset();
}

std::uint32_t EngineHub::patch_value_cost() const {
  const bool is_taken =
      options_.patches.enabled && std::ranges::any_of(ranks_, [](const auto& rank) {
        return rank->attached && rank->takes_patches;
      });
  return is_taken ? static_cast<std::uint32_t>(value_cost_of(options_.devices, options_.patches))
                  : 0;
}

Result<> EngineHub::open() {
  if (options_.devices.kind != DeviceKind::kUnified) WSYNC_TRY(open_devices());
  registry_ =
      std::make_unique<EngineRegistry>(devices_ ? devices_->registry_devices() : RegistryDevices{});
  PatchOptions patches = options_.patches;
  patches.value_cost = value_cost_of(options_.devices, patches);
  preparation_ = std::make_unique<VersionPreparation>(
      loop_, devices_ ? &devices_->group() : nullptr, std::move(patches),
      VersionPreparation::Callbacks{.on_rank_prepared =
                                        [this](const std::string& replica) {
                                          announce_unprepared(replica);
                                          loads_->advance(replica);
                                        },
                                    .on_devices_ready = [this] { loads_->advance_all(); },
                                    .on_unusable = options_.on_unusable});
  loads_ = std::make_unique<LoadDriver>(
      loop_,
      LoadDriverOptions{
          .registry = registry_.get(),
          .preparation = preparation_.get(),
          .devices = devices_.get(),
          .find = [this](reload::EngineId id) { return find(id); },
          .may_be_patched =
              [this](const std::string& replica) { return scrubbing_->may_be_patched(replica); },
          .is_proved =
              [this](const std::string& replica) { return scrubbing_->is_proved(replica); },
          .notify = [this](const std::string& replica,
                           RankEvent event) { notify(replica, std::move(event)); }});
  readers_ = std::make_unique<VersionReaders>(ReadableVersions{
      .target = options_.target,
      .staged = [this] { return preparation_->versions(); },
      .find = [this](const Version& version) { return preparation_->find(version); },
      .verify =
          [this](const auto& version, std::function<void(Result<>)> done) {
            preparation_->verify(version, std::move(done));
          }});
  open_scrubbing();
  auto listener = control::UnixListener::create(
      loop_, options_.socket,
      [this](UniqueFd socket, PeerCredentials peer) { accept(std::move(socket), peer.pid); });
  if (!listener) return fail(listener.error().with_context("engine socket"));
  listener_ = std::move(*listener);
  liveness_timer_.start_repeating(EngineLiveness::interval(options_.engine_deadline));
  return {};
}

void EngineHub::open_scrubbing() {
  scrubbing_ = std::make_unique<Scrubbing>(
      loop_, readback_worker_,
      ScrubbingOptions{
          .interval = options_.scrub.interval,
          .share_ppm = options_.scrub.share_ppm,
          .ranks =
              [this](const std::string& replica) {
                Ranks of_replica;
                for (const AttachedRank& each : registry_->ranks_of(replica))
                  if (auto rank = find(each.id)) of_replica.push_back(std::move(rank));
                return of_replica;
              },
          .find = [this](const Version& version) { return preparation_->find(version); },
          .on_damaged = [this](
                            const std::string& replica,
                            reload::RankDamaged damaged) { notify(replica, std::move(damaged)); },
          .on_judged = options_.on_scrubbed});
}

Result<> EngineHub::open_devices() {
  EngineDevicesCallbacks callbacks;
  callbacks.on_bucket_ready = [this](const auto& ready) { loads_->bucket_ready(ready); };
  callbacks.on_engine_dropped = [this](const reload::LostEngine& dropped) {
    if (const auto rank = find(dropped.engine))
      disconnect(rank, dropped.reason.with_context("dropped from the pipeline"));
  };
  callbacks.on_run_finished = [this](const auto& result) { loads_->run_finished(result); };
  callbacks.on_connected = [this](const Result<>& outcome) { loads_->connect_finished(outcome); };
  callbacks.on_allocated = [this](const Result<>& outcome) { loads_->allocate_finished(outcome); };
  callbacks.on_freed = [this] { loads_->advance_all(); };
  callbacks.on_unmapped = [this] { loads_->free_unused_buffers(); };
  devices_ = WSYNC_TRY(EngineDevices::open(loop_,
                                           {.config = options_.devices,
                                            .stages = options_.stages,
                                            .generation = options_.generation,
                                            .trace = options_.trace},
                                           std::move(callbacks)));
  return {};
}

// ---- connections ----

void EngineHub::accept(UniqueFd socket, pid_t pid) {
  auto rank = std::make_shared<EngineRank>();
  rank->pid = pid;
  rank->id = reload::EngineId{next_engine_++};
  rank->fence = &fence_;
  const std::weak_ptr<EngineRank> weak = rank;
  auto stream = control::UnixStream::adopt(loop_, std::move(socket),
                                           {.on_frame =
                                                [this, weak](control::Frame frame) {
                                                  if (const auto self = weak.lock())
                                                    handle(self, std::move(frame));
                                                },
                                            .on_close =
                                                [this, weak](Error error) {
                                                  if (const auto self = weak.lock())
                                                    disconnect(self, error);
                                                }});
  if (!stream) {
    log_warning("engine connection dropped: {}", stream.error().message());
    return;
  }
  rank->stream = std::move(*stream);
  // The socket alone does not show the end of the process: a child of it may still have the socket.
  auto process = ProcessWatch::create(loop_, pid, [this, weak] {
    if (const auto self = weak.lock())
      disconnect(self,
                 Error(ErrorCode::kPeerLost, fmt::format("its process {} has ended", self->pid)));
  });
  if (process)
    rank->process = std::move(*process);
  else if (process.error().code() == ErrorCode::kPeerLost)
    return;  // the socket closes with `rank`
  rank->hello_deadline = std::make_unique<Timer>(loop_, [this, weak] {
    if (const auto self = weak.lock())
      refuse(*self, {.reason = fmt::format("no EngineHello within {} ms", limits::kHelloDeadlineMs),
                     .problems = {}});
  });
  rank->hello_deadline->start(std::chrono::milliseconds(limits::kHelloDeadlineMs));
  ranks_.push_back(std::move(rank));
}

void EngineHub::disconnect(const std::shared_ptr<EngineRank>& rank, const Error& error) {
  if (std::erase(ranks_, rank) == 0) return;
  rank->stream.reset();
  rank->process.reset();
  liveness_.detach(rank->id);
  if (devices_) {
    devices_->engine_lost(rank->id, Error(ErrorCode::kPeerLost, "its connection is closed"));
    devices_->disconnected(*rank);
  }
  readback_.lost(rank, error);
  readers_->lost(rank);
  if (absent_.ended(rank->id)) {
    log_info("engine {} rank {} is gone before it attached: {}", rank->replica, rank->rank,
             error.message());
    absent_changed();
  }
  detach(rank, error.message());
}

void EngineHub::detach(const std::shared_ptr<EngineRank>& rank, const std::string& why) {
  const auto detached = registry_->detach(rank->id);
  if (!detached) return;
  covered_.erase(rank->replica);
  rank->attached = false;
  scrubbing_->detached(*rank);
  loaded_sums_.forget(rank->replica);
  loads_->engine_lost(rank->replica, rank->id);
  send_pauses(registry_->ranks_of(rank->replica).empty() ? pacer_.end(rank->replica, now())
                                                         : pacer_.leave(rank->replica, now()));
  preparation_->detached(rank);
  active_changed();
  if (!rank->held_back || !absent_.was_refused(rank->replica, rank->rank))
    log_info("engine {} rank {} disconnected: {}", rank->replica, rank->rank, why);
  if (!rank->held_back) notify(rank->replica, reload::RankDetached{.rank = rank->rank});
}

void EngineHub::refuse(EngineRank& rank, Refusal refusal) {
  // It tries again and again. The refusal stays in the status as long as its process lives.
  const auto pid = static_cast<std::uint64_t>(refused_processes_.watch(rank));
  if (absent_.refused(rank.replica, rank.rank, refusal.reason, now(), pid))
    log_warning("engine refused: {}", refusal.reason);
  if (!absent_.was_refused(rank.replica, rank.rank))  // there are too many
    refused_processes_.forget(rank.replica, rank.rank);
  absent_changed();
  rank.refused = true;
  rank.send(0, control::Refuse{.reason = std::move(refusal.reason),
                               .problems = std::move(refusal.problems)});
  if (rank.stream) rank.stream->finish(kFinishDeadline);
}

Refusal EngineHub::declined_refusal(const EngineRank& rank, const Version& version) {
  return {.reason = fmt::format(
              "replica '{}' rank {} does not take {}, which is served: {}; it may attach when "
              "every engine of that model has ended",
              rank.replica, rank.rank, version.to_string(), rank.declined.at(version)),
          .problems = {}};
}

void EngineHub::forget_absent(const std::string& replica) {
  absent_.forget(replica);
  absent_changed();
}

void EngineHub::refuse_misfits() {
  const Manifest* newest = preparation_->newest_layout();
  if (newest == nullptr) return;
  const Version version = preparation_->versions().back();
  for (const auto& rank : attached()) {
    if (rank->held_back || !check_fit(*rank, version, *newest)) continue;
    std::optional<Refusal> refusal;
    if (!rank->any_layout)
      refusal = registry_->misfit(rank->replica, rank->rank, *rank->tensors,
                                  registry_->find(rank->replica, rank->rank)->world_size, *newest);
    else if (registry_->fits_any_but(rank->replica, *newest))
      refusal = declined_refusal(*rank, version);
    if (!refusal || planted("first_engine_stays")) continue;
    refuse(*rank, std::move(*refusal));
    // At once, because a layout that is announced now must not be compared with it.
    detach(rank, "it was refused");
  }
}

void EngineHub::drop_dead(const std::string& replica, std::uint32_t rank) {
  const auto old = find(replica, rank);
  if (!old) return;
  if (old->process && old->process->has_ended())
    disconnect(old, Error(ErrorCode::kPeerLost, fmt::format("its process {} has ended", old->pid)));
  else if (!old->process && liveness_.is_silent(old->id))
    disconnect(old, Error(ErrorCode::kPeerLost,
                          "it did not answer, and another process has taken its place"));
}

void EngineHub::check_liveness() {
  const auto due = liveness_.tick([this](reload::EngineId id) {
    const auto rank = find(id);
    return rank && loads_->is_loading(rank->replica);
  });
  for (const reload::EngineId id : due.ping)
    if (const auto rank = find(id)) rank->send(0, control::Ping{});
  for (const reload::EngineId id : due.silent) {
    const auto rank = find(id);
    if (!rank) continue;
    rank->silence = fmt::format(
        "has not polled its link for {} (engine_deadline): {} is suspended, or hangs in a step",
        config::format_duration(options_.engine_deadline), rank->process_text());
    log_warning("engine {} rank {} {}", rank->replica, rank->rank, rank->silence);
    preparation_->silenced(rank);
    readback_.silenced(rank);
    notify(rank->replica, reload::RankSilent{.rank = rank->rank, .why = rank->silence});
  }
}

void EngineHub::handle(const std::shared_ptr<EngineRank>& rank, control::Frame frame) {
  if (rank->refused) return;
  if (liveness_.heard(rank->id)) {
    log_info("engine {} rank {} answers again", rank->replica, rank->rank);
    rank->silence.clear();
    // It was told of nothing meanwhile.
    if (!devices_) rank->send(0, control::UnmapArenas{});
    preparation_->attached(rank);
    notify(rank->replica, reload::RankHeard{.rank = rank->rank});
  }
  if (auto* hello = std::get_if<control::EngineHello>(&frame.message))
    return handle_hello(rank, frame.envelope, std::move(*hello));
  if (const auto* starting = std::get_if<control::EngineStarting>(&frame.message))
    return handle_starting(rank, frame.envelope, *starting);
  if (const auto* question = std::get_if<control::ReadVersion>(&frame.message))
    return handle_reader(rank, frame.envelope, *question);
  if (!rank->attached)
    return refuse(*rank,
                  {.reason = "the first message of an engine must be EngineHello", .problems = {}});
  const std::uint64_t request = frame.envelope.request;
  std::visit(
      Overloaded{
          [&](const control::Pong&) {},
          [&](const control::Prepared& prepared) { handle_prepared(rank, prepared); },
          [&](const control::Paused&) {
            pacer_.paused(rank->replica, now());
            scrubbing_->stopped(*rank);
            notify(rank->replica, reload::RankPaused{.rank = rank->rank, .request = request});
          },
          [&](const control::BucketAck& ack) { loads_->handle_bucket_ack(*rank, request, ack); },
          [&](control::Loaded& loaded) { handle_loaded(*rank, request, loaded); },
          [&](const control::Committed& committed) {
            if (committed.failure.empty()) {
              rank->active = committed.version;
              commit_timer_.start(kResumeWait);
              scrubbing_->committed(*rank, committed.version, rank->loaded_by_patch);
            }
            notify(rank->replica, reload::RankCommitted{.rank = rank->rank,
                                                        .request = request,
                                                        .version = committed.version,
                                                        .failure = committed.failure});
          },
          [&](const control::Resumed&) {
            scrubbing_->resumed(*rank);
            active_changed();
            notify(rank->replica, reload::RankResumed{.rank = rank->rank, .request = request});
          },
          [&](control::Digests& digests) {
            const auto held = preparation_->find(digests.version);
            readback_.answered(rank, std::move(digests), held);
          },
          [&](control::Scrubbed& scrubbed) { scrubbing_->answered(*rank, std::move(scrubbed)); },
          [&](const control::ErrorReply& error) {
            log_warning("engine {} rank {}: {}", rank->replica, rank->rank, error.message);
            notify(
                rank->replica,
                reload::RankRefused{.rank = rank->rank, .request = request, .why = error.message});
          },
          [&](const auto&) {
            refuse(*rank,
                   {.reason = fmt::format("a sidecar does not accept the message {} of an engine",
                                          control::message_name(control::type_of(frame.message))),
                    .problems = {}});
          },
      },
      frame.message);
}

void EngineHub::absent_changed() const {
  if (options_.on_absent_changed) options_.on_absent_changed();
}

void EngineHub::handle_starting(const std::shared_ptr<EngineRank>& rank,
                                const control::Envelope& envelope,
                                const control::EngineStarting& starting) {
  // Before its name is changed: what is attached is known by it.
  if (rank->attached || rank->is_reader)
    return refuse(*rank,
                  {.reason = rank->attached ? "the engine says that it starts, but it is attached"
                                            : "the connection of a reader cannot be an engine's",
                   .problems = {}});
  rank->replica = envelope.replica;
  rank->rank = envelope.rank;
  if (starting.world_size == 0 || rank->rank >= starting.world_size)
    return refuse(*rank, {.reason = fmt::format("rank {} does not exist in a replica of {} ranks",
                                                rank->rank, starting.world_size),
                          .problems = {}});
  rank->hello_deadline.reset();  // its memory may take minutes
  absent_.starting({.id = rank->id,
                    .replica = rank->replica,
                    .rank = rank->rank,
                    .world_size = starting.world_size,
                    .pid = static_cast<std::uint64_t>(rank->pid),
                    .is_suspended = starting.is_suspended},
                   now());
  log_info("engine {} rank {}/{} is {} (pid {})", rank->replica, rank->rank, starting.world_size,
           starting.is_suspended ? "suspended" : "starting", rank->pid);
  absent_changed();
}

void EngineHub::handle_reader(const std::shared_ptr<EngineRank>& rank,
                              const control::Envelope& envelope,
                              const control::ReadVersion& question) {
  const bool is_new = !rank->is_reader && rank->hello_deadline;
  if (rank->attached || (!is_new && !rank->is_reader))
    return refuse(*rank, {.reason = "the connection of an engine cannot be that of a reader",
                          .problems = {}});
  rank->is_reader = true;
  rank->replica = envelope.replica;  // its own name, for the log
  rank->hello_deadline.reset();
  readers_->ask(rank, envelope.request, question);
}

// The connection on which the process of this rank has said that it starts.
void EngineHub::close_starting(const EngineRank& attached) {
  const Ranks all = ranks_;
  for (const auto& other : all)
    if (!other->attached && other->pid == attached.pid && other->replica == attached.replica &&
        other->rank == attached.rank)
      disconnect(other, Error(ErrorCode::kPeerLost, "the rank has attached"));
}

void EngineHub::handle_hello(const std::shared_ptr<EngineRank>& rank,
                             const control::Envelope& envelope, control::EngineHello hello) {
  if (rank->attached)
    return refuse(*rank, {.reason = "the engine sent a second EngineHello on one connection",
                          .problems = {}});
  if (rank->is_reader)
    return refuse(*rank,
                  {.reason = "the connection of a reader cannot be an engine's", .problems = {}});
  // Set the name before a refusal too: an engine accepts only messages that name its replica.
  rank->replica = envelope.replica;
  rank->rank = envelope.rank;
  rank->capabilities = hello.capabilities & control::kCapabilities;
  drop_dead(rank->replica, rank->rank);
  if (auto refusal = registry_->refusal_of(envelope, hello, fence_, preparation_->newest_layout()))
    return refuse(*rank, std::move(*refusal));
  control::EngineWelcome welcome{.generation = options_.generation};
  std::vector<UniqueFd> fds;
  if (devices_) {
    welcome.device_kind = options_.devices.kind;
    welcome.buffer_bytes = devices_->group().buffer_bytes();
    if (devices_->keeps_buffers()) {
      auto buffers = devices_->export_buffers(*rank, hello.device, std::nullopt);
      if (!buffers) return refuse(*rank, {.reason = buffers.error().message(), .problems = {}});
      fds = std::move(buffers->fds);
      welcome.buffers = std::move(buffers->handles);
    }
  }
  rank->attached = true;
  rank->maps_version = reads_staged_version(hello);
  rank->adopts = hello.take == control::TakeMode::kAdopt;
  rank->any_layout = hello.any_layout;
  // Layers are read in the staged version, which a rank with a device of its own does not map.
  rank->takes_layers =
      contains(hello.capabilities, control::Capability::kChangedLayers) && !devices_ &&
      (hello.take == control::TakeMode::kWhole || hello.take == control::TakeMode::kBorrow);
  rank->takes_patches = hello.takes_patches || rank->takes_layers;
  rank->is_controller = is_controller(rank->rank, hello);
  rank->active = hello.active;
  rank->hello_deadline.reset();
  liveness_.attach(rank->id);
  rank->tensors =
      std::make_shared<const std::vector<control::EngineTensor>>(std::move(hello.tensors));
  rank->tensors_key = tensors_key(*rank->tensors);
  registry_->attach({.id = rank->id,
                     .replica = rank->replica,
                     .rank = rank->rank,
                     .world_size = hello.world_size,
                     .has_controller = hello.has_controller,
                     .device = hello.device,
                     .copies = !rank->maps_version,
                     .any_layout = rank->any_layout,
                     .tensors = rank->tensors,
                     .pid = static_cast<std::uint64_t>(rank->pid)});
  rank->send(envelope.request, welcome, std::move(fds));
  const bool is_on_trial = rank->any_layout && preparation_->newest_layout() != nullptr;
  registry_->set_declines(rank->id, is_on_trial);  // until it has answered
  covered_.erase(rank->replica);
  if (is_on_trial && absent_.was_refused(rank->replica, rank->rank))
    log_debug("engine {} rank {} tries again, after it was refused", rank->replica, rank->rank);
  else
    log_info("engine {} rank {}/{} attached (pid {}, version {})", rank->replica, rank->rank,
             hello.world_size, hello.pid, hello.active.to_string());
  preparation_->attached(rank);
  scrubbing_->attached(*rank, hello.world_size, hello.not_scrubbed);
  absent_.attached(rank->replica, rank->rank, is_on_trial);
  close_starting(*rank);
  rank->held_back = reload::RankAttached{
      .rank = rank->rank, .leader = hello.leader, .state = hello.state, .active = hello.active};
  if (!is_on_trial) announce_attached(*rank);
  refuse_misfits();
}

void EngineHub::add_to(std::vector<control::ReplicaReport>& reports) const {
  scrubbing_->add_to(reports);
  for (control::ReplicaReport& report : reports)
    report.controller = registry_->controller_of(report.replica);
}

// Those that are asked nothing, because the newest version cannot be prepared for them.
void EngineHub::announce_unprepared(const std::string& replica) {
  const auto versions = preparation_->versions();
  if (versions.empty()) return;
  const Version newest = versions.back();
  for (const auto& rank : ranks_) {
    if (rank->replica != replica || !rank->held_back) continue;
    const auto found = rank->prepared.find(newest);
    if (found != rank->prepared.end() && !found->second) announce_attached(*rank);
  }
}

void EngineHub::announce_attached(EngineRank& rank) {
  if (!rank.attached || !rank.held_back) return;
  absent_.attached(rank.replica, rank.rank);
  refused_processes_.forget(rank.replica, rank.rank);
  reload::RankAttached hello = *std::exchange(rank.held_back, std::nullopt);
  for (const Version& version : preparation_->versions())
    if (auto unfit = check_fit(rank, version, *preparation_->find(version)->manifest()))
      hello.unfit.push_back(std::move(*unfit));
  if (!hello.unfit.empty() && hello.unfit.back().version == preparation_->versions().back())
    log_warning(
        "engine {} rank {} waits for another model: {} does not fit it, and no attached engine "
        "serves that: {}",
        rank.replica, rank.rank, hello.unfit.back().version.to_string(), hello.unfit.back().why);
  notify(rank.replica, std::move(hello));
}

std::optional<reload::UnfitVersion> EngineHub::check_fit(EngineRank& rank, const Version& version,
                                                         const Manifest& manifest) {
  if (rank.any_layout)
    if (const auto found = rank.declined.find(version); found != rank.declined.end())
      return reload::UnfitVersion{.version = version, .why = found->second};
  if (rank.any_layout) return std::nullopt;
  const Digest& layout = manifest.layout_digest();
  std::vector<control::Problem> problems;
  if (rank.layout_fits != layout) problems = reload::check_layout(manifest, *rank.tensors);
  if (problems.empty()) {
    rank.layout_fits = layout;
    // Once for each layout of a replica, because all of its tensors are looked at.
    if (const auto known = covered_.find(rank.replica);
        known != covered_.end() && known->second == layout)
      return std::nullopt;
    problems = registry_->uncovered(rank.replica, rank.rank, *rank.tensors,
                                    registry_->find(rank.replica, rank.rank)->world_size, manifest);
    if (problems.empty()) {
      covered_.insert_or_assign(rank.replica, layout);
      return std::nullopt;
    }
  }
  return reload::UnfitVersion{
      .version = version,
      .why = fmt::format("{} ({})", problems.front().tensor, problems.front().detail)};
}

void EngineHub::handle_prepared(const std::shared_ptr<EngineRank>& rank,
                                const control::Prepared& prepared) {
  const auto versions = preparation_->versions();
  const bool is_newest = !versions.empty() && prepared.version == versions.back();
  if (is_newest) registry_->set_declines(rank->id, !prepared.failure.empty());
  if (prepared.is_refused) rank->declined[prepared.version] = prepared.failure;
  if (rank->held_back && prepared.is_refused) {
    preparation_->declined(rank, prepared);
    if (is_newest && registry_->fits_any_but(rank->replica, *preparation_->newest_layout()))
      return refuse(*rank, declined_refusal(*rank, prepared.version));
  } else {
    preparation_->handle(rank, prepared);
  }
  if (!is_newest) return;
  announce_attached(*rank);
  refuse_misfits();
}

// Why the load that runs has not brought what it had to; std::nullopt if it has, or if other ranks
// have not answered yet.
std::optional<reload::SumMismatch> EngineHub::check_loaded(const EngineRank& rank,
                                                           control::Loaded& loaded,
                                                           const staging::HeldPatch* patch) {
  const auto version = preparation_->find(loaded.version);
  if (version == nullptr)
    return reload::SumMismatch{
        .tensor = {},
        .rank = rank.rank,
        .why = fmt::format("version {} is no longer staged", loaded.version.to_string())};
  std::vector<LoadedSums::Rank> ranks;
  for (const AttachedRank& each : registry_->ranks_of(rank.replica)) {
    ranks.push_back(
        {.rank = each.rank, .returns_sums = each.copies, .tensors = each.tensors, .load = nullptr});
    if (each.any_layout && each.copies)
      ranks.back().tensors = std::make_shared<const std::vector<control::EngineTensor>>(
          reload::whole_tensors(*version->manifest()));
    const auto connection = find(each.id);
    ranks.back().takes_layers = connection->takes_layers;
    const auto found = connection->prepared.find(loaded.version);
    if (found != connection->prepared.end() && found->second) ranks.back().load = *found->second;
  }
  const auto base = patch == nullptr ? nullptr : preparation_->find(patch->base().version());
  return loaded_sums_.add(rank.replica, rank.rank,
                          {.now = std::move(loaded.sums), .before = std::move(loaded.before)},
                          ranks, *version, patch, base.get());
}

void EngineHub::handle_loaded(const EngineRank& rank, std::uint64_t request,
                              control::Loaded& loaded) {
  bool is_of_replica = false;  // the failure
  const auto patch = loads_->patch_of(rank.replica, request);
  if (loaded.failure.empty() && loads_->is_current(rank.replica, request))
    if (auto mismatch = check_loaded(rank, loaded, patch.get())) {
      is_of_replica = true;
      loaded.failure = std::move(mismatch->why);
      log_warning("replica {} did not load {}: {}", rank.replica, loaded.version.to_string(),
                  loaded.failure);
    }
  if (const auto own = find(rank.id); own && loaded.failure.empty())
    own->loaded_by_patch = patch != nullptr;
  loads_->answered(rank, request, loaded);
  if (!loaded.failure.empty() && !is_of_replica)
    log_warning("engine {} rank {} did not load {}: {}", rank.replica, rank.rank,
                loaded.version.to_string(), loaded.failure);
  notify(rank.replica, reload::RankLoaded{.rank = rank.rank,
                                          .request = request,
                                          .version = loaded.version,
                                          .bytes = loaded.bytes,
                                          .failure = loaded.failure,
                                          .is_of_replica = is_of_replica,
                                          .by_patch = patch != nullptr,
                                          .written_bytes = loaded.written_bytes});
}

std::shared_ptr<EngineRank> EngineHub::find(reload::EngineId id) const {
  const auto found = std::ranges::find_if(
      ranks_, [&](const auto& rank) { return rank->attached && rank->id == id; });
  return found == ranks_.end() ? nullptr : *found;
}

std::shared_ptr<EngineRank> EngineHub::find(const std::string& replica, std::uint32_t rank) const {
  const AttachedRank* attached = registry_->find(replica, rank);
  return attached == nullptr ? nullptr : find(attached->id);
}

EngineHub::Ranks EngineHub::attached() const {
  Ranks attached;
  std::ranges::copy_if(ranks_, std::back_inserter(attached), &EngineRank::attached);
  return attached;
}

// Post, because the receiver may answer with commands, and commands must not arrive while a call
// still iterates over the ranks.
void EngineHub::notify(const std::string& replica, RankEvent event) {
  const auto ranks = registry_->ranks_of(replica);
  loop_.post([this, alive = alive_, replica, world = ranks.empty() ? 1U : ranks.front().world_size,
              event = std::move(event)] {
    if (*alive) on_rank_(replica, world, event);
  });
}

// ---- versions ----

void EngineHub::notify_unfit(const Version& version, const Manifest& manifest) {
  for (const auto& rank : attached())
    if (auto unfit = check_fit(*rank, version, manifest))
      notify(rank->replica, reload::RankUnfit{.rank = rank->rank, .unfit = std::move(*unfit)});
}

void EngineHub::add_version(const std::shared_ptr<const staging::HeldVersion>& version,
                            std::function<void()> on_ready,
                            const std::shared_ptr<const staging::ReceivedChanges>& changes,
                            std::chrono::milliseconds wait) {
  if (devices_) devices_->connect();
  // Before anything is told that the version is staged. A rank may have attached since the layout
  // was compared with those of the engines.
  notify_unfit(version->version(), *version->manifest());
  preparation_->add(version, attached(), std::move(on_ready), changes, wait);
  readers_->advance();
  refuse_misfits();
}

void EngineHub::add_changes(const std::shared_ptr<const staging::HeldVersion>& version,
                            std::function<void()> on_ready,
                            const std::shared_ptr<const staging::ReceivedChanges>& changes,
                            std::chrono::milliseconds wait) {
  notify_unfit(version->version(), *version->manifest());
  preparation_->add_changes(version, attached(), std::move(on_ready), changes, wait);
}

bool EngineHub::serves_from_memory() const {
  return std::ranges::any_of(ranks_,
                             [](const auto& rank) { return rank->attached && rank->adopts; });
}

void EngineHub::arenas_retired() {
  // Ranks that are prepared for a version of a lost trainer from now on map its arena again.
  for (const Version& version : preparation_->versions()) of_lost_.insert(version);
  unmap_arenas();
}

void EngineHub::unmap_arenas() {
  if (devices_) return;  // engines with devices of their own map no arena
  for (const auto& rank : ranks_)
    if (rank->attached && rank->silence.empty()) rank->send(0, control::UnmapArenas{});
}

void EngineHub::active_changed() {
  const Ranks ranks = attached();
  preparation_->active_changed(ranks, std::ranges::none_of(ranks, [this](const auto& rank) {
                                 return loads_->is_loading(rank->replica);
                               }));
}

void EngineHub::remove_version(const Version& version, bool is_lent) {
  if (preparation_->remove(version, attached(), is_lent)) loads_->release(version);
  // It may be the one that a rank was asked about.
  for (const auto& rank : attached()) announce_attached(*rank);
  refuse_misfits();
  readers_->advance();
  if (of_lost_.erase(version) != 0) unmap_arenas();
}

// ---- commands of the switches ----

void EngineHub::send(const std::string& replica, const reload::SendPause& command) {
  const auto rank = find(replica, command.rank);
  if (!rank) return;
  // The rank that is asked may be a controller, which has no weights.
  const bool adopts = std::ranges::any_of(
      ranks_, [&](const auto& one) { return one->replica == replica && one->adopts; });
  if (adopts)
    send_pauses(pacer_.pause(replica, command, now()));
  else
    send_pause(replica, command);
}

void EngineHub::send_pauses(const PausePacer::Pauses& pauses) {
  for (const auto& [replica, command] : pauses) send_pause(replica, command);
  if (const auto wake = pacer_.next_wake())
    pacer_timer_.start_at(*wake);
  else
    pacer_timer_.stop();
}

void EngineHub::send_pause(const std::string& replica, const reload::SendPause& command) {
  const auto rank = find(replica, command.rank);
  if (!rank) return;
  // A rank that reads does not answer meanwhile.
  loads_->read_ahead(
      replica, command.base, command.version,
      std::min(std::chrono::milliseconds(command.deadline_ms), options_.engine_deadline));
  const auto held = preparation_->find(command.version);
  rank->send(command.request, control::Pause{.mode = command.mode,
                                             .deadline_ms = command.deadline_ms,
                                             .version = command.version,
                                             .bytes = held ? held->manifest()->total_bytes() : 0,
                                             .caches = command.caches});
}

void EngineHub::send(const std::string& replica, const reload::SendCommit& command) {
  const auto rank = find(replica, command.rank);
  if (!rank) return;
  if (loaded_sums_.is_equal(replica, command.version))
    return rank->send(command.request, control::Commit{command.version});
  const reload::RankCommitted refused{
      .rank = command.rank,
      .request = command.request,
      .version = command.version,
      .failure = fmt::format("what the ranks have loaded was not compared with {}",
                             command.version.to_string())};
  loop_.post([this, alive = alive_, replica, refused] {
    if (*alive) notify(replica, refused);
  });
}

void EngineHub::send(const std::string& replica, const reload::SendResume& command) {
  if (const auto rank = find(replica, command.rank)) rank->send(command.request, control::Resume{});
  send_pauses(pacer_.end(replica, now()));
}

void EngineHub::send(const std::string& replica, const reload::BeginLoad& command) {
  loaded_sums_.begin(replica);
  loads_->begin(replica, command);
}

void EngineHub::send(const std::string& replica, const reload::CancelLoad& command) {
  loads_->cancel(replica, command.request);
}

}  // namespace wsync::agent
