#include "trainer_side/publish/served_versions.h"

#include <span>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/config/address.h"
#include "shared/observe/trace/progress.h"
#include "shared/transport/make_transport.h"
#include "trainer_side/publish/fleet_place.h"

namespace wsync::publish {
namespace {

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

Result<std::unique_ptr<ServedVersions>> ServedVersions::create(
    Loop& loop, const config::TrainerConfig& config, std::shared_ptr<Snapshotter> snapshotter,
    Worker& worker) {
  auto versions =
      std::unique_ptr<ServedVersions>(new ServedVersions(loop, std::move(snapshotter), worker));
  const config::NetworkConfig& network = config.network;
  const bool is_trusted = network.data_security == DataSecurity::kTrustedNetwork;
  if (is_trusted && config::is_beyond_this_host(network.data_address))
    log_warning(
        "data_security: trusted_network: weights go to other hosts without encryption, and who "
        "reaches {} can ask for them",
        network.data_address);
  if (!config.keys.empty() && !is_trusted) versions->secret_ = transport::make_pair_secret();
  const transport::TransportOptions options{
      .run_dir = config.run_dir,
      .name = "trainer",
      .data_address = network.data_address,
      .advertise = network.advertise,
      .security = network.data_security,
      .secret = versions->secret_,
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
    versions->servers_.push_back(std::move(server));
  }
  return versions;
}

ServedVersions::ServedVersions(Loop& loop, std::shared_ptr<Snapshotter> snapshotter, Worker& worker)
    : loop_(loop),
      worker_(worker),
      snapshotter_(std::move(snapshotter)),
      retry_(loop, [this] { make_complete(wanted_); }) {}

Result<> ServedVersions::listen() {
  for (Server& server : servers_)
    if (!server.source) server.source = WSYNC_TRY(server.transport->listen());
  return {};
}

std::vector<control::TransportAddress> ServedVersions::transports() const {
  std::vector<control::TransportAddress> transports;
  for (const Server& server : servers_)
    transports.push_back({.kind = std::string(server.transport->traits().kind),
                          .address = server.source->address()});
  return transports;
}

void ServedVersions::offer_buckets(const CopiedSnapshot& snapshot) {
  transport::Offer offer = offer_of(snapshot.identity, *snapshot.layout.plan);
  offer.data = snapshot.data;
  offer.leaves = snapshot.layout.leaves;
  offer.blocks = snapshot.layout.blocks;
  offer.complete = false;
  offer.hold = snapshot.hold;
  for (const Server& server : servers_)
    if (!server.transport->traits().maps_source) server.source->offer(offer);
}

void ServedVersions::bucket_complete(const Version& version, std::uint64_t bucket,
                                     const Digest& digest) {
  for (const Server& server : servers_)
    if (!server.transport->traits().maps_source)
      server.source->bucket_ready(version, bucket, digest);
}

void ServedVersions::offer(const std::shared_ptr<const Snapshot>& snapshot) {
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

void ServedVersions::serve(const Snapshot& snapshot, transport::Offer offer) {
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

void ServedVersions::let_wait(const Snapshot& snapshot) {
  transport::Offer offer = offer_of(snapshot.identity(), *snapshot.plan());
  offer.complete = false;
  for (const Server& server : servers_) server.source->offer(offer);
}

void ServedVersions::make_complete(const Version& version) {
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
  const auto submitted = worker_.submit(
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

void ServedVersions::begin_exchange() {
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

void ServedVersions::exchanged(Result<Snapshotter::Exchanged> outcome,
                               std::chrono::nanoseconds took) {
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

void ServedVersions::withdraw(const Version& version, const std::string& reason) {
  served_.erase(version);
  if (exchanging_ && exchanging_->newer == version) exchanging_->is_newer_withdrawn = true;
  if (exchanging_ && exchanging_->older == version) exchanging_->is_older_withdrawn = true;
  for (const Server& server : servers_) server.source->withdraw(version, reason);
}

std::uint64_t ServedVersions::changes_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [version, snapshot] : served_)
    if (snapshot->changes()) bytes += snapshot->changes()->bytes();
  return bytes;
}

std::uint64_t ServedVersions::refused_connections() const {
  std::uint64_t refused = 0;
  for (const Server& server : servers_) refused += server.transport->refusals();
  return refused;
}

std::uint64_t ServedVersions::copied_bytes() const {
  std::uint64_t bytes = 0;
  for (const Server& server : servers_)
    if (!server.transport->traits().maps_source) bytes += server.source->counters().wire_bytes;
  return bytes;
}

}  // namespace wsync::publish
