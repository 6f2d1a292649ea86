#include "trainer_side/plugin/trainer.h"

#include <csignal>
#include <pthread.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/round_deadlines.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/coordinator/version_names.h"
#include "trainer_side/publish/publisher.h"

namespace wsync::plugin {

Result<std::unique_ptr<Trainer>> Trainer::create(TrainerOptions options) {
  if (options.world_size == 0 || options.world_size > limits::kTrainerRankCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("world_size is {}, expected 1 to {}", options.world_size,
                            limits::kTrainerRankCount));
  if (options.rank >= options.world_size)
    return fail(ErrorCode::kInvalidInput, fmt::format("rank {} of {}: ranks are counted from 0",
                                                      options.rank, options.world_size));
  return std::unique_ptr<Trainer>(new Trainer(std::move(options)));
}

Trainer::~Trainer() {
  {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) loop_->stop();
  }
  if (thread_.joinable()) thread_.join();
}

Result<> Trainer::start() {
  std::unique_lock lock(mutex_);
  if (thread_.joinable())
    return fail(ErrorCode::kInvalidInput, "the trainer has already been started");
  started_.reset();
  // The new thread inherits this mask. Signals are therefore delivered to the threads of the
  // caller, and a write to a closed connection gives an error code instead of SIGPIPE.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  changed_.wait(lock, [this] { return started_.has_value(); });
  if (*started_) return {};
  lock.unlock();
  thread_.join();
  thread_ = {};
  return *started_;
}

void Trainer::run() {
  const auto begin = [this](Result<> result, Loop* loop, RankRole* role) {
    const std::lock_guard lock(mutex_);
    started_ = std::move(result);
    loop_ = loop;
    role_ = role;
    changed_.notify_all();
  };
  auto loop = Loop::create();
  if (!loop) return begin(fail(std::move(loop).error()), nullptr, nullptr);
  RankSettings settings{.config = options_.config,
                        .rank = options_.rank,
                        .world_size = options_.world_size,
                        .keeps_snapshots = options_.keeps_snapshots,
                        .incarnation = options_.incarnation,
                        .on_stopped = [this](const Error& reason) {
                          const std::lock_guard lock(mutex_);
                          stopped_ = reason;
                        }};
  auto role = options_.rank == 0 ? make_leader_rank(**loop, settings, board_)
                                 : make_follower_rank(**loop, settings, board_);
  if (!role) return begin(fail(std::move(role).error()), nullptr, nullptr);
  begin({}, loop->get(), role->get());
  (*loop)->run();
  {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
    role_ = nullptr;
  }
  role->reset();
  board_.fail_all(
      Error(ErrorCode::kCancelled, "the trainer was destroyed before this publish ended"));
}

Result<> Trainer::post(std::function<void(RankRole&)> work) {
  // The lock keeps the loop alive: run() clears loop_ under it before it destroys the loop.
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr) return fail(ErrorCode::kInvalidInput, "the trainer has not been started");
  loop_->post([role = role_, work = std::move(work)] { work(*role); });
  return {};
}

Result<> Trainer::check_step(std::uint64_t step) const {
  WSYNC_TRY(coordinator::check_given_step(step));
  if (options_.world_size == 1 || step != 0) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("with {} ranks a publish needs its step: all ranks name the same one",
                          options_.world_size));
}

Result<std::shared_ptr<publish::Draft>> Trainer::begin(std::vector<publish::DraftTensor> tensors,
                                                       std::uint64_t step) {
  WSYNC_TRY(check_step(step));
  if (options_.world_size == 1)
    for (const publish::DraftTensor& tensor : tensors)
      if (tensor.range)
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("tensor {}: it has a range, but no other rank has the rest",
                                tensor.info.name));
  DraftMemory memory;
  {
    const std::lock_guard lock(mutex_);
    if (role_ == nullptr) return fail(ErrorCode::kInvalidInput, "the trainer has not been started");
    memory = role_->draft_memory();
  }
  publish::SnapshotRequest request;
  request.version = {.epoch = 0, .step = step};
  request.bucket_bytes = memory.bucket_bytes;
  request.deadline = now() + options_.config.deadlines.snapshot;
  request.on_wait = [this, step] {
    (void)post([step](RankRole& role) { role.draft_awaits_memory(step); });
  };
  return publish::Draft::begin(std::move(memory.snapshotter), std::move(tensors), request,
                               publish::Publisher::threads(options_.config.snapshot_threads));
}

