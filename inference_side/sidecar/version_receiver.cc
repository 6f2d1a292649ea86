#include "inference_side/sidecar/version_receiver.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "inference_side/sidecar/version_preparation.h"
#include "inference_side/staging/held_patch.h"
#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/config/sidecar_config.h"
#include "shared/observe/trace/progress.h"
#include "shared/transport/make_transport.h"
#include "shared/weights/patch/mapped_patch.h"

namespace wsync::agent {
namespace {

// The buckets in the order in which the head of a chain fetches them: part after part. Whoever asks
// it for them in another order waits.
std::vector<std::uint64_t> by_parts(const BucketPlan& transfer) {
  std::vector<std::uint64_t> order(transfer.bucket_count());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::uint64_t i) { return transfer.bucket_part(i); });
  return order;
}

}  // namespace

Result<std::unique_ptr<VersionReceiver>> VersionReceiver::create(Loop& loop,
                                                                 VersionReceiverOptions options) {
  auto receiver = std::unique_ptr<VersionReceiver>(new VersionReceiver(loop, std::move(options)));
  WSYNC_TRY(receiver->open());
  return receiver;
}

VersionReceiver::VersionReceiver(Loop& loop, VersionReceiverOptions options)
    : loop_(loop),
      options_(std::move(options)),
      retry_(loop, [this] { try_to_complete(); }),
      fetch_again_(loop, [this] { fetch_again(); }),
      idle_(loop, [this] { release_unused(); }) {}

VersionReceiver::~VersionReceiver() {
  *alive_ = false;
  stop();
}

Result<> VersionReceiver::open() {
  const config::SidecarConfig& config = *options_.config;
  const transport::Post post = [this](std::function<void()> task, std::source_location made) {
    loop_.post(std::move(task), made);
  };
  staging::StoreOptions store;
  store.name = "wsync-" + config.name;
  store.memory_bytes = config.host_memory;
  store.huge_pages = config.memory.huge_pages;
  store.numa_node = config.memory.numa_node;
  store.on_freed = options_.arenas_retired;
  store_ = std::make_unique<staging::Store>(store, post);
  const config::NetworkConfig& network = config.network;
  const bool is_trusted = network.data_security == DataSecurity::kTrustedNetwork;
  if (is_trusted)
    log_warning(
        "data_security: trusted_network: this sidecar takes weights from other hosts without "
        "encryption");
  if (!config.key.empty() && !is_trusted) secret_ = transport::make_pair_secret();
  auto transports = WSYNC_TRY(transport::make_transports(network.transport, post,
                                                         {.run_dir = config.run_dir,
                                                          .name = "sidecar-" + config.name,
                                                          .data_address = network.data_address,
                                                          .advertise = network.advertise,
                                                          .security = network.data_security,
                                                          .secret = secret_}));
  for (auto& transport : transports) {
    Link link;
    link.sink =
        WSYNC_TRY(transport->make_sink({.on_source_lost =
                                            [this](const Error& why) {
                                              log_info("the trainer has closed its connection: {}",
                                                       why.message());
                                              options_.step(staging::CoordinatorLost{});
                                            },
                                        .on_arenas_retired = options_.arenas_retired}));
    if (transport->traits().maps_source)
      link.completed_sink =
          WSYNC_TRY(transport->make_sink({.on_arenas_retired = options_.arenas_retired}));
    else
      link.relay = WSYNC_TRY(transport->listen());
    link.transport = std::move(transport);
    links_.push_back(std::move(link));
  }
  return {};
}

void VersionReceiver::stop() {
  stop_arrival();
  for (const Link& link : links_)
    if (link.completed_sink) link.completed_sink->cancel();
}

void VersionReceiver::stop_arrival() {
  for (const Link& link : links_) link.sink->cancel();
}

std::vector<control::TransportAddress> VersionReceiver::transports() const {
  std::vector<control::TransportAddress> transports;
  for (const Link& link : links_)
    transports.push_back({.kind = std::string(link.transport->traits().kind),
                          .address = link.relay ? link.relay->address() : std::string()});
  return transports;
}

Bytes VersionReceiver::relay_secret() const {
  return secret_ ? Bytes(secret_->begin(), secret_->end()) : Bytes();
}

std::uint64_t VersionReceiver::refused_connections() const {
  std::uint64_t refused = 0;
  for (const Link& link : links_) refused += link.transport->refusals();
  return refused;
}

