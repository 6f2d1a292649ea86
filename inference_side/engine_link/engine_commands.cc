// What the sidecar tells a rank, and what the rank answers.
#include <algorithm>

#include "inference_side/engine_link/engine_link.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/switch_deadlines.h"
#include "shared/base/weight_limits.h"

namespace wsync::engine {

namespace {

using control::RankState;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// Handles of a sidecar that has been replaced since are stale, whatever the driver makes of them.
Result<> check_generation(std::span<const control::BufferHandle> handles,
                          std::uint64_t generation) {
  for (std::size_t i = 0; i < handles.size(); ++i)
    if (handles[i].generation != generation)
      return fail(ErrorCode::kRefused,
                  fmt::format("IPC buffer {}: its handle is stale: it is of generation {:016x} of "
                              "the sidecar, and generation {:016x} welcomed this rank; restart the "
                              "sidecar",
                              i, handles[i].generation, generation));
  return {};
}

}  // namespace

std::string_view state_name(RankState state) noexcept {
  switch (state) {
    case RankState::kLoading:
      return "loading";
    case RankState::kServing:
      return "serving";
    case RankState::kPaused:
      return "paused";
    case RankState::kLoaded:
      return "loaded";
    case RankState::kTainted:
      return "tainted";
  }
  return "unknown";
}

bool EngineLink::accept_envelope(const control::Frame& frame) {
  const control::Envelope& envelope = frame.envelope;
  if (envelope.fence < fence_ && !planted("engine_forgets_fence")) {
    refuse(envelope, ErrorCode::kFenced,
           fmt::format("the fence of epoch {} is older than epoch {}", envelope.fence.epoch,
                       fence_.epoch));
    return false;
  }
  if (envelope.replica != description_.replica || envelope.rank != description_.rank) {
    refuse(envelope, ErrorCode::kInvalidInput,
           fmt::format("the message is for {} rank {}, this is {} rank {}", envelope.replica,
                       envelope.rank, description_.replica, description_.rank));
    return false;
  }
  const bool greeting = std::holds_alternative<control::EngineWelcome>(frame.message) ||
                        std::holds_alternative<control::Refuse>(frame.message) ||
                        std::holds_alternative<control::ErrorReply>(frame.message);
  if (!welcomed_ && !greeting) {
    refuse(envelope, ErrorCode::kRefused, "a command came before the welcome");
    return false;
  }
  fence_ = envelope.fence;
  return true;
}

void EngineLink::handle(control::Frame frame) {
  if (!accept_envelope(frame)) return;
  const control::Envelope& envelope = frame.envelope;
  std::visit(
      Overloaded{
          [&](const control::EngineWelcome& m) { on_welcome(envelope, m, std::move(frame.fds)); },
          [&](const control::Refuse& m) { on_refuse(m); },
          [&](const control::ErrorReply& m) { note_error("the sidecar says: " + m.message); },
          [&](const control::Prepare& m) { on_prepare(envelope, m, std::move(frame.fds)); },
          [&](const control::Release& m) { prepared_.erase(m.version); },
          [&](const control::Pause& m) { on_pause(envelope, m); },
          [&](const control::Load& m) { on_load(envelope, m); },
          [&](const control::BucketReady& m) { on_bucket_ready(envelope, m); },
          [&](const control::Commit& m) { on_commit(envelope, m); },
          [&](const control::Resume&) { on_resume(envelope); },
          [&](const control::ReadDigests&) { on_read_digests(envelope); },
          [&](const control::Abort& m) { on_abort(m); },
          [&](const auto& m) {
            refuse(envelope, ErrorCode::kInvalidInput,
                   fmt::format("{} is not for engines", control::message_name(m.kType)));
          },
      },
      frame.message);
}

void EngineLink::refuse(const control::Envelope& envelope, ErrorCode code, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    ++status_.refusals;
    status_.last_error = why;
  }
  log_warning("{} rank {}: refused: {}", description_.replica, description_.rank, why);
  send(envelope, control::ErrorReply{.code = static_cast<std::uint8_t>(code), .message = why});
}

void EngineLink::set_state(RankState state) {
  state_ = state;
  const std::lock_guard lock(mutex_);
  status_.state = state;
  status_.active = active_;
}

