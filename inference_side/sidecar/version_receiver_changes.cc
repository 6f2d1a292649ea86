// Versions of which only what changes from another one is here, and how they become complete.
#include <utility>

#include "inference_side/sidecar/version_receiver.h"
#include "inference_side/staging/received_changes.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/observe/trace/progress.h"

namespace wsync::agent {
namespace {

// What reads the memory of a version that is to be changed, such as a load that is cancelled, soon
// ends. Then other memory is taken, and if there is none, the reader is awaited.
constexpr std::chrono::milliseconds kReaderWait{1'000};
constexpr std::chrono::milliseconds kMemoryWait{30'000};
constexpr std::chrono::milliseconds kReaderPoll{5};
// The trainer is writing, and did not answer all the same.
constexpr std::chrono::milliseconds kFetchAgain{100};
// How long a trainer is awaited that writes and does not answer. It holds the lock of the arena, so
// it has not ended; it may be suspended. Nobody asks it any more once another one has taken over.
constexpr std::chrono::milliseconds kWriterWait{10'000};
constexpr std::chrono::milliseconds kReplacedWriterWait{1'000};
// Replicas wait for the version then, so neither an engine that does not answer nor a patch behind
// other work is awaited long.
constexpr std::chrono::milliseconds kEngineWait{500};

}  // namespace

void VersionReceiver::complete(const staging::CompleteVersion& command) {
  const auto base = store_->find(command.base);
  completing_ =
      Completing{.command = command,
                 .begin = now(),
                 .is_mapped = base != nullptr && base->is_complete() && base->is_mapped()};
  const patch::VersionChanges* changes = store_->changes_of(command.version);
  // What leads to a newer version was made when that version came.
  if (!options_.keep_changes || changes == nullptr || command.base < command.version)
    return begin_completion();
  auto back = std::make_shared<staging::ReceivedChanges>();
  back->base = changes->base;
  back->buckets = changes->buckets;
  options_.prepare_changes(
      store_->find(command.version), back, [this] { begin_completion(); }, kEngineWait);
}

void VersionReceiver::begin_completion() {
  const staging::CompleteVersion& command = completing_->command;
  completing_->begin = now();  // readers have not been asked to end before
  if (command.in_place) {
    withdraw_relay(command.base, "the memory of the version is being changed to a newer one");
    options_.forget(command.base, true);
  }
  // Not in this call, which may answer.
  retry_.start(std::chrono::milliseconds(0));
}

void VersionReceiver::try_to_complete() {
  const staging::CompleteVersion& command = completing_->command;
  const auto waited = now() - completing_->begin;
  const bool waits = completing_->had_no_memory && waited < kMemoryWait;
  const bool in_place = command.in_place && (waited < kReaderWait || waits);
  const auto fetch = [this] {
    if (std::exchange(completing_->is_fetched, true)) return fetch_again_.start(kFetchAgain);
    completing_->fence = options_.fence();
    fetch_completed();
  };
  const auto begun =
      store_->complete(command.version, in_place, fetch,
                       [this](const staging::Store::Completed& outcome) { completed(outcome); });
  if (begun) return;
  if (begun.error().code() == ErrorCode::kBusy) return retry_.start(kReaderPoll);
  end_completion({.version = command.version, .failure = begun.error().message()});
}

// The trainer makes the version complete when the fleet is to serve it, and until then it lets the
// request wait.
void VersionReceiver::fetch_completed() {
  const auto held = store_->find(completing_->command.version);
  const BucketPlan& plan = *held->plan();
  transport::FetchRequest wanted;
  wanted.key = key_of(held->version(), held->identity().layout);
  wanted.content = held->digests().root;
  wanted.data_bytes = plan.arena_bytes();
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    wanted.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  transport::SinkCallbacks callbacks;
  callbacks.on_bucket = [](const transport::ArrivedBucket&) {};
  callbacks.on_done = [this](std::optional<ArenaView>&& view) {
    store_->arena_given(std::move(*view));
  };
  callbacks.on_failure = [this](const transport::StreamFailure& failure) {
    not_given(failure.error);
  };
  Result<> begun = fail(ErrorCode::kPeerLost, "this sidecar has no trainer on its host");
  for (const Link& link : links_) {
    const auto* source = control::find_transport(trainer_, link.transport->traits().kind);
    if (!link.completed_sink || source == nullptr) continue;
    wanted.source = source->address;
    begun = link.completed_sink->receive(std::move(wanted), std::move(callbacks));
    break;
  }
  if (begun) return;
  loop_.post([this, alive = alive_, error = begun.error()] {
    if (*alive && completing_) not_given(error);
  });
}

void VersionReceiver::fetch_again() {
  if (completing_->fence == options_.fence()) return fetch_completed();
  not_given(taken_over());  // the new trainer does not have the version
}

void VersionReceiver::not_given(const Error& error) {
  if (!completing_->not_given_at) completing_->not_given_at = now();
  const auto limit = completing_->fence == options_.fence() ? kWriterWait : kReplacedWriterWait;
  store_->arena_given(fail(error), now() - *completing_->not_given_at >= limit);
}

void VersionReceiver::completed(const staging::Store::Completed& completed) {
  const staging::CompleteVersion& command = completing_->command;
  const bool is_beside = command.in_place && !completed.in_place;
  const bool is_beside_damaged = !completed.held && !completed.in_place &&
                                 completed.held.error().code() == ErrorCode::kDigestMismatch;
  if (!completed.held && is_beside && !completing_->had_no_memory &&
      completed.held.error().code() != ErrorCode::kDigestMismatch) {
    log_warning("{}; the end of its readers is awaited", completed.held.error().message());
    completing_->had_no_memory = true;
    return retry_.start(kReaderPoll);
  }
  // The base has kept its memory, and may be loaded again.
  if (const auto base = store_->find(command.base);
      is_beside && base != nullptr && base->is_complete()) {
    if (!base->is_mapped()) offer_relay(*base);
    options_.prepare(base, nullptr, [] {}, kEngineWait);
  }
  if (!completed.held)
    return end_completion(
        {.version = command.version,
         .failure = completed.held.error().message(),
         .in_place = completed.in_place,
         .base_lost = completed.base_lost,
         .base_suspect = is_beside_damaged,
         .no_memory = completed.held.error().code() == ErrorCode::kResourceExhausted});
  const auto& held = *completed.held;
  options_.trace->completed(command.version, command.base, held->arena_bytes(), completed.in_place,
                            completing_->begin, now());
  const bool is_mapped = held->is_mapped();
  // A trainer that has ended while it wrote has left an arena without any version, which is copied.
  const bool is_changed = completed.in_place && is_mapped == completing_->is_mapped;
  log_info("{} is complete: the {} of {} was {} in {}", command.version.to_string(),
           completing_->is_mapped ? "arena" : "copy", command.base.to_string(),
           is_changed ? "changed in place" : "copied and changed",
           trace::format_duration(now() - completing_->begin));
  options_.metrics->completed(is_changed);
  if (!is_mapped) offer_relay(*held);
  options_.prepare(
      held, nullptr,
      [this, version = command.version, in_place = completed.in_place] {
        end_completion({.version = version, .failure = {}, .in_place = in_place});
      },
      kEngineWait);
}

void VersionReceiver::end_completion(staging::VersionCompleted outcome) {
  completing_.reset();
  fetch_again_.stop();
  if (!outcome.failure.empty()) {
    log_error("{}; {}", outcome.failure,
              outcome.version == options_.target() ? "it is fetched again"
                                                   : "engines cannot load it now");
    options_.metrics->completion_failed();
  }
  options_.step(std::move(outcome));
}

}  // namespace wsync::agent