Result<const VersionReceiver::Link*> VersionReceiver::link_of(const std::string& kind) const {
  for (const Link& link : links_)
    if (link.transport->traits().kind == kind) return &link;
  return fail(
      ErrorCode::kRefused,
      fmt::format("the coordinator names the transport '{}', but this sidecar receives by "
                  "{} only; check the key `transport` of its configuration",
                  kind,
                  options_.config->network.transport.empty() ? transport::transport_kind_names()
                                                             : options_.config->network.transport));
}

std::uint64_t VersionReceiver::staged_bytes() const {
  return arriving_ ? store_->arrived_bytes() : 0;
}

bool VersionReceiver::maps_target() const {
  const auto held = store_->find(options_.target());
  if (held == nullptr) return false;
  if (held->is_complete()) return held->is_mapped();
  // Its trainer is changing the arena to it, or will.
  if (completing_) return completing_->is_mapped;
  const patch::VersionChanges* changes = store_->changes_of(options_.target());
  const auto base = changes == nullptr ? nullptr : store_->find(changes->base);
  return base != nullptr && base->is_complete() && base->is_mapped();
}

bool VersionReceiver::lends_arenas() const {
  const config::PatchConfig& patch = options_.config->patch;
  return patch.in_place == config::PatchMode::kAuto && patch.transfer == config::PatchMode::kAuto &&
         maps_target() && !options_.serves_from_memory();
}

void VersionReceiver::watch(const control::Welcome& welcome) {
  const std::vector<control::TransportAddress>& sources = trainer_ = welcome.transports;
  tells_parts_ = contains(welcome.capabilities, control::Capability::kParts);
  // Another fence means another coordinator, and with most of them another trainer. The process at
  // the other end of the old connection may only be suspended, so the connection does not end by
  // itself and must be closed here.
  const bool is_another_fence = std::exchange(watched_fence_, options_.fence()) != options_.fence();
  const bool is_another =
      std::exchange(watched_trainer_, welcome.trainer) != welcome.trainer || is_another_fence;
  for (const Link& link : links_) {
    if (is_another) link.sink->unwatch();
    if (is_another && link.completed_sink) link.completed_sink->unwatch();
    if (link.relay)
      link.relay->raise_fence({.epoch = watched_fence_.epoch, .run_id = watched_fence_.run_id});
    const auto* source = control::find_transport(sources, link.transport->traits().kind);
    if (source == nullptr) continue;
    if (const auto watched = link.sink->watch(source->address); !watched)
      log_debug("no connection to the trainer by {}: {}", source->kind, watched.error().message());
  }
  if (is_another && completing_ && completing_->is_fetched) not_given(taken_over());
}

// ---- arrival of a version ----

transport::StreamKey VersionReceiver::key_of(const Version& version, const Digest& layout) const {
  const control::Fence& fence = options_.fence();
  return {.fence = {.epoch = fence.epoch, .run_id = fence.run_id},
          .version = version,
          .layout = layout};
}

void VersionReceiver::start(const staging::StartStaging& command) {
  if (const auto begun = begin(command); !begun)
    loop_.post([this, alive = alive_, attempt = command.attempt, error = begun.error()] {
      if (*alive) failed(attempt, error);
    });
}

void VersionReceiver::expect(const staging::ExpectContent& command) {
  if (!arriving_ || arriving_->version != command.version) return;
  arriving_->command.announce.content_digest = command.content_digest;
  store_->expect_content(command.content_digest);
}

void VersionReceiver::count_idle_time() {
  const auto limit = options_.config->idle_release;
  if (limit.count() != 0) idle_.start(limit);
}

void VersionReceiver::release_unused() {
  count_idle_time();  // an engine may still map an arena now
  if (const std::uint64_t bytes = store_->release_unused(); bytes != 0)
    log_info("{} MiB of free arenas were given back (idle_release)", bytes / limits::kMiB);
}

