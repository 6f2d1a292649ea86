#include "inference_side/sidecar/load_driver.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "inference_side/reload/patch_sum_check.h"
#include "inference_side/sidecar/switch_trace.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"

namespace wsync::agent {
namespace {

template <class... Ts>
struct CommandVisitor : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
CommandVisitor(Ts...) -> CommandVisitor<Ts...>;

constexpr std::uint64_t kAheadBytesMax = 1024 * limits::kMiB;

// A rank reads about 1 GiB of a patch in a second, with one thread. It may take a quarter of the
// time in which it must answer.
std::uint64_t ahead_bytes_max(std::chrono::milliseconds deadline) {
  const auto ms = static_cast<std::uint64_t>(std::max<std::int64_t>(0, deadline.count()));
  return std::min<std::uint64_t>(kAheadBytesMax, ms * (kAheadBytesMax / 4'000));
}

// The replicas of one decision load at the same time, so each rank gets an equal share of the
// cores.
std::uint32_t copy_threads(std::size_t ranks) {
  const std::uint64_t share = std::thread::hardware_concurrency() / std::max<std::size_t>(1, ranks);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(share, 1, limits::kCopyThreadCount));
}

}  // namespace

LoadDriver::LoadDriver(Loop& loop, LoadDriverOptions options)
    : loop_(loop), options_(std::move(options)), queue_(options_.devices != nullptr) {}

// ---- calls of the switches and the engines ----

void LoadDriver::begin(const std::string& replica, const reload::BeginLoad& load) {
  patches_.erase(replica);
  execute(queue_.begin(replica, load));
  advance(replica);
}

void LoadDriver::cancel(const std::string& replica, std::uint64_t request) {
  if (patch_of(replica, request)) patches_.erase(replica);
  execute(queue_.cancel(replica, request));
  free_unused_buffers();
}

void LoadDriver::expect_more(bool expected) {
  queue_.expect_more(expected);
  start_run();
}

bool LoadDriver::is_loading(const std::string& replica) const {
  const auto state = queue_.state(replica);
  return state == LoadState::kQueued || state == LoadState::kRunning || state == LoadState::kSent;
}

void LoadDriver::engine_lost(const std::string& replica, reload::EngineId engine) {
  queue_.engine_lost(replica, engine);
  patches_.erase(replica);
  patched_plans_.erase(replica);
}

std::shared_ptr<const staging::HeldPatch> LoadDriver::patch_of(const std::string& replica,
                                                               std::uint64_t request) const {
  const auto found = patches_.find(replica);
  return found != patches_.end() && found->second.request == request ? found->second.patch
                                                                     : nullptr;
}

void LoadDriver::answered(const EngineRank& rank, std::uint64_t request,
                          const control::Loaded& loaded) {
  if (options_.devices != nullptr) options_.devices->answered(rank.id, request);
  if (loaded.failure.empty()) queue_.loaded(rank.replica, request, rank.rank);
  if (!queue_.is_current(rank.replica, request) && patch_of(rank.replica, request))
    patches_.erase(rank.replica);
  free_unused_buffers();
}

void LoadDriver::handle_bucket_ack(const EngineRank& rank, std::uint64_t request,
                                   const control::BucketAck& ack) {
  // Drop a stale acknowledgement, because the buffer may already hold another bucket.
  if (options_.devices == nullptr || !queue_.is_current(rank.replica, request)) return;
  if (ack.failure.empty())
    options_.devices->handle_bucket_ack(rank.id, ack.bucket);
  else
    options_.devices->engine_lost(rank.id, Error(ErrorCode::kRefused, ack.failure));
}

void LoadDriver::release(const Version& version) { execute(queue_.release(version)); }

// ---- calls of the preparation and the devices ----

LoadNeeds LoadDriver::needs_of(const std::string& replica, const Version& version) const {
  LoadNeeds needs;
  needs.staged = options_.preparation->find(version) != nullptr;
  needs.whole = options_.registry->whole(replica);
  for (const AttachedRank& attached : options_.registry->ranks_of(replica)) {
    LoadNeeds::Rank rank{.rank = {.engine = attached.id,
                                  .rank = attached.rank,
                                  .device = reload::DeviceIndex{attached.device}},
                         .prepared = std::nullopt};
    const auto connection = options_.find(attached.id);
    if (const auto found = connection->prepared.find(version); found != connection->prepared.end())
      rank.prepared = found->second ? Result<>() : fail(found->second.error());
    needs.ranks.push_back(std::move(rank));
  }
  needs.by_patch = choose_patch(replica, queue_.base_of(replica), version) != nullptr;
  needs.devices = options_.preparation->devices_ready(version);
  if (options_.devices == nullptr) return needs;
  needs.connected = options_.devices->connected();
  needs.buffers = options_.devices->buffers_held();
  return needs;
}

void LoadDriver::advance(const std::string& replica) {
  if (const auto version = queue_.waiting_for(replica))
    execute(queue_.advance(replica, needs_of(replica, *version)));
}

void LoadDriver::advance_all() {
  for (const std::string& replica : queue_.waiting()) advance(replica);
}

void LoadDriver::bucket_ready(const reload::BucketReady& ready) {
  const auto seat = queue_.seat_of(ready.engine);
  const auto rank = options_.find(ready.engine);
  if (!seat || !rank)
    return options_.devices->engine_lost(ready.engine,
                                         Error(ErrorCode::kPeerLost, "its connection is closed"));
  rank->send(seat->request, control::BucketReady{.bucket = ready.bucket,
                                                 .slot = static_cast<std::uint32_t>(ready.slot)});
}

void LoadDriver::run_finished(const Result<reload::PipelineReport>& result) {
  if (!result) {
    log_warning("weight pipeline: {}", result.error().message());
    execute(queue_.run_finished(fail(result.error())));
  } else {
    // Said when it changes, because it depends on which engines load.
    if (options_.devices->group().size() > 1 &&
        std::exchange(own_links_, result->own_links) != result->own_links)
      log_info("loads: {}", result->own_links
                                ? "each device copies what its engines need by its own link"
                                : "each byte is copied to one device and broadcast to all");
    LoadQueue::LostEngines lost;
    for (const reload::LostEngine& engine : result->lost)
      lost.emplace_back(engine.engine, engine.reason);
    execute(queue_.run_finished(lost));
  }
  // A failed run has disconnected the devices. The next run must not begin before they are
  // reconnected.
  options_.devices->connect();
  start_run();
  free_unused_buffers();
}

void LoadDriver::connect_finished(const Result<>& outcome) {
  execute(queue_.made(DeviceNeed::kConnection, outcome));
  advance_all();
  start_run();
}

void LoadDriver::allocate_finished(const Result<>& outcome) {
  execute(queue_.made(DeviceNeed::kBuffers, outcome));
  advance_all();
  free_unused_buffers();
}

void LoadDriver::free_unused_buffers() {
  if (options_.devices != nullptr) options_.devices->free_unused(queue_.needs_buffers());
}

void LoadDriver::start_run() {
  if (options_.devices != nullptr && !options_.devices->connecting())
    execute(queue_.start_run(now()));
}

// ---- commands of the queue ----

void LoadDriver::execute(const LoadCommands& commands) {
  for (const LoadCommand& command : commands)
    std::visit(
        CommandVisitor{
            [this](const LeaveRun& one) { options_.devices->engine_lost(one.engine, one.reason); },
            [this](const ConnectDevices&) { options_.devices->connect(); },
            [this](const AllocateBuffers&) { options_.devices->allocate(); },
            [this](const ReportLoadNotBegun& one) {
              options_.notify(one.replica,
                              reload::LoadNotBegun{.request = one.request, .why = one.why});
            },
            [this](const auto& one) { execute(one); },
        },
        command);
  // Abort on a broken rule: the queue could load a replica twice at once, or leave it waiting
  // forever.
  const Result<> rules = queue_.invariants();
  WSYNC_CHECK(rules.has_value(), rules.error().message());
}

std::shared_ptr<const staging::HeldPatch> LoadDriver::choose_patch(const std::string& replica,
                                                                   const Version& base,
                                                                   const Version& target) const {
  if (base.none() || !options_.may_be_patched(replica)) return nullptr;
  if (!options_.is_proved(replica) && !planted("patch_on_unproved_memory")) return nullptr;
  for (const AttachedRank& attached : options_.registry->ranks_of(replica))
    if (!options_.find(attached.id)->takes_patches) return nullptr;
  auto patch = options_.preparation->patches().find(base, target);
  const bool has_base =
      !patch || patch->base().is_complete() || options_.preparation->find(base) != nullptr;
  return has_base || may_lack_base(replica, target) ? patch : nullptr;
}

// Whether what the ranks have changed by a patch can be compared although the bytes of its base are
// not here any more.
bool LoadDriver::may_lack_base(const std::string& replica, const Version& target) const {
  const auto attached = options_.registry->ranks_of(replica);
  std::vector<std::shared_ptr<const PreparedLoad>> plans;
  std::vector<reload::PatchedRank> ranks;
  for (const AttachedRank& each : attached) {
    const auto rank = options_.find(each.id);
    const auto prepared = rank->prepared.find(target);
    if (prepared == rank->prepared.end() || !prepared->second) return false;
    if (!each.copies || rank->takes_layers) continue;
    if (!each.tensors) return false;  // of any layout
    plans.push_back(*prepared->second);
    ranks.push_back({.rank = each.rank,
                     .tensors = plans.back()->plan.tensors(),
                     .ranges = *each.tensors,
                     .before = {},
                     .after = {}});
  }
  PatchedPlans& known = patched_plans_[replica];
  if (known.plans != plans)
    known = {.plans = std::move(plans), .needs_base = reload::needs_bytes_of_base(ranks)};
  return !known.needs_base;
}

void LoadDriver::read_ahead(const std::string& replica, const Version& base, const Version& target,
                            std::chrono::milliseconds deadline) {
  const auto patch = choose_patch(replica, base, target);
  if (!patch || patch->bytes() > ahead_bytes_max(deadline)) return;
  const control::PatchAhead message{.version = target,
                                    .patch_base = base,
                                    .patch_bytes = patch->bytes(),
                                    .copy_threads = 1};  // the engines of this host serve meanwhile
  for (const AttachedRank& attached : options_.registry->ranks_of(replica)) {
    const auto rank = options_.find(attached.id);
    // A controller has no weights.
    if (rank->is_controller || !contains(rank->capabilities, control::Capability::kPatchAhead))
      continue;
    auto memory = patch->share();
    if (!memory) return log_debug("{}: {}", replica, memory.error().message());  // Load says it
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(*memory));
    rank->send(0, message, std::move(fds));
  }
}

void LoadDriver::execute(const SendLoad& command) {
  const auto patch =
      command.by_patch ? choose_patch(command.replica, command.base, command.version) : nullptr;
  WSYNC_CHECK(command.by_patch == (patch != nullptr), "what was chosen a moment ago is there");
  if (patch) patches_[command.replica] = {.request = command.request, .patch = patch};
  for (const LoadRank& seat : command.ranks)
    if (const auto sent = send_load(command, seat, patch.get()); !sent)
      execute(ReportLoadFailed{.replica = command.replica,
                               .rank = seat.rank,
                               .request = command.request,
                               .version = command.version,
                               .why = sent.error().message()});
  // Post, because other replicas of the same decision are about to join the run.
  loop_.post([this, alive = alive_] {
    if (*alive) start_run();
  });
}

Result<> LoadDriver::send_load(const SendLoad& load, const LoadRank& seat,
                               const staging::HeldPatch* patch) {
  const auto rank = options_.find(seat.engine);
  control::Load message{.version = load.version,
                        .deadline_ms = load.deadline_ms,
                        .copy_threads = copy_threads(options_.registry->ranks().size())};
  std::vector<UniqueFd> fds;
  // The welcome already carried the handles of kept buffers.
  if (patch == nullptr && options_.devices != nullptr && !options_.devices->keeps_buffers()) {
    const auto device = static_cast<std::uint32_t>(reload::index_of(seat.device));
    auto buffers = WSYNC_TRY(options_.devices->export_buffers(*rank, device, load.request));
    message.buffers = std::move(buffers.handles);
    fds = std::move(buffers.fds);
  }
  if (patch != nullptr) {
    message.patch_base = load.base;
    message.patch_bytes = patch->bytes();
    fds.push_back(WSYNC_TRY(patch->share()));
  }
  rank->send(load.request, message, std::move(fds));
  return {};
}

void LoadDriver::execute(const SendAbort& command) {
  for (const AttachedRank& attached : options_.registry->ranks_of(command.replica)) {
    const auto rank = options_.find(attached.id);
    rank->send(command.request,
               control::Abort{.version = command.version, .reason = "the load was cancelled"});
    options_.preparation->renew(rank, command.version);
  }
}

void LoadDriver::execute(const ReportLoadFailed& command) {
  // Skip a rank that is gone; the switch has been notified of its loss.
  if (options_.registry->find(command.replica, command.rank) == nullptr) return;
  options_.notify(
      command.replica,
      reload::RankLoaded{.rank = command.rank,
                         .request = command.request,
                         .version = command.version,
                         .failure = command.why,
                         .by_patch = patch_of(command.replica, command.request) != nullptr});
}

void LoadDriver::execute(const StartRun& command) {
  if (const auto started = start_pipeline(command); !started) run_finished(fail(started.error()));
}

// Ranks that take the same tensors have the same plan. If what one of them needs is not known (it
// is gone, or a new version has just replaced this one), every device gets all.
std::vector<std::vector<std::shared_ptr<const reload::NeededBytes>>> LoadDriver::needed_by_devices(
    const StartRun& run) const {
  std::vector<std::vector<std::shared_ptr<const reload::NeededBytes>>> devices(
      options_.devices->group().size());
  for (const RunSeat& seat : run.seats) {
    const auto connection = options_.find(seat.rank.engine);
    if (!connection) return {};
    const auto prepared = connection->prepared.find(run.version);
    if (prepared == connection->prepared.end() || !prepared->second) return {};
    const std::shared_ptr<const PreparedLoad> load = *prepared->second;
    auto& of_device = devices.at(reload::index_of(seat.rank.device));
    std::shared_ptr<const reload::NeededBytes> needed(load, &load->needed);
    if (std::ranges::count(of_device, needed) == 0) of_device.push_back(std::move(needed));
  }
  return devices;
}

Result<> LoadDriver::start_pipeline(const StartRun& run) {
  // The devices were prepared for the version before its loads were sent, and it is still held.
  const auto staged = options_.preparation->on_devices(run.version);
  if (!staged)
    return fail(ErrorCode::kInternal,
                fmt::format("version {} is not ready on the devices", run.version.to_string()));
  reload::PipelineJob job;
  job.buckets = staged->buckets->bucket_count();
  job.bucket_bytes = [staged](std::uint64_t bucket) -> Result<std::span<const std::byte>> {
    return staged->version->data().subspan(staged->buckets->bucket_offset(bucket),
                                           staged->buckets->bucket_size(bucket));
  };
  for (const RunSeat& seat : run.seats) {
    job.engines.push_back({.engine = seat.rank.engine, .device = seat.rank.device});
    const AttachedRank* rank = options_.registry->find(seat.replica, seat.rank.rank);
    job.engine_names[seat.rank.engine] =
        traced_name(seat.replica, rank == nullptr ? 1 : rank->world_size, seat.rank.rank);
  }
  job.needed = needed_by_devices(run);
  job.version = run.version.to_string();
  job.version_bytes = staged->version->manifest()->total_bytes();
  for (std::size_t i = 0; i < job.buckets; ++i)
    job.bucket_offsets.push_back(staged->buckets->bucket_offset(i));
  job.deadline = run.deadline;
  job.bucket_ack_deadline = run.bucket_ack_deadline;
  return options_.devices->start_run(std::move(job));
}

}  // namespace wsync::agent
