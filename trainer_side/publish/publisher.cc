#include "trainer_side/publish/publisher.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/config/address.h"
#include "shared/config/trainer_config.h"
#include "shared/observe/trace/progress.h"
#include "shared/transport/make_transport.h"
#include "trainer_side/publish/fleet_place.h"

namespace wsync::publish {
namespace {

// More threads do not copy faster: a few of them saturate the memory.
constexpr unsigned kSnapshotThreadsAuto = 16;

// A receiver that is slow may read a bucket of the arena that is to be changed. Others wait
// meanwhile, so it is not awaited for long.
constexpr std::chrono::milliseconds kReaderWait{500};
constexpr std::chrono::seconds kExchangeRetry{1};

// What is offered of a version, without its bytes.
transport::Offer offer_of(const ArenaIdentity& identity, const BucketPlan& plan) {
  transport::Offer offer;
  offer.key = {.fence = {.epoch = identity.fence_epoch, .run_id = identity.fence_run_id},
               .version = {.epoch = static_cast<std::uint32_t>(identity.version_epoch),
                           .step = identity.version_step},
               .layout = identity.layout};
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    offer.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  return offer;
}

}  // namespace

unsigned Publisher::threads(std::uint32_t configured) {
  if (configured != 0) return configured;
  return std::clamp(std::thread::hardware_concurrency(), 1U, kSnapshotThreadsAuto);
}

Result<std::unique_ptr<Publisher>> Publisher::create(Loop& loop,
                                                     const config::TrainerConfig& config) {
  auto publisher = std::unique_ptr<Publisher>(new Publisher(loop, config));
  const config::NetworkConfig& network = config.network;
  const bool is_trusted = network.data_security == DataSecurity::kTrustedNetwork;
  if (is_trusted && config::is_beyond_this_host(network.data_address))
    log_warning(
        "data_security: trusted_network: weights go to other hosts without encryption, and who "
        "reaches {} can ask for them",
        network.data_address);
  if (!config.keys.empty() && !is_trusted) publisher->secret_ = transport::make_pair_secret();
  const transport::TransportOptions options{
      .run_dir = config.run_dir,
      .name = "trainer",
      .data_address = network.data_address,
      .advertise = network.advertise,
      .security = network.data_security,
      .secret = publisher->secret_,
      .claim = config.take_over ? Claim::kTakeOver : Claim::kIfFree,
      .advice = std::string(kTakeOverAdvice)};
  auto transports = WSYNC_TRY(transport::make_transports(
      network.transport,
      [&loop](std::function<void()> task, std::source_location made) {
        loop.post(std::move(task), made);
      },
      options));
  for (auto& transport : transports) {
    Server server{.transport = std::move(transport), .source = nullptr};
    // An address that cannot be taken over is bound here, before a coordinator that takes over
    // claims any other: a failure must leave the running coordinator its addresses.
    if (server.transport->traits().reach == transport::Reach::kNetwork)
      server.source = WSYNC_TRY(server.transport->listen());
    publisher->servers_.push_back(std::move(server));
  }
  return publisher;
}

Publisher::Publisher(Loop& loop, const config::TrainerConfig& config)
    : loop_(loop),
      config_(config),
      snapshotter_(std::make_shared<Snapshotter>(
          // One more for a version that is being written to a directory.
          SnapshotterOptions{.arenas = config.arenas + (config.directory.publish.empty() ? 0U : 1U),
                             .additional_arenas = true,
                             .threads = threads(config.snapshot_threads),
                             .huge_pages = config.memory.huge_pages,
                             .numa_node = config.memory.numa_node,
                             .near_gpus = config.memory.near_gpus})),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "snapshot"})),
      idle_(loop, [this] { release_unused(); }),
      retry_(loop, [this] { make_complete(wanted_); }) {}

Publisher::~Publisher() {
  // The worker still posts the end of a running snapshot; that task must not use this object.
  *alive_ = false;
  worker_->stop();
}

Result<> Publisher::listen() {
  for (Server& server : servers_)
    if (!server.source) server.source = WSYNC_TRY(server.transport->listen());
  return {};
}

std::vector<control::TransportAddress> Publisher::transports() const {
  std::vector<control::TransportAddress> transports;
  for (const Server& server : servers_)
    transports.push_back({.kind = std::string(server.transport->traits().kind),
                          .address = server.source->address()});
  return transports;
}

