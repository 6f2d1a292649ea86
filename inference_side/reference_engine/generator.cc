#include "inference_side/reference_engine/generator.h"

#include <algorithm>
#include <utility>

#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/units.h"

namespace wsync::engine::reference {

using generation::Batch;
using generation::Progress;
using generation::RequestId;

namespace {

constexpr std::uint64_t kBatchBytesMax = 64 * limits::kMiB;

}  // namespace

Generator::Generator(GeneratorOptions options, std::unique_ptr<generation::ModelShard> shard,
                     const HeldModel& model)
    : options_(std::move(options)),
      shard_(std::move(shard)),
      model_(model),
      scheduler_(options_.scheduler) {}

Generator::~Generator() { close(); }

Result<std::unique_ptr<Generator>> Generator::create(GeneratorOptions options,
                                                     const Manifest& manifest,
                                                     const HeldModel& model) {
  auto shard = WSYNC_TRY(generation::ModelShard::create(options.shard, manifest));
  return std::unique_ptr<Generator>(new Generator(std::move(options), std::move(shard), model));
}

void Generator::connect(std::function<void()> wake, std::function<State()> state_of) {
  wake_ = std::move(wake);
  state_of_ = std::move(state_of);
}

std::uint64_t Generator::agreement() const {
  const generation::BatchLimits limits = shard_->limits();
  const std::string text =
      fmt::format("{} {} {} {} {} {}", moe::write_config(options_.shard.spec), limits.vocabulary,
                  limits.max_positions, limits.blocks, limits.block_tokens, limits.tokens);
  // 0 is the digest of an engine that only reads.
  return digest_of(std::as_bytes(std::span(text))).low | 1U;
}

void Generator::expect_switch(CachePolicy policy) {
  const std::lock_guard lock(mutex_);
  next_switch_ = policy;
}

void Generator::weights_changed() {
  const std::lock_guard lock(mutex_);
  generation::CachePolicy policy = options_.on_switch;
  // Of the pause that this switch has begun with. A load without a pause has none.
  switch (std::exchange(next_switch_, CachePolicy::kEngine)) {
    case CachePolicy::kEngine:
      break;
    case CachePolicy::kClear:
      policy = generation::CachePolicy::kFlush;
      break;
    case CachePolicy::kKeep:
      policy = generation::CachePolicy::kKeep;
      break;
  }
  if (planted("switch_keeps_keys")) policy = generation::CachePolicy::kKeep;
  scheduler_.weights_changed(policy);
}

void Generator::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  wait_for_step_end(lock);
  notify(scheduler_.abort_all());
}

// ---- the serving thread ----

bool Generator::due() {
  const std::lock_guard lock(mutex_);
  return !paused_ && !closed_ && !scheduler_.idle();
}

bool Generator::may_stop(PauseMode mode) {
  const std::lock_guard lock(mutex_);
  if (mode == PauseMode::kAbort) notify(scheduler_.abort_all());
  switch_holds_ = mode == PauseMode::kWait;
  set_admission();
  // A client's pause freezes running sequences, so they cannot end. They continue after both the
  // switch and the client's pause are over.
  return !switch_holds_ || paused_ || !scheduler_.running();
}

void Generator::resumed() {
  const std::lock_guard lock(mutex_);
  switch_holds_ = false;
  set_admission();
}

// A rank that has just joined has none of the keys and values of the other ranks, so all are
// computed again.
void Generator::together() {
  const std::lock_guard lock(mutex_);
  scheduler_.weights_changed(generation::CachePolicy::kFlush);
}

// Distributes the leader's plan to every rank.
Result<Batch> Generator::share(const collective::Team& team, TimePoint deadline) {
  using collective::Receive;
  using collective::Send;
  const auto as_bytes = [](auto& value) { return std::as_writable_bytes(std::span(&value, 1)); };
  std::uint64_t size = 0;
  if (team.index() != 0) {
    const Receive length{.from = team.rank_of(0), .bytes = as_bytes(size)};
    WSYNC_TRY(team.group()->exchange({}, std::span(&length, 1), deadline));
    // The leader runs the same program, so a size above the maximum of any batch means a defective
    // connection.
    if (size > kBatchBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the leader announced a batch of {} bytes; at most {} are allowed",
                              size, kBatchBytesMax));
    Bytes bytes(size);
    const Receive body{.from = team.rank_of(0), .bytes = bytes};
    WSYNC_TRY(team.group()->exchange({}, std::span(&body, 1), deadline));
    return generation::decode_batch(bytes, shard_->limits());
  }
  Batch batch;
  {
    const std::lock_guard lock(mutex_);
    in_step_ = true;
    if (!paused_ && !closed_) batch = scheduler_.plan();
    planned_ = !batch.slices.empty();
  }
  if (team.size() == 1) return batch;
  const Bytes bytes = generation::encode(batch);
  size = bytes.size();
  std::vector<Send> sends;
  for (std::uint32_t member = 1; member < team.size(); ++member) {
    sends.push_back({.to = team.rank_of(member), .bytes = as_bytes(size)});
    sends.push_back({.to = team.rank_of(member), .bytes = bytes});
  }
  // Send size and batch in one exchange; two exchanges would wake each follower twice.
  WSYNC_TRY(team.group()->exchange(sends, {}, deadline));
  return batch;
}