Result<std::uint64_t> Trainer::publish_async(RankTensors tensors, std::uint64_t step,
                                             Weights weights) {
  return publish_order({.step = step, .tensors = std::move(tensors), .draft = {}}, weights);
}

Result<std::uint64_t> Trainer::publish_async(std::shared_ptr<publish::Draft> draft,
                                             RankTensors tensors, std::uint64_t step) {
  return publish_order({.step = step, .tensors = std::move(tensors), .draft = std::move(draft)},
                       Weights::kNew);
}

Result<std::uint64_t> Trainer::publish_order(PublishOrder order, Weights weights) {
  const std::uint64_t step = order.step;
  WSYNC_TRY(check_step(step));
  const auto id = board_.open(step, options_.rank == 0 ? Weights::kNew : weights);
  if (!id) return id;
  order.id = *id;
  const Result<> posted = post([order = std::move(order)](RankRole& role) { role.publish(order); });
  if (posted) return id;
  board_.update(*id, {.step = step,
                      .state = control::PublishState::kFailed,
                      .code = posted.error().code(),
                      .reason = posted.error().message()});
  return fail(posted.error());
}

Result<> Trainer::give_up(std::uint64_t step) {
  return post([step](RankRole& role) { role.give_up(step); });
}

Result<> Trainer::expect(std::uint64_t step) {
  // Not posted: the caller tells the other ranks to publish when this has returned, and their
  // reports may arrive before a posted task has run.
  const std::lock_guard lock(mutex_);
  if (role_ == nullptr) return fail(ErrorCode::kInvalidInput, "the trainer has not been started");
  role_->expect(step);
  return {};
}

Result<> Trainer::no_more(std::uint64_t step) {
  // Posted, so that it comes after the publish of that step, which is posted too.
  return post([step](RankRole& role) { role.no_more(step); });
}

Result<PublishView> Trainer::wait(std::uint64_t publish, control::PublishState state,
                                  std::optional<TimePoint> deadline) const {
  const auto longest =
      options_.config.deadlines.publish + std::chrono::milliseconds(limits::kReportMarginMs);
  return board_.wait(publish, state, deadline.value_or(now() + longest));
}

Result<control::RollbackReply> Trainer::roll_back(const Version& to,
                                                  std::optional<std::chrono::milliseconds> time) {
  // The coordinator answers within this time. The limit also applies if its loop ends during the
  // wait.
  const config::TrainerConfig& config = options_.config;
  const auto longest = config.deadlines.pause + config.deadlines.load + config.deadlines.commit +
                       2 * std::chrono::milliseconds(limits::kReportMarginMs);
  const TimePoint deadline = now() + std::min(time.value_or(longest), longest);
  // The loop begins soon, if it is not stuck, and it may begin after a shorter time than this too.
  const TimePoint begin_by =
      std::max(deadline, now() + std::chrono::milliseconds(limits::kReportMarginMs));
  struct Answer {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result<control::RollbackReply>> reply;
    bool is_given_up = false;  // before the loop has taken it
    bool is_taken = false;
    bool has_begun = false;  // or been refused
  };
  auto answer = std::make_shared<Answer>();
  WSYNC_TRY(post([to, answer](RankRole& role) {
    {
      const std::lock_guard lock(answer->mutex);
      if (answer->is_given_up) return;
      answer->is_taken = true;
    }
    role.roll_back(to, [answer](Result<control::RollbackReply> reply) {
      const std::lock_guard lock(answer->mutex);
      answer->reply = std::move(reply);
      answer->changed.notify_all();
    });
    const std::lock_guard lock(answer->mutex);
    answer->has_begun = true;
    answer->changed.notify_all();
  }));
  std::unique_lock lock(answer->mutex);
  while (!answer->reply) {
    if (answer->has_begun && now() >= deadline)
      return fail(ErrorCode::kDeadline,
                  "the rollback did not end before the deadline; it continues");
    if (!answer->is_taken && now() >= begin_by) {
      answer->is_given_up = true;
      return fail(ErrorCode::kBusy, "the rollback could not begin before the deadline");
    }
    answer->changed.wait_for(
        lock, std::max<std::chrono::nanoseconds>((answer->has_begun ? deadline : begin_by) - now(),
                                                 std::chrono::milliseconds(1)));
  }
  return std::move(*answer->reply);
}

Result<> Trainer::check() const {
  const std::lock_guard lock(mutex_);
  if (stopped_) return fail(*stopped_);
  return {};
}

}  // namespace wsync::plugin