Result<> VersionReceiver::begin(const staging::StartStaging& command) {
  const control::Announce& announce = command.announce;
  const OfferedLayout& layout = options_.layouts->at(announce.layout_digest);
  const bool same = arriving_ && arriving_->version == announce.version &&
                    arriving_->layout.parts == layout.parts;
  // From here on, every end of the staging answers this attempt.
  if (same) arriving_->attempt = command.attempt;
  if (same) store_->expect_content(announce.content_digest);
  // All bytes are already here; only the engines' answers are missing.
  if (same && arriving_->held && arriving_->held->digests().root == announce.content_digest)
    return {};
  const Link* link = WSYNC_TRY(link_of(command.stage.transport));
  const bool own = !link->transport->traits().maps_source;
  if (layout.part_count > 1 && !own && !planted("part_is_mapped_as_the_whole"))
    return fail(
        ErrorCode::kRefused,
        fmt::format("version {} has {} parts, which no process has together, so it cannot "
                    "be mapped by {}: the coordinator named a transport that does not copy",
                    announce.version.to_string(), layout.part_count, command.stage.transport));
  if (!command.resume || !same || arriving_->held || arriving_->own != own)
    WSYNC_TRY(begin_job(command, own));
  arriving_->attempt = command.attempt;
  arriving_->command = command;
  if (!arriving_->waiting) return receive(command);
  arriving_->waiting = command;  // continue from this source when the memory is available
  return {};
}

Result<> VersionReceiver::begin_job(const staging::StartStaging& command, bool own) {
  const control::Announce& announce = command.announce;
  if (arriving_)
    withdraw_relay(arriving_->version,
                   "this sidecar now receives the version by another transport");
  drop_arriving();
  const OfferedLayout& layout = options_.layouts->at(announce.layout_digest);
  const std::size_t buckets = layout.transfer->bucket_count();
  arriving_.emplace(Arriving{.attempt = command.attempt,
                             .version = announce.version,
                             .layout = layout,
                             .begin = now(),
                             .have = std::vector<bool>(buckets, false),
                             .own = own});
  // A free arena is not needed for what comes as changes alone.
  if (may_hold_changes(command)) {
    WSYNC_TRY(store_->begin_changes(make_job(announce), command.base, when_staged()));
    arriving_->held_on = command.base;
    if (own) offer_relay(command);
    return {};
  }
  if (own) return begin_own(command);
  count_idle_time();
  return store_->begin(make_job(announce), when_staged());
}

staging::Store::OnStaged VersionReceiver::when_staged() {
  return [this](Result<std::shared_ptr<const staging::HeldVersion>> held) {
    if (arriving_) staged(arriving_->attempt, std::move(held));
  };
}

Result<> VersionReceiver::begin_own(const staging::StartStaging& command) {
  count_idle_time();
  WSYNC_TRY(store_->begin_own(
      make_job(command.announce),
      [this](Result<staging::Destination> memory) { memory_ready(std::move(memory)); },
      when_staged()));
  arriving_->waiting = command;
  offer_relay(command);
  return {};
}

bool VersionReceiver::may_hold_changes(const staging::StartStaging& command) const {
  const config::PatchConfig& patch = options_.config->patch;
  const auto base = store_->find(command.base);
  // A version that has come by another kind is changed by this sidecar itself. One of several parts
  // is cut otherwise than the version before, so it comes in full.
  return options_.layouts->at(command.announce.layout_digest).part_count == 1 &&
         patch.in_place == config::PatchMode::kAuto && patch.transfer == config::PatchMode::kAuto &&
         base != nullptr && base->is_complete() && base->is_mapped() != arriving_->own &&
         base->identity().layout == command.announce.layout_digest &&
         base->plan()->bucket_bytes() == command.announce.bucket_bytes &&
         !options_.serves_from_memory();
}

// Whether the changes are larger than they may be in all.
bool VersionReceiver::are_too_large(const BucketPlan& plan) const {
  return static_cast<double>(arriving_->travelled_bytes) >
         options_.config->patch.max_share * static_cast<double>(plan.arena_bytes());
}

// Later, because the transport that reports the bucket must be stopped.
void VersionReceiver::give_up_changes() {
  loop_.post([this, alive = alive_, attempt = arriving_->attempt,
              why = Error(ErrorCode::kRefused,
                          fmt::format("what changes is more than patch.max_share of it: {} have "
                                      "come so far",
                                      trace::format_bytes(arriving_->travelled_bytes)))] {
    const bool is_current = *alive && arriving_ && arriving_->attempt == attempt;
    if (!is_current || arriving_->held_on.none()) return;
    stop_arrival();
    begin_with_memory(why);
  });
}

