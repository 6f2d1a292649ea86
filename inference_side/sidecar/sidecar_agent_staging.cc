// SidecarAgent's staging: how a version comes here, is verified and shown to the engines, and how
// it goes again.
#include <algorithm>
#include <utility>

#include "inference_side/sidecar/sidecar_agent.h"
#include "shared/base/format.h"
#include "shared/base/log.h"

namespace wsync::agent {

transport::StreamKey SidecarAgent::key_of(const control::Announce& announce) const {
  return {.fence = {.epoch = sidecar_->fence().epoch, .run_id = sidecar_->fence().run_id},
          .version = announce.version,
          .layout = announce.layout_digest};
}

void SidecarAgent::carry_out(const staging::StartStaging& command) {
  if (const auto begun = begin_staging(command); !begun)
    loop_.post([this, alive = alive_, attempt = command.attempt, error = begun.error()] {
      if (*alive) staging_failed(attempt, error);
    });
}

Result<> SidecarAgent::begin_staging(const staging::StartStaging& command) {
  const control::Announce& announce = command.announce;
  const Layout& layout = layouts_.at(announce.layout_digest);
  const bool same = arriving_ && arriving_->version == announce.version;
  if (same) arriving_->attempt = command.attempt;  // whatever ends it from here on
  if (same && arriving_->held && arriving_->held->digests().root == announce.content_digest)
    return {};  // it is all here: only the engines are waited for
  const bool tcp = command.stage.transport == control::TransportKind::kTcp;
  if (tcp && !tcp_sink_)
    return fail(ErrorCode::kRefused, "this sidecar takes weights by memfd only (transport: memfd)");
  if (!command.resume || !same || arriving_->held || arriving_->own != tcp) {
    if (arriving_) relay_withdraw(arriving_->version, "the version comes another way now");
    drop_arriving();
    arriving_.emplace(Arriving{.attempt = command.attempt,
                               .version = announce.version,
                               .begin = now(),
                               .have = std::vector<bool>(layout.plan->bucket_count(), false),
                               .own = tcp});
    staging::StagingJob job;
    job.identity.fence_epoch = sidecar_->fence().epoch;
    job.identity.fence_run_id = sidecar_->fence().run_id;
    job.identity.version_epoch = announce.version.epoch;
    job.identity.version_step = announce.version.step;
    job.identity.layout = announce.layout_digest;
    job.identity.content = announce.content_digest;
    job.identity.bucket_bytes = announce.bucket_bytes;
    job.manifest = layout.manifest;
    job.plan = layout.plan;
    // The trace outlives the store.
    job.digested = [this, plan = layout.plan, version = announce.version.to_string()](
                       std::uint64_t bucket, TimePoint begin, TimePoint end) {
      switch_trace_.digested({.version = version,
                              .bucket = bucket,
                              .offset = plan->bucket_offset(bucket),
                              .bytes = plan->bucket_size(bucket)},
                             begin, end);
    };
    const auto on_done = [this](Result<std::shared_ptr<const staging::HeldVersion>> held) {
      if (arriving_) on_staged(arriving_->attempt, std::move(held));
    };
    if (tcp) {
      WSYNC_TRY(store_->begin_own(
          std::move(job),
          [this](Result<staging::Destination> memory) { on_memory(std::move(memory)); }, on_done));
      arriving_->waiting = command;
      offer_relay(command);
    } else {
      WSYNC_TRY(store_->begin(std::move(job), on_done));
    }
  }
  arriving_->attempt = command.attempt;
  if (!arriving_->waiting) return receive(command);
  arriving_->waiting = command;  // from this source, when the memory is there
  return {};
}

void SidecarAgent::on_memory(Result<staging::Destination> memory) {
  const staging::StartStaging command = *std::exchange(arriving_->waiting, std::nullopt);
  if (!memory) return staging_failed(command.attempt, memory.error());
  arriving_->destination = std::move(*memory);
  if (const auto begun = receive(command); !begun) staging_failed(command.attempt, begun.error());
}

// Before there is memory for it as well: who asks waits, instead of being told that nobody knows
// the version.
void SidecarAgent::offer_relay(const staging::StartStaging& command) const {
  const BucketPlan& plan = *layouts_.at(command.announce.layout_digest).plan;
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

Result<> SidecarAgent::receive(const staging::StartStaging& command) {
  const Layout& layout = layouts_.at(command.announce.layout_digest);
  transport::Wanted wanted;
  wanted.source = command.stage.source;
  wanted.key = key_of(command.announce);
  wanted.content = command.announce.content_digest;
  wanted.data_bytes = layout.plan->arena_bytes();
  for (std::size_t i = 0; i < layout.plan->bucket_count(); ++i)
    wanted.buckets.push_back(
        {.offset = layout.plan->bucket_offset(i), .bytes = layout.plan->bucket_size(i)});
  const std::uint64_t attempt = command.attempt;
  const Version version = command.announce.version;
  transport::SinkCallbacks callbacks;
  callbacks.on_failure = [this, attempt](transport::StreamFailure failure) {
    staging_failed(attempt, failure.error);
  };
  if (!arriving_->own) {
    callbacks.on_bucket = [](std::uint64_t, const Digest&) {};
    callbacks.on_done = [this, version, begin = now(),
                         bytes = layout.plan->arena_bytes()](std::optional<ArenaView>&& view) {
      switch_trace_.received(
          {.version = version.to_string(), .bucket = std::nullopt, .offset = 0, .bytes = bytes},
          begin, now());
      store_->view_arrived(std::move(*view));
    };
    memfd_sink_->cancel();
    return memfd_sink_->receive(std::move(wanted), std::move(callbacks));
  }
  wanted.have = arriving_->have;
  wanted.into = arriving_->destination.data;
  wanted.hold = arriving_->destination.hold;
  if (std::none_of(arriving_->have.begin(), arriving_->have.end(), [](bool b) { return b; }))
    offer_relay(command);
  arriving_->last_received = now();
  callbacks.on_bucket = [this, version, plan = layout.plan](std::uint64_t bucket,
                                                            const Digest& digest) {
    arriving_->have[bucket] = true;
    received_bytes_ += plan->bucket_size(bucket);
    const TimePoint at = now();
    switch_trace_.received({.version = version.to_string(),
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

void SidecarAgent::on_staged(std::uint64_t attempt,
                             Result<std::shared_ptr<const staging::HeldVersion>> held) {
  if (!held) {
    staging_failed(attempt, held.error());
    return;
  }
  arriving_->held = *held;
  hub_->add_version(*held, [this, held = *held] {
    if (!arriving_ || arriving_->held != held) return;  // given up in the meantime
    const Arriving arrived = *std::exchange(arriving_, std::nullopt);
    const TimePoint end = now();
    switch_trace_.staged(arrived.version, held->data().size(), arrived.begin, end);
    metrics_.staged(held->data().size(), end - arrived.begin);
    step(staging::StagingDone{
        .attempt = arrived.attempt,
        .content_digest = held->digests().root,
        .bytes = held->data().size(),
        .staging_ns = static_cast<std::uint64_t>((end - arrived.begin).count())});
  });
}

void SidecarAgent::staging_failed(std::uint64_t attempt, const Error& error) {
  if (arriving_ && arriving_->attempt != attempt) return;
  const bool source_lost =
      error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kDeadline;
  log_warning("staging: {}", error.message());
  metrics_.failed(error.code());
  if (!source_lost && arriving_) {
    relay_withdraw(arriving_->version, error.message());
    drop_arriving();
  }
  step(staging::StagingFailed{
      .attempt = attempt, .reason = error.message(), .source_lost = source_lost});
}

void SidecarAgent::relay_withdraw(const Version& version, const std::string& why) {
  if (relay_) relay_->withdraw(version, why);
}

void SidecarAgent::carry_out(const staging::CancelStaging& command) {
  relay_withdraw(command.version, "the version was given up");
  drop_arriving();
}

// Also one that is complete and verified here: until StagingDone nobody else lets it go.
void SidecarAgent::drop_arriving() {
  memfd_sink_->cancel();
  if (tcp_sink_) tcp_sink_->cancel();  // nobody has the memory any more when it returns
  store_->abort();
  const std::optional<Arriving> dropped = std::exchange(arriving_, std::nullopt);
  if (!dropped || !dropped->held) return;
  hub_->remove_version(dropped->version);
  store_->release(dropped->version);
}

void SidecarAgent::carry_out(const staging::ReleaseVersion& command) {
  relay_withdraw(command.version, "the version was let go");
  hub_->remove_version(command.version);
  store_->release(command.version);
}

void SidecarAgent::carry_out(const staging::CheckCopy& command) {
  const auto begun = store_->recheck(
      command.version, [this, check = command.check, version = command.version](Result<> verdict) {
        if (!verdict) metrics_.failed(verdict.error().code());
        if (verdict)
          log_info("the copy of {} is good: it is not why engines cannot load it",
                   version.to_string());
        else
          log_error("the copy of {} has changed since it was staged and is let go: {}",
                    version.to_string(), verdict.error().message());
        step(staging::CopyChecked{.check = check, .intact = verdict.has_value()});
      });
  if (begun) return;
  log_error("the copy of {}: {}", command.version.to_string(), begun.error().message());
  loop_.post([this, alive = alive_, check = command.check] {
    if (*alive) step(staging::CopyChecked{.check = check, .intact = false});
  });
}

}  // namespace wsync::agent
