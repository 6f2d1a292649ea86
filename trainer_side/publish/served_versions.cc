#include "trainer_side/publish/served_versions.h"

#include <algorithm>
#include <span>
#include <utility>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/config/address.h"
#include "shared/observe/trace/progress.h"
#include "shared/transport/make_transport.h"
#include "trainer_side/publish/fleet_place.h"

namespace wsync::publish {
namespace {

// A receiver that is slow may read a bucket of the arena that is to be changed. Others wait
// meanwhile, so it is not awaited for long.
constexpr std::chrono::milliseconds kReaderWait{500};
// Sidecars of this host lend the arena when they have stored the decision and have made what leads
// back, which takes longer on a slow disk and with many changes. Then it is tried a second time,
// because memory beside it costs more.
constexpr std::chrono::milliseconds kReaderWaitLong{2'000};
constexpr std::uint64_t kChangesBytesPerMs = 200'000;
constexpr std::chrono::milliseconds kRetryFirst{1'000};
constexpr std::chrono::milliseconds kRetryLast{60'000};

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

// The sums of leaves that may be cut between parts: those of whole ones are known, the others are
// taken of their bytes.
class SumsOfLeaves {
 public:
  SumsOfLeaves(const LeafTable& whole, std::span<const WordSum> sums)
      : whole_(whole), sums_(sums) {}
  [[nodiscard]] WordSum of(const LeafPlace& leaf, std::span<const std::byte> data) const {
    const auto found =
        std::ranges::lower_bound(whole_.all(), leaf.arena_offset, {}, &LeafPlace::arena_offset);
    const bool is_whole = found != whole_.all().end() && found->arena_offset == leaf.arena_offset &&
                          found->bytes == leaf.bytes;
    if (is_whole) return sums_[static_cast<std::size_t>(found - whole_.all().begin())];
    return word_sum(data.subspan(leaf.arena_offset, leaf.bytes), leaf.place);
  }

 private:
  const LeafTable& whole_;
  std::span<const WordSum> sums_;
};

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
  const bool has_keys = !config.keys.empty() || !config.publisher_key.empty();
  if (has_keys && !is_trusted) versions->secret_ = transport::make_pair_secret();
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
      beside_(loop, {.name = "arenas"}),
      retry_(loop, [this] { complete_next(); }) {}

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
                                     const std::vector<WordSum>& sums) {
  for (const Server& server : servers_)
    if (!server.transport->traits().maps_source)
      server.source->bucket_summed(version, bucket, sums);
}

void ServedVersions::offer(const std::shared_ptr<const Snapshot>& snapshot) {
  const Version version = snapshot->version();
  served_[version] = snapshot;
  if (!snapshot->is_complete()) return offer_changes(*snapshot);
  if (snapshot->parted()) return offer_part(snapshot);
  transport::Offer offer = offer_of(snapshot->identity(), *snapshot->plan());
  offer.leaves = snapshot->leaves();
  offer.blocks = snapshot->blocks();
  offer.data = snapshot->data();
  offer.sums = snapshot->digests().leaves;
  // The snapshot's read lease prevents the snapshotter from writing the arena again. The source
  // releases it when the last byte has been sent, which may be after withdraw().
  offer.hold = snapshot;
  offer.share = [snapshot] { return snapshot->share(); };
  offer.patch = snapshot->patch();
  for (const Server& server : servers_) server.source->offer(offer);
}

// Part 0. Nobody maps its arena, which has no other bytes.
void ServedVersions::offer_part(const std::shared_ptr<const Snapshot>& snapshot) {
  const PartedVersion& parted = *snapshot->parted();
  const BucketPlan& plan = *parted.plan();
  transport::Offer offer = offer_of(snapshot->identity(), plan);
  offer.leaves = parted.leaves();
  offer.data = snapshot->data();
  offer.complete = false;
  offer.hold = snapshot;
  std::vector<Server*> copying;
  for (Server& server : servers_)
    if (!server.transport->traits().maps_source) copying.push_back(&server);
  for (Server* server : copying) server->source->offer(offer);
  const SumsOfLeaves whole(*snapshot->leaves(), snapshot->digests().leaves);
  for (std::size_t i = 0; i < plan.bucket_count(); ++i) {
    if (plan.bucket_part(i) != 0) continue;
    std::vector<WordSum> sums;
    for (const LeafPlace& leaf : parted.leaves()->bucket(i))
      sums.push_back(whole.of(leaf, snapshot->data()));
    for (Server* server : copying) server->source->bucket_summed(snapshot->version(), i, sums);
  }
  observer_.on_parts(*snapshot);
}

void ServedVersions::offer_changes(const Snapshot& snapshot) {
  const patch::VersionChanges& changes = *snapshot.changes();
  const auto base = served_.find(changes.base);
  if (base == served_.end() || !base->second->is_complete()) {
    // Sources could not make its buckets.
    let_wait(snapshot);
    return complete_later(snapshot.version(), true);
  }
  for (const Server& server : servers_) offer_changes(snapshot, server);
}

void ServedVersions::offer_changes(const Snapshot& snapshot, const Server& server) {
  const patch::VersionChanges& changes = *snapshot.changes();
  transport::Offer offer = offer_of(snapshot.identity(), *snapshot.plan());
  offer.leaves = snapshot.leaves();
  offer.blocks = snapshot.blocks();
  offer.base = changes.base;
  offer.complete = false;
  offer.on_memory_wanted = [this, alive = alive_, version = snapshot.version()] {
    if (*alive) give_arena(version);
  };
  server.source->offer(std::move(offer));
  const std::span<const WordSum> sums = snapshot.digests().leaves;
  const LeafTable& leaves = *snapshot.leaves();
  for (std::size_t i = 0; i < leaves.bucket_count(); ++i)
    server.source->bucket_ready(
        snapshot.version(), i,
        bucket_digest(sums.subspan(leaves.first(i), leaves.bucket(i).size())), changes.buckets[i]);
}

void ServedVersions::let_wait(const Snapshot& snapshot) {
  transport::Offer offer = offer_of(snapshot.identity(), *snapshot.plan());
  offer.complete = false;
  for (const Server& server : servers_) server.source->offer(offer);
}

// ---- versions that become complete ----

void ServedVersions::make_complete(const Version& version) {
  wanted_ = version;
  complete_later(version, true);
}

void ServedVersions::give_arena(const Version& version) { complete_later(version, false); }

ServedVersions::Completion* ServedVersions::queued(const Version& version) {
  const auto found = std::ranges::find(queue_, version, &Completion::version);
  return found == queue_.end() ? nullptr : &*found;
}

void ServedVersions::complete_later(const Version& version, bool may_change_base) {
  const auto found = served_.find(version);
  if (found == served_.end() || found->second->is_complete()) return;
  Completion* wanted = queued(version);
  if (wanted == nullptr)
    wanted = &queue_.emplace_back(Completion{.version = version, .retry_after = kRetryFirst});
  if (may_change_base && !wanted->may_change_base) {
    wanted->may_change_base = wanted->in_place = true;
    wanted->not_before = {};
  }
  complete_next();
}

void ServedVersions::complete_next() {
  if (running_) return;
  std::erase_if(queue_, [this](const Completion& each) {
    const auto found = served_.find(each.version);
    return found == served_.end() || found->second->is_complete();
  });
  const auto next = std::ranges::min_element(queue_, {}, &Completion::not_before);
  if (next == queue_.end()) return;
  const TimePoint at = now();
  if (next->not_before > at)
    return retry_.start(std::chrono::ceil<std::chrono::milliseconds>(next->not_before - at));
  const auto& snapshot = served_.at(next->version);
  const bool begun =
      next->in_place ? begin_exchange(snapshot, next->waits_long) : begin_beside(snapshot);
  if (!begun) retry_.start(kRetryFirst);
}

bool ServedVersions::begin_exchange(const std::shared_ptr<const Snapshot>& newer, bool waits_long) {
  struct Task {
    std::shared_ptr<const Snapshot> newer;
    Result<Snapshotter::Exchanged> outcome = fail(ErrorCode::kCancelled, "not made");
    Worked worked{};
  };
  auto task = std::make_shared<Task>(Task{.newer = newer});
  const Running running{.newer = newer->version(), .older = newer->changes()->base};
  // When tasks before it are done. Sources read neither version from then on, but for the buckets
  // that they are sending.
  auto begin = [this, alive = alive_] {
    if (*alive) give_up_both();
  };
  std::chrono::milliseconds wait = kReaderWait;
  if (waits_long)
    wait =
        kReaderWaitLong + std::chrono::milliseconds(newer->changes()->bytes() / kChangesBytesPerMs);
  const auto submitted = idle_worker().submit(
      [task, wait, snapshotter = snapshotter_, loop = &loop_, begin = std::move(begin)] {
        loop->post(begin);
        task->worked.begin = now();
        task->outcome = snapshotter->exchange(std::move(task->newer), task->worked.begin + wait);
        task->worked.end = now();
      },
      [this, alive = alive_, task] {
        if (*alive) exchanged(std::move(task->outcome), task->worked);
      });
  if (submitted) running_ = running;
  return submitted.has_value();
}

void ServedVersions::give_up_both() {
  const auto give_up = [this](const Version& version) {
    const auto found = served_.find(version);
    if (found == served_.end()) return true;
    let_wait(*found->second);
    served_.erase(found);
    return false;
  };
  running_->is_newer_withdrawn = give_up(running_->newer);
  running_->is_older_withdrawn = give_up(running_->older);
  for (const Version& version : {running_->newer, running_->older})
    for (const auto& snapshot : changes_from(version)) let_wait(*snapshot);
}

std::vector<std::shared_ptr<const Snapshot>> ServedVersions::changes_from(
    const Version& base) const {
  std::vector<std::shared_ptr<const Snapshot>> found;
  for (const auto& [version, snapshot] : served_)
    if (snapshot->changes() && snapshot->changes()->base == base) found.push_back(snapshot);
  return found;
}

void ServedVersions::exchanged(Result<Snapshotter::Exchanged> outcome, const Worked& worked) {
  fail_point("versions_exchanged");
  const Running ended = *std::exchange(running_, std::nullopt);
  if (!outcome) {
    const std::string lost = fmt::format(
        "{} and {} are not served any more by this trainer: {}; the next version is "
        "copied",
        ended.newer.to_string(), ended.older.to_string(), outcome.error().message());
    observer_.on_lost(lost);
    for (const Version& version : {ended.newer, ended.older})
      withdraw(version, "the trainer has lost the version");
    return complete_next();
  }
  // The complete one first: the other one is offered as what changes from it.
  const auto offer_if = [this](const std::shared_ptr<const Snapshot>& snapshot, bool is_withdrawn) {
    if (!is_withdrawn) offer(snapshot);
  };
  const auto offer_others = [this, &ended] {
    for (const Version& version : {ended.newer, ended.older})
      for (const auto& snapshot : changes_from(version)) offer_changes(*snapshot);
  };
  if (outcome->failure) {
    offer_if(outcome->older, ended.is_older_withdrawn);
    offer_if(outcome->newer, ended.is_newer_withdrawn);
    offer_others();
    if (Completion* wanted = queued(ended.newer)) {
      const bool was_long = std::exchange(wanted->waits_long, false);
      readers_hang_ = readers_hang_ || was_long;
      wanted->waits_long = !was_long && !readers_hang_;
      wanted->in_place = wanted->waits_long;
    }
    return complete_next();
  }
  readers_hang_ = false;
  offer_if(outcome->newer, ended.is_newer_withdrawn);
  offer_if(outcome->older, ended.is_older_withdrawn);
  offer_others();
  // The fleet was told to go back meanwhile.
  if (wanted_ == ended.older) complete_later(wanted_, true);
  log_info("{} is in the arena of {}: {} in {}", ended.newer.to_string(), ended.older.to_string(),
           trace::format_bytes(outcome->bytes), trace::format_duration(worked.end - worked.begin));
  observer_.on_completed({.version = ended.newer,
                          .base = ended.older,
                          .in_place = true,
                          .bytes = outcome->bytes,
                          .begin = worked.begin,
                          .end = worked.end});
  complete_next();
}

bool ServedVersions::begin_beside(const std::shared_ptr<const Snapshot>& newer) {
  struct Task {
    std::shared_ptr<const Snapshot> newer;
    Result<std::shared_ptr<Snapshot>> outcome = fail(ErrorCode::kCancelled, "not made");
    Worked worked{};
  };
  auto task = std::make_shared<Task>(Task{.newer = newer});
  const auto submitted = idle_worker().submit(
      [task, snapshotter = snapshotter_] {
        task->worked.begin = now();
        task->outcome = snapshotter->complete_beside(*task->newer);
        task->worked.end = now();
      },
      [this, alive = alive_, task] {
        if (*alive) made_beside(*task->newer, std::move(task->outcome), task->worked);
      });
  if (submitted) running_ = Running{.newer = newer->version(), .older = newer->changes()->base};
  return submitted.has_value();
}

void ServedVersions::made_beside(const Snapshot& newer, Result<std::shared_ptr<Snapshot>> outcome,
                                 const Worked& worked) {
  const Running ended = *std::exchange(running_, std::nullopt);
  if (!served_.contains(ended.newer)) return complete_next();  // withdrawn
  if (!outcome) {
    if (Completion* wanted = queued(ended.newer)) {
      if (wanted->retry_after == kRetryFirst)
        log_warning(
            "{} is held as what changes from {}, and could not be made complete in another arena: "
            "{}; it is tried again",
            ended.newer.to_string(), ended.older.to_string(), outcome.error().message());
      const bool is_first = wanted->retry_after == kRetryFirst;
      const bool is_decided = wanted->may_change_base;
      wanted->in_place = is_decided;
      wanted->not_before = now() + wanted->retry_after;
      wanted->retry_after = std::min(2 * wanted->retry_after, kRetryLast);
      // Those who lend the arena of a decided version do so once more.
      if (!is_decided || !is_first) refuse_memory(newer, outcome.error());
      if (is_decided) give_up_changes_from(ended.older, ended.newer);
    }
    return complete_next();
  }
  offer(*outcome);
  log_info("{} is in an arena beside that of {}: {} in {}", ended.newer.to_string(),
           ended.older.to_string(), trace::format_bytes(newer.changes()->bytes()),
           trace::format_duration(worked.end - worked.begin));
  observer_.on_completed({.version = ended.newer,
                          .base = ended.older,
                          .in_place = false,
                          .bytes = newer.changes()->bytes(),
                          .begin = worked.begin,
                          .end = worked.end});
  complete_next();
}

void ServedVersions::refuse_memory(const Snapshot& snapshot, const Error& why) {
  const Version version = snapshot.version();
  for (const Server& server : servers_) {
    if (!server.transport->traits().maps_source) continue;
    server.source->withdraw(version, fmt::format("the trainer has no arena for {}: {}",
                                                 version.to_string(), why.message()));
    offer_changes(snapshot, server);
  }
}

// Such a version reads its base, so the arena cannot be changed, and there is no memory for another
// one. The fleet needs the wanted version now, and the others can be published again.
void ServedVersions::give_up_changes_from(const Version& base, const Version& wanted) {
  for (const auto& snapshot : changes_from(base)) {
    const Version version = snapshot->version();
    if (version == wanted || version == wanted_) continue;
    const std::string why = fmt::format(
        "it is held as what changes from {}, whose arena is needed for {}, and there is no memory "
        "for another one",
        base.to_string(), wanted.to_string());
    withdraw(version, why);
    observer_.on_given_up(version, why);
    if (Completion* completion = queued(wanted)) completion->not_before = {};
  }
}

void ServedVersions::withdraw(const Version& version, const std::string& reason) {
  served_.erase(version);
  if (running_ && running_->newer == version) running_->is_newer_withdrawn = true;
  if (running_ && running_->older == version) running_->is_older_withdrawn = true;
  // What is held as changes from it needs no other version from now on, or waits until then.
  if (!planted("withdrawn_base_leaves_changes"))
    for (const auto& snapshot : changes_from(version)) offer_changes(*snapshot);
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