// It has turned out that more than changes must travel, or that they do not fit the base.
void VersionReceiver::begin_with_memory(const Error& why, const Version& unlike) {
  log_info("version {} needs memory beside that of {}: {}", arriving_->version.to_string(),
           arriving_->held_on.to_string(), why.message());
  store_->abort();
  const staging::StartStaging command = arriving_->command;
  arriving_ = Arriving{.attempt = command.attempt,
                       .version = arriving_->version,
                       .layout = arriving_->layout,
                       .begin = arriving_->begin,
                       .have = std::vector<bool>(arriving_->have.size(), false),
                       .own = arriving_->own,
                       .travelled_bytes = arriving_->travelled_bytes,
                       .unlike = unlike,
                       .command = command};
  const auto begin_whole = [&]() -> Result<> {
    if (arriving_->own) return begin_own(command);
    WSYNC_TRY(store_->begin(make_job(command.announce), when_staged()));
    return receive(command);
  };
  if (const auto begun = begin_whole(); !begun) failed(command.attempt, begun.error());
}

// Its trainer has it in an arena.
void VersionReceiver::begin_mapped(ArenaView view) {
  store_->abort();
  count_idle_time();
  arriving_->held_on = {};
  if (arriving_->changes && !arriving_->changes->patch) arriving_->changes.reset();
  if (const auto begun = store_->begin(make_job(arriving_->command.announce), when_staged());
      !begun)
    return failed(arriving_->attempt, begun.error());
  store_->view_arrived(std::move(view));
}

staging::StagingJob VersionReceiver::make_job(const control::Announce& announce) {
  const OfferedLayout& layout = options_.layouts->at(announce.layout_digest);
  staging::StagingJob job;
  job.identity.fence_epoch = options_.fence().epoch;
  job.identity.fence_run_id = options_.fence().run_id;
  job.identity.version_epoch = announce.version.epoch;
  job.identity.version_step = announce.version.step;
  job.identity.layout = announce.layout_digest;
  job.identity.content = announce.content_digest;
  job.identity.bucket_bytes = announce.bucket_bytes;
  job.manifest = layout.manifest;
  job.plan = layout.plan;
  job.leaves = layout.leaves;
  if (layout.part_count > 1) {
    job.transfer = layout.transfer;
    job.transfer_leaves = layout.transfer_leaves;
  }
  job.blocks = layout.blocks;
  return job;
}

void VersionReceiver::memory_ready(Result<staging::Destination> memory) {
  const staging::StartStaging command = *std::exchange(arriving_->waiting, std::nullopt);
  if (!memory) return failed(command.attempt, memory.error());
  arriving_->destination = std::move(*memory);
  if (const auto begun = receive(command); !begun) failed(command.attempt, begun.error());
}

Result<> VersionReceiver::receive(const staging::StartStaging& command) {
  const std::uint32_t parts = arriving_->layout.part_count;
  const std::vector<control::PartSource>& sources = command.stage.parts;
  if (!sources.empty() && sources.size() + 1 != parts)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the coordinator names the sources of {} parts of version {}, which was "
                    "announced with {}",
                    sources.size() + 1, command.announce.version.to_string(), parts));
  arriving_->part = next_part(command, 0).value_or(0);
  return receive_part(command);
}

// Parts are fetched one after the other, because the link of this host is the bottleneck.
std::optional<std::uint32_t> VersionReceiver::next_part(const staging::StartStaging& command,
                                                        std::uint32_t from) const {
  if (command.stage.parts.empty()) return from == 0 ? std::optional(0U) : std::nullopt;
  const BucketPlan& transfer = *arriving_->layout.transfer;
  std::optional<std::uint32_t> next;
  for (std::size_t i = 0; i < transfer.bucket_count(); ++i)
    if (const std::uint32_t part = transfer.bucket_part(i); !arriving_->have[i] && part >= from)
      next = std::min(next.value_or(part), part);
  return next;
}

void VersionReceiver::part_done(const staging::StartStaging& command) {
  const auto next = next_part(command, arriving_->part + 1);
  if (!next) return store_->all_arrived();
  arriving_->part = *next;
  if (const auto begun = receive_part(command); !begun) failed(command.attempt, begun.error());
}

