// What the sidecar tells a rank, and what the rank answers.
#include <algorithm>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "inference_side/engine/link/engine_link.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/weights/content_digest.h"

namespace wsync::engine {

namespace {

using control::RankState;

// What one poll() gives to reading tensors back: little beside a step of the engine, enough that
// all of them are read while the sidecar waits.
constexpr std::chrono::milliseconds kReadBack{2};

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string_view state_name(RankState state) {
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

// A buffer that its owner could shrink would kill this process at the next read.
Result<MappedRegion> map_ipc_buffer(int fd, std::uint64_t bytes) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info{};
  if (seals < 0 || (seals & kNeeded) != kNeeded || ::fstat(fd, &info) != 0)
    return fail(ErrorCode::kRefused, "an IPC buffer is not a memfd of sealed size");
  if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) < bytes)
    return fail(ErrorCode::kRefused,
                fmt::format("an IPC buffer has {} bytes, {} are announced", info.st_size, bytes));
  auto region = MappedRegion::map(fd, bytes, false);
  if (!region) return region;
  WSYNC_TRY(region->populate(false, 1));
  return region;
}

}  // namespace

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
          [&](const control::EngineWelcome& m) { on_welcome(m, std::move(frame.fds)); },
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
          [&](const control::Abort& m) { prepared_.erase(m.version); },
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

void EngineLink::on_welcome(const control::EngineWelcome& message, std::vector<UniqueFd> fds) {
  std::vector<MappedRegion> buffers;
  if (message.device_kind == control::DeviceKind::kSeparate) {
    if (fds.size() != 2)
      return lose(fmt::format("{} IPC buffers came with the welcome, 2 are needed", fds.size()));
    if (message.buffer_bytes == 0 || message.buffer_bytes > limits::kBucketBytesMax)
      return lose(fmt::format("IPC buffers of {} bytes are announced, 1 to {} are allowed",
                              message.buffer_bytes, limits::kBucketBytesMax));
    for (const UniqueFd& fd : fds) {
      auto region = map_ipc_buffer(fd.get(), message.buffer_bytes);
      if (!region) return lose(region.error().message());
      buffers.push_back(std::move(*region));
    }
  }
  device_kind_ = message.device_kind;
  ipc_buffers_ = std::move(buffers);
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
  const std::size_t wanted = device_kind_ == control::DeviceKind::kUnified ? 1 : 0;
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

Result<> EngineLink::load_from_arena(unsigned threads) {
  const auto arena = loading_hold_->arena->data();
  if (description_.take == control::TakeMode::kAdopt) return session_->adopt();
  if (description_.take == control::TakeMode::kPieces)
    return session_->take_arena(arena, copiers(threads));
  // Whole tensors are assembled a layer at a time, so that no second model lies in memory.
  const reload::LoadPlan& plan = loading_hold_->layout->plan;
  for (std::uint64_t bucket = 0; bucket < plan.bucket_count(); ++bucket)
    WSYNC_TRY(session_->take_bucket(bucket, plan.bucket_of(arena, bucket)));
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
  session_.reset();
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
  if (message.slot >= ipc_buffers_.size()) {
    reply.failure = fmt::format("there is no IPC buffer {}", message.slot);
    return send(envelope, reply);
  }
  if (!session_) {
    // A repetition of the last bucket of a load that is over needs no copy; anything else is out of
    // order.
    if (state_ != RankState::kLoaded) reply.failure = "no load is under way";
    return send(envelope, reply);
  }
  const bool early = planted("engine_ack_before_copy");
  if (early) send(envelope, reply);
  if (!session_) return;
  auto taken = session_->take_bucket(message.bucket, ipc_buffers_[message.slot].bytes());
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

Result<Digest> EngineLink::digest_of_tensor(std::uint32_t tensor) {
  if (description_.take == control::TakeMode::kPieces)
    return tensor_digest(description_.tensors[tensor].destination);
  if (!active_hold_ && description_.take == control::TakeMode::kAdopt)
    return fail(ErrorCode::kRefused, "no version has been adopted");
  if (description_.take == control::TakeMode::kAdopt)
    return reload::expected_digest(active_hold_->layout->plan.tensors()[tensor],
                                   active_hold_->arena->data());
  const control::EngineTensor& description = description_.tensors[tensor].description;
  if (description.dtype > static_cast<std::uint8_t>(kLastDType))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("tensor {} has an unknown dtype", description.name));
  auto shard = reload::Shard::make(dtype_bits(static_cast<DType>(description.dtype)),
                                   description.shape, description.ranges);
  if (!shard) return fail(std::move(shard).error());
  std::vector<std::byte> leaf(limits::kLeafBytes);
  std::vector<Digest> leaves;
  for (std::uint64_t at = 0; at < shard->bytes(); at += leaf.size()) {
    const auto part =
        std::span(leaf).first(std::min<std::uint64_t>(leaf.size(), shard->bytes() - at));
    WSYNC_TRY(engine_->read_tensor(tensor, at, part));
    leaves.push_back(wsync::digest_of(part));
  }
  return tensor_digest(shard->bytes(), leaves);
}

void EngineLink::on_read_digests(const control::Envelope& envelope) {
  reading_ = Reading{.request = envelope, .reply = {.version = active_}};
}

bool EngineLink::has_more_to_do() const {
  pollfd link{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&link, 1, 0) > 0;
}

// Not one tensor for each poll(): an engine that polls once for each of its steps would then need
// as many steps as it has tensors, and the sidecar does not wait that long.
void EngineLink::read_tensors() {
  const TimePoint until = now() + kReadBack;
  do read_one_tensor();
  while (reading_ && now() < until && !has_more_to_do());
  if (reading_) wake();
}

void EngineLink::read_one_tensor() {
  control::Digests& reply = reading_->reply;
  const auto next = static_cast<std::uint32_t>(reply.tensors.size());
  if (state_ != RankState::kServing && state_ != RankState::kPaused) {
    reply.failure = fmt::format("a rank that is {} holds no version", state_name(state_));
  } else if (active_ != reply.version) {
    reply.failure = fmt::format("it went on to {} while {} was read", active_.to_string(),
                                reply.version.to_string());
  } else if (next < description_.tensors.size()) {
    const control::EngineTensor& description = description_.tensors[next].description;
    auto digest = digest_of_tensor(next);
    const auto shard = reload::Shard::make(dtype_bits(static_cast<DType>(description.dtype)),
                                           description.shape, description.ranges);
    if (digest) {
      reply.tensors.push_back(
          {.name = description.name, .digest = *digest, .bytes = shard ? shard->bytes() : 0});
      return;
    }
    reply.failure = digest.error().message();
  }
  if (!reply.failure.empty()) reply.tensors.clear();
  Reading done = *std::exchange(reading_, std::nullopt);
  send(done.request, std::move(done.reply));
}

}  // namespace wsync::engine