// A sidecar knows from the hello where the weights are; this is for one that did not look.
Result<> EngineLink::check_device(const control::EngineWelcome& message) const {
  const bool on_gpu = message.device_kind == DeviceKind::kCuda;
  if (on_gpu && !weights_)
    return fail(ErrorCode::kRefused,
                fmt::format("device {} of the sidecar is a GPU, this rank's weights are in host "
                            "memory: put them on that GPU (wsync engine --device cuda), or attach "
                            "to a sidecar with host devices",
                            description_.device));
  if (!on_gpu && weights_)
    return fail(ErrorCode::kRefused,
                fmt::format("device {} of the sidecar is a host device, this rank's weights are on "
                            "{}: set devices.kind: cuda for the sidecar, or keep them in host "
                            "memory (wsync engine --device host)",
                            description_.device, weights_->device().name()));
  if (message.device_kind == DeviceKind::kUnified) return {};
  if (message.buffer_bytes == 0 || message.buffer_bytes > limits::kBucketBytesMax)
    return fail(ErrorCode::kRefused,
                fmt::format("IPC buffers of {} bytes are announced, 1 to {} are allowed",
                            message.buffer_bytes, limits::kBucketBytesMax));
  return {};
}

// None where there are none, or where each load brings them.
Result<std::unique_ptr<BucketTaker>> EngineLink::map_buffers(const control::EngineWelcome& message,
                                                             std::span<const UniqueFd> fds) {
  switch (message.device_kind) {
    case DeviceKind::kUnified:
      break;
    case DeviceKind::kSeparate:
      return HostTaker::map(fds, message.buffer_bytes);
    case DeviceKind::kCuda:
      if (message.buffers.empty()) break;
      WSYNC_TRY(check_generation(message.buffers, message.generation));
      return DeviceTaker::import(*weights_, message.buffers, message.buffer_bytes);
  }
  return std::unique_ptr<BucketTaker>();
}

void EngineLink::on_welcome(const control::Envelope& envelope,
                            const control::EngineWelcome& message, std::vector<UniqueFd> fds) {
  const auto no = [&](const Error& error) {
    refuse(envelope, error.code(), error.message());
    lose(error.message());
  };
  if (auto fits = check_device(message); !fits) return no(fits.error());
  buffers_.reset();  // of an earlier welcome: the same handle is not mapped twice
  auto buffers = map_buffers(message, fds);
  if (!buffers) return no(buffers.error());
  generation_ = message.generation;
  device_kind_ = message.device_kind;
  buffer_bytes_ = message.buffer_bytes;
  buffers_ = std::move(*buffers);
  buffers_of_load_ = false;
  welcomed_ = true;
  backoff_ms_ = 0;
  {
    const std::lock_guard lock(mutex_);
    status_.attached = true;
    status_.last_error.clear();
  }
  engine_->on_attached();
}

void EngineLink::on_refuse(const control::Refuse& message) {
  refused_ = true;
  std::string sentence = "the sidecar refuses this engine: " + message.reason;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, message.problems.size()); ++i)
    sentence += fmt::format("; {}: {}", message.problems[i].tensor, message.problems[i].detail);
  note_error(sentence);
}

void EngineLink::on_prepare(const control::Envelope& envelope, const control::Prepare& message,
                            std::vector<UniqueFd> fds) {
  const std::size_t wanted = device_kind_ == DeviceKind::kUnified ? 1 : 0;
  control::Prepared reply{.version = message.version};
  if (fds.size() != wanted) {
    reply.failure =
        fmt::format("{} descriptors came with the version, {} are needed", fds.size(), wanted);
    return send(envelope, reply);
  }
  auto prepared = preparer_.prepare(message, wanted == 1 ? fds.front().get() : -1);
  if (prepared) {
    // More than any sidecar holds; the oldest gives way.
    while (prepared_.size() >= limits::kStagedCount) prepared_.erase(prepared_.begin());
    prepared_[message.version] = std::move(*prepared);
    engine_->on_prepared(message.version);
  } else {
    reply.failure = prepared.error().message();
    note_error(reply.failure);
  }
  send(envelope, reply);
}