Result<Reading> Generator::run(std::uint64_t step, const Version& version,
                               const collective::Team& team, TimePoint deadline, std::string& saw) {
  batch_ = WSYNC_TRY(share(team, deadline));
  StepReader reader(model_, version);
  auto logits = shard_->forward(batch_, reader, team, deadline);
  if (!logits)
    return fail(std::move(logits).error().with_context(fmt::format(
        "a step of {} (--max-step-tokens limits its length)", counted(batch_.tokens(), "token"))));
  logits_ = std::move(*logits);
  reader.finish();
  saw = reader.saw();
  return Reading{.value = step + batch_.tokens(), .torn = reader.torn(), .layers = reader.layers()};
}

void Generator::ended(bool done, const Version& version, const Reading& total) {
  const std::lock_guard lock(mutex_);
  if (!in_step_) return;  // refused before a step was planned
  in_step_ = false;
  if (std::exchange(planned_, false)) {
    // Tokens computed from torn weights do not belong to any version, so they are dropped.
    if (done && !total.torn)
      notify(scheduler_.take(
          version, moe::ConstMatrix(logits_, batch_.logits(), options_.scheduler.vocabulary)));
    else
      scheduler_.drop();
  }
  batch_ = {};
  changed_.notify_all();
}

void Generator::notify(std::vector<Progress> progress) {
  for (Progress& news : progress) {
    const auto found = listeners_.find(news.id);
    if (found == listeners_.end()) continue;
    found->second({.tokens = std::move(news.tokens), .finished = news.finished});
    if (news.finished) listeners_.erase(found);
  }
  changed_.notify_all();
}

void Generator::set_admission() { scheduler_.admit(client_waits_ == 0 && !switch_holds_); }

void Generator::wait_for_step_end(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !in_step_; });
}

// ---- clients ----

Result<RequestId> Generator::submit(generation::Request request, generation::Listener listener) {
  const std::lock_guard lock(mutex_);
  if (closed_) return fail(ErrorCode::kCancelled, "the engine is shutting down");
  auto id = scheduler_.add(std::move(request));
  if (!id) return id;
  listeners_.emplace(*id, std::move(listener));
  wake_();
  return id;
}

void Generator::cancel(RequestId id) {
  std::unique_lock lock(mutex_);
  listeners_.erase(id);
  wait_for_step_end(lock);
  scheduler_.cancel(id);
  changed_.notify_all();
  wake_();
}

// Lets running requests end. No waiting request begins meanwhile.
Result<> Generator::drain(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds deadline) {
  const std::uint64_t resumes = resumes_;
  const auto over = [&] {
    return closed_ || paused_ || resumes_ != resumes || (!in_step_ && !scheduler_.running());
  };
  ++client_waits_;
  set_admission();
  wake_();
  const bool in_time = changed_.wait_for(lock, deadline, over);
  --client_waits_;
  set_admission();
  wake_();
  if (!in_time)
    return fail(ErrorCode::kDeadline,
                fmt::format("{} still running after {} ms; the engine continues. Pause with a "
                            "longer deadline, or with mode abort or keep",
                            counted(scheduler_.stats().running, "request"), deadline.count()));
  if (resumes_ != resumes)
    return fail(ErrorCode::kCancelled, "the engine was resumed before this pause had begun");
  return {};
}

Result<> Generator::pause(PauseMode mode, bool clear_cache, std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  if (mode == PauseMode::kWait && !paused_) WSYNC_TRY(drain(lock, deadline));
  paused_ = true;
  wait_for_step_end(lock);
  if (mode == PauseMode::kAbort) notify(scheduler_.abort_all());
  if (clear_cache) scheduler_.weights_changed(generation::CachePolicy::kFlush);
  changed_.notify_all();
  return {};
}

void Generator::resume() {
  const std::lock_guard lock(mutex_);
  paused_ = false;
  ++resumes_;
  changed_.notify_all();
  wake_();
}

void Generator::abort(const std::vector<RequestId>& ids) {
  std::unique_lock lock(mutex_);
  wait_for_step_end(lock);
  if (ids.empty()) return notify(scheduler_.abort_all());
  for (const RequestId id : ids)
    if (auto last = scheduler_.abort(id)) notify({std::move(*last)});
  wake_();
}

bool Generator::reset_prefix_cache() {
  std::unique_lock lock(mutex_);
  wait_for_step_end(lock);
  scheduler_.forget_prefixes();
  return !scheduler_.running();
}

generation::ServiceInfo Generator::info() const {
  const State state = state_of_();
  const std::lock_guard lock(mutex_);
  return {.model = options_.model,
          .vocabulary = options_.scheduler.vocabulary,
          .max_positions = options_.scheduler.max_positions,
          .end_token = options_.shard.spec.end_token,
          .has_weights = state.has_weights,
          .version = state.version,
          .paused = paused_,
          .serving = state.serving && !paused_ && client_waits_ == 0,
          .not_serving = paused_             ? "a client has paused it"
                         : client_waits_ > 0 ? "a client waits for its requests to end"
                                             : state.why};
}

generation::SchedulerStats Generator::stats() const {
  const std::lock_guard lock(mutex_);
  return scheduler_.stats();
}

}  // namespace wsync::engine::reference