Result<> VersionReceiver::receive_part(const staging::StartStaging& command) {
  const OfferedLayout& layout = arriving_->layout;
  const BucketPlan& plan = *layout.transfer;
  const control::Stage& stage = command.stage;
  const std::uint32_t part = arriving_->part;
  const control::PartSource source =
      part == 0 ? control::PartSource{stage.transport, stage.source, stage.key}
                : stage.parts.at(part - 1);
  transport::FetchRequest wanted;
  wanted.leaves = layout.transfer_leaves;
  wanted.source = source.source;
  wanted.key = key_of(command.announce.version, command.announce.layout_digest);
  if (!source.key.empty()) {
    const auto secret = transport::pair_secret_of(source.key);
    if (!secret)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the coordinator sent a key of {} bytes for version {}, expected {}",
                              source.key.size(), command.announce.version.to_string(),
                              transport::PairSecret().size()));
    wanted.pair = transport::PairKey{
        .identity = {.fence = wanted.key.fence, .receiver = options_.config->name},
        .secret = *secret};
  }
  wanted.content = command.announce.content_digest;
  wanted.data_bytes = plan.arena_bytes();
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    wanted.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  transport::SinkCallbacks callbacks;
  callbacks.on_failure = [this, attempt = command.attempt, part, parts = layout.part_count,
                          address = source.source](transport::StreamFailure failure) {
    if (failure.needs_memory && arriving_ && !arriving_->held_on.none())
      return begin_with_memory(failure.error, failure.unlike);
    if (part == 0) return failed(attempt, failure.error);
    failed(attempt, failure.error.with_context(
                        fmt::format("part {} of {} from {}", part + 1, parts, address)));
  };
  if (!arriving_->held_on.none() && !find_base(command.announce)) {
    begin_with_memory(Error(ErrorCode::kNotFound, "that version is no longer held"));
    return {};
  }
  if (arriving_->own || !arriving_->held_on.none()) expect_buckets(command, wanted, callbacks);
  if (!arriving_->own) expect_mapped(command, wanted, callbacks);
  // Of an earlier attempt, which may have used another kind.
  stop_arrival();
  const Link* link = WSYNC_TRY(link_of(source.transport));
  if (part != 0 && link->transport->traits().maps_source)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the coordinator names the transport {} for part {} of version {}, but "
                            "that does not copy",
                            source.transport, part + 1, command.announce.version.to_string()));
  return link->sink->receive(std::move(wanted), std::move(callbacks));
}

// The target, because the trainer still has it most probably; otherwise the newest one.
std::optional<transport::FetchBase> VersionReceiver::find_base(
    const control::Announce& announce) const {
  const config::PatchConfig& patch = options_.config->patch;
  if (patch.transfer != config::PatchMode::kAuto) return std::nullopt;
  if (options_.layouts->at(announce.layout_digest).part_count > 1) return std::nullopt;
  std::vector<Version> candidates = store_->versions_held();
  std::ranges::sort(candidates, std::greater());
  candidates.insert(candidates.begin(), options_.target());
  if (!arriving_->held_on.none()) candidates = {arriving_->held_on};
  for (const Version& version : candidates) {
    const auto held = store_->find(version);
    if (!held || !held->is_complete() || held->identity().layout != announce.layout_digest ||
        held->plan()->bucket_bytes() != announce.bucket_bytes)
      continue;
    return transport::FetchBase{.version = version,
                                .data = held->data(),
                                .hold = held,
                                .blocks = options_.layouts->at(announce.layout_digest).blocks,
                                .max_share = patch.max_share,
                                .sums = held->digests().leaves};
  }
  return std::nullopt;
}

// A patch that would be larger is not made, so they are dropped then.
void VersionReceiver::keep_changes(const transport::ArrivedBucket& arrived) {
  if (!arriving_->changes) return;
  const double kept = static_cast<double>(arriving_->travelled_bytes);
  if (!arrived.changes || arriving_->changes->base != arriving_->base ||
      kept > std::min(options_.config->patch.max_share, patch::kPatchShareMax) *
                 static_cast<double>(options_.layouts->at(arriving_->command.announce.layout_digest)
                                         .plan->arena_bytes()))
    arriving_->changes.reset();
  else
    arriving_->changes->buckets[arrived.bucket] = arrived.changes;
}

void VersionReceiver::keep_patch(std::shared_ptr<const SealedMemory> patch) {
  const auto link = patch::link_of(patch->bytes());
  if (!link) {
    log_warning(
        "version {}: its trainer has sent a patch that cannot be read, so engines load all "
        "bytes: {}",
        arriving_->version.to_string(), link.error().message());
    return;
  }
  fail_point("patch_received");
  arriving_->changes = std::make_shared<staging::ReceivedChanges>();
  arriving_->changes->patch = std::move(patch);
  arriving_->changes->patch_base = link->base;
}