Result<> Publisher::snapshot(SnapshotOrder order, OnTaken on_taken) {
  SnapshotRequest request;
  request.fence_epoch = order.fence.epoch;
  request.fence_run_id = order.fence.run_id;
  request.version = order.version;
  request.bucket_bytes = config_.bucket_bytes;
  request.deadline = order.deadline;
  request.copy_deadline = order.deadline;
  request.arena_wait = order.arena_wait;
  // The worker's thread may not touch this object. The loop outlives the worker.
  if (order.on_wait)
    request.on_wait = [loop = &loop_, alive = alive_, on_wait = std::move(order.on_wait)] {
      loop->post([alive, on_wait] {
        if (*alive) on_wait();
      });
    };
  if (order.on_copy)
    request.on_copy = [loop = &loop_, alive = alive_,
                       on_copy = std::move(order.on_copy)](const CopiedSnapshot& snapshot) {
      loop->post([alive, on_copy, snapshot] {
        if (*alive) on_copy(snapshot);
      });
    };
  if (order.on_bucket)
    request.on_bucket = [loop = &loop_, alive = alive_, on_bucket = std::move(order.on_bucket)](
                            std::uint64_t bucket, const Digest& digest) {
      loop->post([alive, on_bucket, bucket, digest] {
        if (*alive) on_bucket(bucket, digest);
      });
    };
  request.value_cost = order.value_cost;
  request.as_changes = order.as_changes;
  request.stop = std::move(order.stop);
  request.done_bytes = &order.progress->done;
  request.total_bytes = &order.progress->total;
  struct Taken {
    Result<std::shared_ptr<Snapshot>> snapshot;
    std::chrono::nanoseconds took{};
  };
  auto taken = std::make_shared<Taken>();
  // The task owns the progress, to which `request` points, and the snapshotter, because it may run
  // while the publisher is being destroyed.
  if (config_.idle_release.count() != 0) idle_.start(config_.idle_release);
  return worker_->submit(
      [open = std::move(order.open), progress = std::move(order.progress), request, taken,
       base = order.base, snapshotter = snapshotter_]() mutable {
        const TimePoint begun = now();
        Result<std::unique_ptr<WeightSource>> source = open();
        if (!source) {
          taken->snapshot = fail(source.error());
          return;
        }
        if (!base.none()) request.base = snapshotter->find(base);
        taken->snapshot = snapshotter->take(**source, request);
        taken->took = now() - begun;
      },
      [alive = alive_, taken, on_taken = std::move(on_taken)] {
        if (*alive) on_taken(std::move(taken->snapshot), taken->took);
      });
}

void Publisher::prepare_next() {
  const auto submitted =
      worker_->submit([snapshotter = snapshotter_] { snapshotter->prepare_next(); }, [] {});
  if (!submitted) log_debug("no arena is prepared: {}", submitted.error().message());
}

// On the worker, because it takes long, and because snapshots use the arenas there.
void Publisher::release_unused() {
  const auto submitted = worker_->submit(
      [snapshotter = snapshotter_, before = snapshotter_->arena_bytes()] {
        snapshotter->release_unused();
        if (const std::uint64_t after = snapshotter->arena_bytes(); after < before)
          log_info("{} MiB of free arenas were given back (idle_release)",
                   (before - after) / limits::kMiB);
      },
      [] {});
  if (!submitted) log_debug("free arenas are looked for later: {}", submitted.error().message());
  idle_.start(config_.idle_release);  // others may still read an arena now
}

void Publisher::rename(Snapshot& snapshot, const control::Fence& fence, const Version& version) {
  snapshotter_->rename(snapshot, fence.epoch, fence.run_id, version);
}

void Publisher::offer_buckets(const CopiedSnapshot& snapshot) {
  transport::Offer offer = offer_of(snapshot.identity, *snapshot.layout.plan);
  offer.data = snapshot.data;
  offer.leaves = snapshot.layout.leaves;
  offer.blocks = snapshot.layout.blocks;
  offer.complete = false;
  offer.hold = snapshot.hold;
  for (const Server& server : servers_)
    if (!server.transport->traits().maps_source) server.source->offer(offer);
}

void Publisher::bucket_complete(const Version& version, std::uint64_t bucket,
                                const Digest& digest) {
  for (const Server& server : servers_)
    if (!server.transport->traits().maps_source)
      server.source->bucket_ready(version, bucket, digest);
}

void Publisher::offer(const std::shared_ptr<const Snapshot>& snapshot) {
  served_[snapshot->version()] = snapshot;
  transport::Offer offer = offer_of(snapshot->identity(), *snapshot->plan());
  offer.leaves = snapshot->leaves();
  offer.blocks = snapshot->blocks();
  if (!snapshot->is_complete()) {
    offer.base = snapshot->changes()->base;
    offer.complete = false;
    return serve(*snapshot, std::move(offer));
  }
  offer.data = snapshot->data();
  offer.sums = snapshot->digests().leaves;
  // The snapshot's read lease prevents the snapshotter from writing the arena again. The source
  // releases it when the last byte has been sent, which may be after withdraw().
  offer.hold = snapshot;
  offer.share = [snapshot] { return snapshot->share(); };
  offer.patch = snapshot->patch();
  serve(*snapshot, std::move(offer));
}

