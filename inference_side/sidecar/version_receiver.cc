#include "inference_side/sidecar/version_receiver.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/config/sidecar_config.h"

namespace wsync::agent {

Result<std::unique_ptr<VersionReceiver>> VersionReceiver::create(Loop& loop,
                                                                 VersionReceiverOptions options) {
  auto receiver = std::unique_ptr<VersionReceiver>(new VersionReceiver(loop, std::move(options)));
  WSYNC_TRY(receiver->open());
  return receiver;
}

VersionReceiver::VersionReceiver(Loop& loop, VersionReceiverOptions options)
    : loop_(loop), options_(std::move(options)) {}

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
  store_ = std::make_unique<staging::Store>(store, post);
  bulk_thread_ = WSYNC_TRY(transport::tcp::UvThread::start());
  if (config.transport != TransportPolicy::kMemfd) {
    auto relay = transport::tcp::TcpSource::listen(*bulk_thread_, {.listen = config.data_address});
    if (!relay) return fail(relay.error().with_context("data_address"));
    relay_ = std::move(*relay);
    tcp_sink_ = std::make_unique<transport::tcp::TcpSink>(*bulk_thread_, post);
  }
  memfd_sink_ = WSYNC_TRY(transport::memfd::MemfdSink::create(
      post, {.on_lost = [this](const Error& why) {
        log_info("the trainer's host socket has hung up: {}", why.message());
        options_.step(staging::CoordinatorLost{});
      }}));
  return {};
}

void VersionReceiver::stop() {
  if (memfd_sink_) memfd_sink_->cancel();
  if (tcp_sink_) tcp_sink_->cancel();
}

std::string VersionReceiver::data_address() const {
  return relay_ ? relay_->address() : std::string();
}

std::uint64_t VersionReceiver::staged_bytes() const {
  return arriving_ ? store_->verified_bytes() : 0;
}

void VersionReceiver::connect_host(const std::string& socket) {
  if (options_.config->transport == TransportPolicy::kTcp || socket.empty()) return;
  // Another fence means another coordinator. The process at the other end of the old link may only
  // be suspended, so the link does not end by itself and must be closed here.
  if (std::exchange(host_link_fence_, options_.fence()) != options_.fence())
    memfd_sink_->disconnect();
  if (const auto connected = memfd_sink_->connect(socket); !connected)
    log_debug("no host link to the trainer: {}", connected.error().message());
}

// ---- arrival of a version ----

transport::StreamKey VersionReceiver::key_of(const control::Announce& announce) const {
  const control::Fence& fence = options_.fence();
  return {.fence = {.epoch = fence.epoch, .run_id = fence.run_id},
          .version = announce.version,
          .layout = announce.layout_digest};
}

void VersionReceiver::start(const staging::StartStaging& command) {
  if (const auto begun = begin(command); !begun)
    loop_.post([this, alive = alive_, attempt = command.attempt, error = begun.error()] {
      if (*alive) failed(attempt, error);
    });
}

Result<> VersionReceiver::begin(const staging::StartStaging& command) {
  const control::Announce& announce = command.announce;
  const bool same = arriving_ && arriving_->version == announce.version;
  // From here on, every end of the staging answers this attempt.
  if (same) arriving_->attempt = command.attempt;
  // All bytes are already here; only the engines' answers are missing.
  if (same && arriving_->held && arriving_->held->digests().root == announce.content_digest)
    return {};
  const bool tcp = command.stage.transport == control::TransportKind::kTcp;
  if (tcp && !tcp_sink_)
    return fail(ErrorCode::kRefused, "this sidecar takes weights by memfd only (transport: memfd)");
  if (!command.resume || !same || arriving_->held || arriving_->own != tcp)
    WSYNC_TRY(begin_job(command, tcp));
  arriving_->attempt = command.attempt;
  if (!arriving_->waiting) return receive(command);
  arriving_->waiting = command;  // continue from this source when the memory is available
  return {};
}