void VersionReceiver::expect_mapped(const staging::StartStaging& command,
                                    transport::FetchRequest& wanted,
                                    transport::SinkCallbacks& callbacks) {
  const bool wants_changes = !arriving_->held_on.none();
  if (!wants_changes) callbacks.on_bucket = [](const transport::ArrivedBucket&) {};
  if (options_.keep_changes) {
    if (!wants_changes) wanted.base = find_base(command.announce);
    // Sums would ask for the changes alone.
    if (!wants_changes && wanted.base) wanted.base->sums = {};
    callbacks.on_patch = [this](std::shared_ptr<const SealedMemory> patch) {
      keep_patch(std::move(patch));
    };
  }
  callbacks.on_done = [this, version = arriving_->version, begin = now(),
                       bytes = wanted.data_bytes](std::optional<ArenaView>&& view) {
    if (!view) return store_->all_arrived();
    options_.trace->received(
        {.version = version.to_string(), .bucket = std::nullopt, .offset = 0, .bytes = bytes},
        begin, now());
    if (arriving_->held_on.none())
      store_->view_arrived(std::move(*view));
    else
      begin_mapped(std::move(*view));
  };
}

void VersionReceiver::expect_buckets(const staging::StartStaging& command,
                                     transport::FetchRequest& wanted,
                                     transport::SinkCallbacks& callbacks) {
  wanted.have = arriving_->have;
  wanted.in_full = arriving_->passed_on;
  const BucketPlan& transfer = *arriving_->layout.transfer;
  if (!command.stage.parts.empty()) {
    for (std::size_t i = 0; i < wanted.have.size(); ++i)
      if (transfer.bucket_part(i) != arriving_->part) wanted.have[i] = true;
  } else if (arriving_->layout.part_count > 1) {
    wanted.order = by_parts(transfer);
  }
  wanted.into = arriving_->destination.data;
  wanted.hold = arriving_->destination.hold;
  // The earlier offer was made without memory and names no bytes, so offer again.
  if (arriving_->held_on.none() && std::ranges::none_of(arriving_->have, std::identity()))
    offer_relay(command);
  wanted.base = find_base(command.announce);
  // What came before from another source may have been complete.
  if (options_.keep_changes && wanted.base && std::ranges::none_of(wanted.have, std::identity())) {
    arriving_->changes = std::make_shared<staging::ReceivedChanges>();
    arriving_->changes->base = wanted.base->version;
    arriving_->changes->buckets.resize(wanted.buckets.size());
  } else if (arriving_->changes &&
             (!wanted.base || wanted.base->version != arriving_->changes->base)) {
    arriving_->changes.reset();
  }
  arriving_->last_received = now();
  const Version version = arriving_->version;
  callbacks.on_bucket = [this, version, base = wanted.base ? wanted.base->version : Version(),
                         plan =
                             arriving_->layout.transfer](const transport::ArrivedBucket& arrived) {
    // An arena has come in place of the changes that were asked for.
    if (!arriving_->held_on.none() && !arrived.changes) return;
    const std::uint64_t bucket = arrived.bucket;
    arriving_->have[bucket] = true;
    received_bytes_ += arrived.payload_bytes;
    arriving_->travelled_bytes += arrived.payload_bytes;
    if (arrived.changes) {
      ++arriving_->by_changes;
      arriving_->base = base;
    }
    const TimePoint at = now();
    options_.trace->received({.version = version.to_string(),
                              .bucket = bucket,
                              .offset = plan->bucket_offset(bucket),
                              .bytes = plan->bucket_size(bucket)},
                             std::exchange(arriving_->last_received, at), at);
    keep_changes(arrived);
    const bool is_alone = !arriving_->held_on.none();
    if (is_alone && are_too_large(*plan)) {
      arriving_->have[bucket] = false;  // it is not passed on
      return give_up_changes();
    }
    if (is_alone)
      store_->changes_arrived(bucket, arrived.sums, arrived.changes);
    else
      store_->bucket_arrived(bucket, arrived.sums);
    for (const Link& link : links_)
      if (link.relay && arriving_->own)
        link.relay->bucket_ready(version, bucket, arrived.digest,
                                 is_alone ? arrived.changes : nullptr,
                                 is_alone ? std::vector<WordSum>() : arrived.sums);
  };
  callbacks.on_leaves = [this, version](const transport::ArrivedLeaves& arrived) {
    if (!arriving_->own || !arriving_->held_on.none()) return;
    arriving_->passed_on.resize(arriving_->have.size(), false);
    arriving_->passed_on[arrived.bucket] = true;
    if (!arrived.unlike.none()) arriving_->unlike = arrived.unlike;
    for (const Link& link : links_)
      if (link.relay) link.relay->leaves_ready(version, arrived);
  };
  callbacks.on_done = [this, command](const std::optional<ArenaView>&) { part_done(command); };
}