void Publisher::serve(const Snapshot& snapshot, transport::Offer offer) {
  for (const Server& server : servers_) server.source->offer(offer);
  if (offer.complete || !snapshot.changes()) return;
  const std::span<const WordSum> sums = snapshot.digests().leaves;
  const LeafTable& leaves = *snapshot.leaves();
  for (std::size_t i = 0; i < leaves.bucket_count(); ++i) {
    const Digest digest = bucket_digest(sums.subspan(leaves.first(i), leaves.bucket(i).size()));
    for (const Server& server : servers_)
      server.source->bucket_ready(snapshot.version(), i, digest, snapshot.changes()->buckets[i]);
  }
}

void Publisher::let_wait(const Snapshot& snapshot) {
  transport::Offer offer = offer_of(snapshot.identity(), *snapshot.plan());
  offer.complete = false;
  for (const Server& server : servers_) server.source->offer(offer);
}

void Publisher::make_complete(const Version& version) {
  wanted_ = version;
  const auto found = served_.find(version);
  if (exchanging_ || found == served_.end() || found->second->is_complete()) return;
  struct Task {
    std::shared_ptr<const Snapshot> newer;
    Result<Snapshotter::Exchanged> outcome = fail(ErrorCode::kCancelled, "not made");
    std::chrono::nanoseconds took{};
  };
  auto task = std::make_shared<Task>();
  task->newer = found->second;
  // When a snapshot that is being taken is done. Sources read neither version from then on, but for
  // the buckets that they are sending.
  auto begin = [this, alive = alive_] {
    if (*alive) begin_exchange();
  };
  const auto submitted = worker_->submit(
      [task, snapshotter = snapshotter_, loop = &loop_, begin = std::move(begin)] {
        loop->post(begin);
        const TimePoint begun = now();
        task->outcome = snapshotter->exchange(std::move(task->newer), begun + kReaderWait);
        task->took = now() - begun;
      },
      [this, alive = alive_, task] {
        if (*alive) exchanged(std::move(task->outcome), task->took);
      });
  if (submitted)
    exchanging_ = {.newer = version, .older = found->second->changes()->base};
  else
    retry_.start(kExchangeRetry);
}

void Publisher::begin_exchange() {
  const auto give_up = [this](const Version& version) {
    const auto found = served_.find(version);
    if (found == served_.end()) return true;
    let_wait(*found->second);
    served_.erase(found);
    return false;
  };
  exchanging_->is_newer_withdrawn = give_up(exchanging_->newer);
  exchanging_->is_older_withdrawn = give_up(exchanging_->older);
}

void Publisher::exchanged(Result<Snapshotter::Exchanged> outcome, std::chrono::nanoseconds took) {
  const Exchanging ended = *std::exchange(exchanging_, std::nullopt);
  if (!outcome) {
    log_error("{} and {} are not served any more by this trainer: {}; the next version is copied",
              ended.newer.to_string(), ended.older.to_string(), outcome.error().message());
    for (const Version& lost : {ended.newer, ended.older})
      withdraw(lost, "the trainer has lost the version");
    return;
  }
  if (!ended.is_newer_withdrawn) offer(outcome->newer);
  if (!ended.is_older_withdrawn) offer(outcome->older);
  if (outcome->failure) {
    log_warning("{} stays in memory beside what changes to {}, because receivers still read it: {}",
                ended.older.to_string(), ended.newer.to_string(), outcome->failure->message());
    return retry_.start(kExchangeRetry);
  }
  log_info("{} is in {}: {} in {}", ended.newer.to_string(),
           outcome->in_place ? fmt::format("the arena of {}", ended.older.to_string())
                             : fmt::format("an arena beside that of {}, which is being read",
                                           ended.older.to_string()),
           trace::format_bytes(outcome->bytes), trace::format_duration(took));
  if (wanted_ != ended.newer) make_complete(wanted_);
}

void Publisher::withdraw(const Version& version, const std::string& reason) {
  served_.erase(version);
  if (exchanging_ && exchanging_->newer == version) exchanging_->is_newer_withdrawn = true;
  if (exchanging_ && exchanging_->older == version) exchanging_->is_older_withdrawn = true;
  for (const Server& server : servers_) server.source->withdraw(version, reason);
}

std::uint64_t Publisher::arena_bytes() const noexcept {
  std::uint64_t bytes = snapshotter_->arena_bytes();
  for (const auto& [version, snapshot] : served_)
    if (snapshot->changes()) bytes += snapshot->changes()->bytes();
  return bytes;
}

std::uint64_t Publisher::refused_connections() const {
  std::uint64_t refused = 0;
  for (const Server& server : servers_) refused += server.transport->refusals();
  return refused;
}

std::uint64_t Publisher::copied_bytes() const {
  std::uint64_t bytes = 0;
  for (const Server& server : servers_)
    if (!server.transport->traits().maps_source) bytes += server.source->counters().wire_bytes;
  return bytes;
}

}  // namespace wsync::publish