Result<> VersionReceiver::begin_job(const staging::StartStaging& command, bool tcp) {
  const control::Announce& announce = command.announce;
  if (arriving_) withdraw_relay(arriving_->version, "the version comes another way now");
  drop_arriving();
  const std::size_t buckets = options_.layouts->at(announce.layout_digest).plan->bucket_count();
  arriving_.emplace(Arriving{.attempt = command.attempt,
                             .version = announce.version,
                             .begin = now(),
                             .have = std::vector<bool>(buckets, false),
                             .own = tcp});
  const auto on_done = [this](Result<std::shared_ptr<const staging::HeldVersion>> held) {
    if (arriving_) staged(arriving_->attempt, std::move(held));
  };
  if (!tcp) return store_->begin(make_job(announce), on_done);
  WSYNC_TRY(store_->begin_own(
      make_job(announce),
      [this](Result<staging::Destination> memory) { memory_ready(std::move(memory)); }, on_done));
  arriving_->waiting = command;
  offer_relay(command);
  return {};
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
  // Called on the store's threads. The trace outlives the store.
  job.digested = [trace = options_.trace, plan = layout.plan,
                  version = announce.version.to_string()](std::uint64_t bucket, TimePoint begin,
                                                          TimePoint end) {
    trace->digested({.version = version,
                     .bucket = bucket,
                     .offset = plan->bucket_offset(bucket),
                     .bytes = plan->bucket_size(bucket)},
                    begin, end);
  };
  return job;
}

void VersionReceiver::memory_ready(Result<staging::Destination> memory) {
  const staging::StartStaging command = *std::exchange(arriving_->waiting, std::nullopt);
  if (!memory) return failed(command.attempt, memory.error());
  arriving_->destination = std::move(*memory);
  if (const auto begun = receive(command); !begun) failed(command.attempt, begun.error());
}

Result<> VersionReceiver::receive(const staging::StartStaging& command) {
  const BucketPlan& plan = *options_.layouts->at(command.announce.layout_digest).plan;
  transport::FetchRequest wanted;
  wanted.source = command.stage.source;
  wanted.key = key_of(command.announce);
  wanted.content = command.announce.content_digest;
  wanted.data_bytes = plan.arena_bytes();
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    wanted.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  transport::SinkCallbacks callbacks;
  callbacks.on_failure = [this, attempt = command.attempt](transport::StreamFailure failure) {
    failed(attempt, failure.error);
  };
  return arriving_->own ? receive_buckets(command, std::move(wanted), std::move(callbacks))
                        : receive_mapped(std::move(wanted), std::move(callbacks));
}

Result<> VersionReceiver::receive_mapped(transport::FetchRequest wanted,
                                         transport::SinkCallbacks callbacks) {
  callbacks.on_bucket = [](std::uint64_t, const Digest&) {};
  callbacks.on_done = [this, version = arriving_->version, begin = now(),
                       bytes = wanted.data_bytes](std::optional<ArenaView>&& view) {
    options_.trace->received(
        {.version = version.to_string(), .bucket = std::nullopt, .offset = 0, .bytes = bytes},
        begin, now());
    store_->view_arrived(std::move(*view));
  };
  memfd_sink_->cancel();
  return memfd_sink_->receive(std::move(wanted), std::move(callbacks));
}