// ---- end of the arrival ----

void VersionReceiver::staged(std::uint64_t attempt,
                             Result<std::shared_ptr<const staging::HeldVersion>> held) {
  if (!held) return failed(attempt, held.error());
  arriving_->held = *held;
  const auto changes = std::exchange(arriving_->changes, nullptr);
  auto on_ready = [this, held = *held] {
    if (!arriving_ || arriving_->held != held) return;  // dropped in the meantime
    const Arriving arrived = *std::exchange(arriving_, std::nullopt);
    const TimePoint end = now();
    if (arrived.by_changes != 0)
      log_info("version {}: {} of {} have travelled, because {} of {} buckets came as changes",
               arrived.version.to_string(), trace::format_bytes(arrived.travelled_bytes),
               trace::format_bytes(held->arena_bytes()), arrived.by_changes, arrived.have.size());
    last_copy_ = {};
    if (arrived.own || !arrived.held_on.none())
      last_copy_ = {.version = arrived.version,
                    .base = arrived.base,
                    .bytes = held->arena_bytes(),
                    .travelled_bytes = arrived.travelled_bytes};
    options_.trace->staged(arrived.version, held->arena_bytes(), arrived.begin, end);
    options_.metrics->staged(held->arena_bytes(), end - arrived.begin);
    options_.step(staging::StagingDone{
        .attempt = arrived.attempt,
        .content_digest = held->digests().root,
        .bytes = held->arena_bytes(),
        .staging_ns = static_cast<std::uint64_t>((end - arrived.begin).count()),
        .base = arrived.held_on});
  };
  if ((*held)->is_complete())
    options_.prepare(*held, changes, std::move(on_ready), VersionPreparation::kAnswerWait);
  else
    options_.prepare_changes(*held, changes, std::move(on_ready), VersionPreparation::kAnswerWait);
}

void VersionReceiver::unusable(const Version& version, const Error& why) {
  if (arriving_ && arriving_->held && arriving_->version == version)
    failed(arriving_->attempt, why, why.code() == ErrorCode::kRefused);
}

void VersionReceiver::failed(std::uint64_t attempt, const Error& error, bool is_refused) {
  if (arriving_ && arriving_->attempt != attempt) return;
  const bool source_lost =
      error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kDeadline;
  log_warning("staging: {}", error.message());
  options_.metrics->failed(error.code());
  // The bytes received from a lost source are valid: another source continues from there.
  if (!source_lost && arriving_) {
    withdraw_relay(arriving_->version, error.message());
    drop_arriving();
  }
  options_.step(staging::StagingFailed{.attempt = attempt,
                                       .reason = error.message(),
                                       .source_lost = source_lost,
                                       .is_refused = is_refused});
}

void VersionReceiver::cancel(const staging::CancelStaging& command) {
  withdraw_relay(command.version, "the staging was cancelled");
  drop_arriving();
}

// Drop a complete and verified version as well: before StagingDone the state machine does not know
// that it is held, so it would never release it.
void VersionReceiver::drop_arriving() {
  // Stop the sinks first: after cancel() has returned, no transport writes to the memory.
  stop_arrival();
  store_->abort();
  const std::optional<Arriving> dropped = std::exchange(arriving_, std::nullopt);
  if (!dropped || !dropped->held) return;
  options_.forget(dropped->version, false);
  store_->release(dropped->version);
}

// ---- held versions ----

void VersionReceiver::release(const staging::ReleaseVersion& command) {
  withdraw_relay(command.version, "this sidecar has released the version");
  options_.forget(command.version, false);
  store_->release(command.version);
}

void VersionReceiver::check_copy(const staging::CheckCopy& command) {
  const auto begun = store_->recheck(
      command.version, [this, check = command.check, version = command.version](Result<> verdict) {
        if (!verdict) options_.metrics->failed(verdict.error().code());
        if (verdict)
          log_info("the copy of {} is intact, so the cause of the failed load lies elsewhere",
                   version.to_string());
        else
          log_error("the copy of {} has changed since it was staged and is released: {}",
                    version.to_string(), verdict.error().message());
        options_.step(staging::CopyChecked{.check = check, .intact = verdict.has_value()});
      });
  if (begun) return;
  log_error("the copy of {}: {}", command.version.to_string(), begun.error().message());
  loop_.post([this, alive = alive_, check = command.check] {
    if (*alive) options_.step(staging::CopyChecked{.check = check, .intact = false});
  });
}