void EngineLink::on_abort(const control::Abort& message) {
  prepared_.erase(message.version);
  // Buffers of a load that is given up are the sidecar's again when this rank has answered it.
  if (session_ && buffers_of_load_ && loading_hold_->version == message.version)
    end_load(fail(ErrorCode::kCancelled, "the load was cancelled"));
}

void EngineLink::on_pause(const control::Envelope& envelope, const control::Pause& message) {
  if (state_ != RankState::kServing || planted("engine_pause_ignored"))
    return send(envelope, control::Paused{.step = step_});
  if (!description_.leader)
    return refuse(envelope, ErrorCode::kRefused, "only the leader of a replica begins a pause");
  pending_pause_ = envelope;
  if (auto paused = engine_->pause(message.mode, message.deadline_ms); !paused) {
    pending_pause_.reset();
    refuse(envelope, paused.error().code(),
           "the engine does not pause: " + paused.error().message());
  }
}

void EngineLink::on_load(const control::Envelope& envelope, const control::Load& message) {
  const auto no = [&](const std::string& why) {
    note_error(why);
    send(envelope, control::Loaded{.version = message.version, .failure = why});
  };
  if (state_ == RankState::kServing && !planted("engine_pause_ignored"))
    return no("the rank is serving; pause it first");
  const auto found = prepared_.find(message.version);
  if (found == prepared_.end())
    return no(fmt::format("version {} has not been prepared", message.version.to_string()));
  if (auto mapped = map_buffers(message); !mapped) return no(mapped.error().message());
  const std::int64_t deadline_ms =
      message.deadline_ms == 0 ? limits::kLoadDeadlineMs : message.deadline_ms;
  session_.reset();
  loading_hold_ = found->second;
  loaded_ = {};
  load_request_ = envelope;
  if (description_.take != control::TakeMode::kAdopt && !planted("engine_forgets_taint"))
    set_state(RankState::kTainted);  // before the first byte changes
  else if (state_ == RankState::kLoaded)
    set_state(active_.none() ? RankState::kLoading : RankState::kPaused);
  session_ = std::make_unique<LoadSession>(description_, *loading_hold_, *engine_,
                                           now() + std::chrono::milliseconds(deadline_ms));
  if (auto begun = engine_->load_begin(message.version); !begun) return end_load(std::move(begun));
  if (loading_hold_->arena) return end_load(load_from_arena(message.copy_threads));
  if (session_->all_buckets()) end_load({});
}

// Before anything changes: what cannot be mapped leaves the weights as they are.
Result<> EngineLink::map_buffers(const control::Load& message) {
  if (device_kind_ != DeviceKind::kCuda) {
    if (message.buffers.empty()) return {};
    return fail(ErrorCode::kInvalidInput,
                "handles of a GPU's buffers came with a load, the sidecar's device is none");
  }
  if (message.buffers.empty() && buffers_ && !buffers_of_load_) return {};
  WSYNC_TRY(check_generation(message.buffers, generation_));
  buffers_.reset();
  buffers_ = WSYNC_TRY(DeviceTaker::import(*weights_, message.buffers, buffer_bytes_));
  buffers_of_load_ = true;
  return {};
}

Result<> EngineLink::load_from_arena(unsigned threads) {
  const auto arena = loading_hold_->arena->data();
  if (description_.take == control::TakeMode::kAdopt) return session_->adopt();
  if (description_.take == control::TakeMode::kPieces)
    return session_->take_arena(arena, copiers(threads));
  // Whole tensors are assembled a layer at a time, so that no second model lies in memory.
  const reload::LoadPlan& plan = loading_hold_->layout->plan;
  std::vector<std::span<const std::byte>> buckets;
  for (std::uint64_t bucket = 0; bucket < plan.bucket_count(); ++bucket)
    buckets.push_back(plan.bucket_of(arena, bucket));
  HostTaker taker(std::move(buckets));
  for (std::uint32_t bucket = 0; bucket < taker.slots(); ++bucket)
    WSYNC_TRY(session_->take_bucket(bucket, taker, bucket));
  return {};
}