Result<> VersionReceiver::receive_buckets(const staging::StartStaging& command,
                                          transport::FetchRequest wanted,
                                          transport::SinkCallbacks callbacks) {
  wanted.have = arriving_->have;
  wanted.into = arriving_->destination.data;
  wanted.hold = arriving_->destination.hold;
  // The earlier offer was made without memory and names no bytes, so offer again.
  if (std::ranges::none_of(arriving_->have, std::identity())) offer_relay(command);
  arriving_->last_received = now();
  callbacks.on_bucket = [this, version = arriving_->version,
                         plan = options_.layouts->at(command.announce.layout_digest).plan](
                            std::uint64_t bucket, const Digest& digest) {
    arriving_->have[bucket] = true;
    received_bytes_ += plan->bucket_size(bucket);
    const TimePoint at = now();
    options_.trace->received({.version = version.to_string(),
                              .bucket = bucket,
                              .offset = plan->bucket_offset(bucket),
                              .bytes = plan->bucket_size(bucket)},
                             std::exchange(arriving_->last_received, at), at);
    store_->bucket_arrived(bucket);
    relay_->bucket_ready(version, bucket, digest);
  };
  callbacks.on_done = [this](const std::optional<ArenaView>&) { store_->all_arrived(); };
  tcp_sink_->cancel();
  return tcp_sink_->receive(std::move(wanted), std::move(callbacks));
}

// ---- end of the arrival ----

void VersionReceiver::staged(std::uint64_t attempt,
                             Result<std::shared_ptr<const staging::HeldVersion>> held) {
  if (!held) return failed(attempt, held.error());
  arriving_->held = *held;
  options_.prepare(*held, [this, held = *held] {
    if (!arriving_ || arriving_->held != held) return;  // dropped in the meantime
    const Arriving arrived = *std::exchange(arriving_, std::nullopt);
    const TimePoint end = now();
    options_.trace->staged(arrived.version, held->data().size(), arrived.begin, end);
    options_.metrics->staged(held->data().size(), end - arrived.begin);
    options_.step(staging::StagingDone{
        .attempt = arrived.attempt,
        .content_digest = held->digests().root,
        .bytes = held->data().size(),
        .staging_ns = static_cast<std::uint64_t>((end - arrived.begin).count())});
  });
}

void VersionReceiver::failed(std::uint64_t attempt, const Error& error) {
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
  options_.step(staging::StagingFailed{
      .attempt = attempt, .reason = error.message(), .source_lost = source_lost});
}

void VersionReceiver::cancel(const staging::CancelStaging& command) {
  withdraw_relay(command.version, "the version was given up");
  drop_arriving();
}

// Drop a complete and verified version as well: before StagingDone the state machine does not know
// that it is held, so it would never release it.
void VersionReceiver::drop_arriving() {
  // Stop the sinks first: after cancel() has returned, no transport writes to the memory.
  stop();
  store_->abort();
  const std::optional<Arriving> dropped = std::exchange(arriving_, std::nullopt);
  if (!dropped || !dropped->held) return;
  options_.forget(dropped->version);
  store_->release(dropped->version);
}

// ---- held versions ----

void VersionReceiver::release(const staging::ReleaseVersion& command) {
  withdraw_relay(command.version, "the version was let go");
  options_.forget(command.version);
  store_->release(command.version);
}

void VersionReceiver::check_copy(const staging::CheckCopy& command) {
  const auto begun = store_->recheck(
      command.version, [this, check = command.check, version = command.version](Result<> verdict) {
        if (!verdict) options_.metrics->failed(verdict.error().code());
        if (verdict)
          log_info("the copy of {} is good: it is not why engines cannot load it",
                   version.to_string());
        else
          log_error("the copy of {} has changed since it was staged and is let go: {}",
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

// Offer the version even before there is memory for it, so that a sidecar that asks for it waits
// instead of getting the answer that the version is unknown.
void VersionReceiver::offer_relay(const staging::StartStaging& command) const {
  const BucketPlan& plan = *options_.layouts->at(command.announce.layout_digest).plan;
  transport::Offer offer{.key = key_of(command.announce),
                         .buckets = {},
                         .data = arriving_->destination.data,
                         .complete = false,
                         .hold = arriving_->destination.hold,
                         .share = {}};
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    offer.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  relay_->offer(std::move(offer));
}

void VersionReceiver::withdraw_relay(const Version& version, const std::string& why) {
  if (relay_) relay_->withdraw(version, why);
}

}  // namespace wsync::agent