// ---- the relay ----

Result<control::RelayReady> VersionReceiver::relay_held(const Version& version, bool with_layout) {
  const auto held = store_->find(version);
  if (held == nullptr || !held->is_complete())
    return fail(ErrorCode::kNotFound, fmt::format("sidecar '{}' does not hold {} as a whole",
                                                  options_.config->name, version.to_string()));
  if (std::ranges::none_of(links_, [](const Link& link) { return link.relay != nullptr; }))
    return fail(ErrorCode::kRefused,
                fmt::format("sidecar '{}' has no transport by which others could fetch from it "
                            "(transport: {})",
                            options_.config->name, options_.config->network.transport));
  // A new offer of the same version would end the transfers of those that fetch it now. One of an
  // older fence is good under this one as well.
  // An older coordinator does not say how the version is cut.
  const auto offered = relayed_.find(version);
  const bool is_told = offered == relayed_.end() || offered->second.empty() || tells_parts_;
  if ((offered == relayed_.end() || !is_told) && !planted("relay_is_ready_without_an_offer"))
    offer_relay(*held);
  control::RelayReady ready{.version = version,
                            .layout_digest = held->identity().layout,
                            .layout = {},
                            .content_digest = held->digests().root,
                            .bucket_bytes = held->plan()->bucket_bytes(),
                            .arena_bytes = held->arena_bytes(),
                            .failure = {},
                            .parts = {}};
  if (const auto relayed = relayed_.find(version); relayed != relayed_.end())
    ready.parts = relayed->second;
  if (!with_layout) return ready;
  ByteWriter layout;
  held->manifest()->encode(layout);
  ready.layout = std::move(layout).take();
  return ready;
}

// Offer the version even before there is memory for it, so that a sidecar that asks for it waits
// instead of getting the answer that the version is unknown.
void VersionReceiver::offer_relay(const staging::StartStaging& command) {
  const OfferedLayout& layout = arriving_->layout;
  relayed_[command.announce.version] = layout.parts;
  const BucketPlan& plan = *layout.transfer;
  transport::Offer offer{.key = key_of(command.announce.version, command.announce.layout_digest),
                         .buckets = {},
                         .data = arriving_->destination.data,
                         .leaves = layout.transfer_leaves,
                         .sums = {},
                         // Changes are those of whole leaves.
                         .blocks = layout.part_count == 1 ? layout.blocks : nullptr,
                         .complete = false,
                         .hold = arriving_->destination.hold,
                         .share = {}};
  offer.base = arriving_->held_on;
  offer.unlike = arriving_->unlike;
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    offer.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  for (const Link& link : links_)
    if (link.relay) link.relay->offer(offer);
}

// A version that has become complete in memory, in place of what changes to it.
void VersionReceiver::offer_relay(const staging::HeldVersion& version) {
  relayed_[version.version()] = {};
  const control::Fence& fence = options_.fence();
  const OfferedLayout& layout = options_.layouts->at(version.identity().layout);
  transport::Offer offer{.key = {.fence = {.epoch = fence.epoch, .run_id = fence.run_id},
                                 .version = version.version(),
                                 .layout = version.identity().layout},
                         .buckets = {},
                         .data = version.data(),
                         .leaves = version.leaves(),
                         .sums = {},
                         .blocks = layout.blocks,
                         .complete = false,
                         .hold = version.hold(),
                         .share = {}};
  const BucketPlan& plan = *version.plan();
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    offer.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  const std::span<const WordSum> sums = version.digests().leaves;
  for (const Link& link : links_) {
    if (!link.relay) continue;
    link.relay->offer(offer);
    for (std::size_t i = 0; i < plan.bucket_count(); ++i)
      link.relay->bucket_summed(
          version.version(), i,
          sums.subspan(offer.leaves->first(i), offer.leaves->bucket(i).size()));
  }
}

void VersionReceiver::withdraw_relay(const Version& version, const std::string& why) {
  relayed_.erase(version);
  for (const Link& link : links_)
    if (link.relay) link.relay->withdraw(version, why);
}

}  // namespace wsync::agent