// Beside the link's own thread; kept for the next load.
ThreadPool* EngineLink::copiers(unsigned threads) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const unsigned helpers = std::clamp(threads, 1U, cores) - 1;
  if (helpers == 0)
    copiers_.reset();
  else if (!copiers_ || copiers_->size() != helpers)
    copiers_ = std::make_unique<ThreadPool>(helpers);
  return copiers_.get();
}

void EngineLink::end_load(Result<> outcome) {
  if (outcome) outcome = session_->finish();
  control::Loaded reply{.version = loading_hold_->version,
                        .bytes = session_->bytes(),
                        .copy_ns = static_cast<std::uint64_t>(session_->copy_time().count())};
  {
    const std::lock_guard lock(mutex_);
    status_.copied_bytes += session_->copied_bytes();
  }
  session_.reset();
  if (std::exchange(buffers_of_load_, false)) buffers_.reset();
  if (outcome) {
    loaded_ = reply.version;
    set_state(RankState::kLoaded);
    engine_->on_loaded(reply.version, reply.bytes);
  } else {
    reply.failure = outcome.error().message();
    note_error(reply.failure);
  }
  send(load_request_, reply);
}

void EngineLink::on_bucket_ready(const control::Envelope& envelope,
                                 const control::BucketReady& message) {
  control::BucketDone reply{.bucket = message.bucket};
  if (!session_) {
    // A repetition of the last bucket of a load that is over needs no copy; anything else is out of
    // order.
    if (state_ != RankState::kLoaded) reply.failure = "no load is under way";
    return send(envelope, reply);
  }
  if (!buffers_ || message.slot >= buffers_->slots()) {
    reply.failure = fmt::format("there is no IPC buffer {}", message.slot);
    return send(envelope, reply);
  }
  const bool early = planted("engine_ack_before_copy");
  if (early) send(envelope, reply);
  if (!session_) return;
  auto taken = session_->take_bucket(message.bucket, *buffers_, message.slot);
  if (!taken) reply.failure = taken.error().message();
  if (!early) send(envelope, reply);
  if (!session_) return;  // the sidecar was lost while answering
  if (!taken)
    end_load(std::move(taken));
  else if (session_->all_buckets())
    end_load({});
}

void EngineLink::on_commit(const control::Envelope& envelope, const control::Commit& message) {
  control::Committed reply{.version = message.version};
  if (state_ == RankState::kPaused && active_ == message.version && !message.version.none())
    return send(envelope, reply);
  if (state_ != RankState::kLoaded || loaded_ != message.version) {
    reply.failure =
        fmt::format("version {} is not loaded: the rank is {}{}", message.version.to_string(),
                    state_name(state_),
                    state_ == RankState::kLoaded ? " with " + loaded_.to_string() : std::string());
    note_error(reply.failure);
    return send(envelope, reply);
  }
  if (auto committed = engine_->commit(message.version); !committed) {
    set_state(RankState::kTainted);
    reply.failure = committed.error().message();
    note_error(reply.failure);
    return send(envelope, reply);
  }
  active_ = message.version;
  loaded_ = {};
  if (description_.take == control::TakeMode::kAdopt && !planted("adopted_lease_let_go"))
    active_hold_ = loading_hold_;
  loading_hold_.reset();
  set_state(RankState::kPaused);
  send(envelope, reply);
}

void EngineLink::on_resume(const control::Envelope& envelope) {
  if (!description_.leader)
    return refuse(envelope, ErrorCode::kRefused, "only the leader of a replica is resumed");
  if (state_ != RankState::kServing && state_ != RankState::kPaused)
    return refuse(envelope, ErrorCode::kRefused,
                  fmt::format("a rank that is {} is not resumed", state_name(state_)));
  if (state_ == RankState::kPaused || pending_pause_) {
    if (auto resumed = engine_->resume(); !resumed) {
      pending_pause_.reset();
      return refuse(envelope, resumed.error().code(),
                    "the engine does not resume: " + resumed.error().message());
    }
    if (pending_pause_) answer_overtaken_pause();
    set_state(RankState::kServing);
  }
  send(envelope, control::Resumed{});
}

}  // namespace wsync::engine
