#include "trainer_side/run/publish_steps.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "trainer_side/training/checkpoint.h"

namespace wsync::cli {
namespace {

using control::PublishState;

std::string_view state_name(PublishState state) {
  switch (state) {
    case PublishState::kPending:
      return "pending";
    case PublishState::kSnapshotted:
      return "snapshotted";
    case PublishState::kStaged:
      return "staged";
    case PublishState::kCommitted:
      return "committed";
    case PublishState::kSuperseded:
      return "superseded";
    case PublishState::kFailed:
      return "failed";
  }
  return "?";
}

// Wait limit for an expected fleet: programs that start at the same time as this run have joined by
// then. The other ranks wait for rank 0 at the end of the step, so it is at most half of their
// deadline.
constexpr std::chrono::milliseconds kWaitLimit{10'000};
// Wait limit after a publish was abandoned: every step tries again, and loses no more than this.
constexpr std::chrono::milliseconds kWaitLimitOnceLost{50};
// Wait limits when the run is asked to end: for a snapshot to begin, and for running publishes.
constexpr std::chrono::milliseconds kWaitLimitAtEnd{1'000};
constexpr std::chrono::milliseconds kEndWaitLimit{5'000};
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::milliseconds kTellWait{2'000};

double in_seconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

bool StepPublisher::publishes(const training::TrainingOptions& options,
                              const training::Place& place) {
  return place.replica < options.sizes.ep;
}

StepPublisher::StepPublisher(const config::PublishConfig& config, training::TrainingRank& rank,
                             TrainEvents on_event, std::function<bool()> is_stopping)
    : config_(config),
      rank_(rank),
      on_event_(std::move(on_event)),
      is_stopping_(std::move(is_stopping)),
      tensors_(describe()),
      wait_limit_(std::min(kWaitLimit, rank.options().deadline / 2)) {}

Result<std::unique_ptr<StepPublisher>> StepPublisher::create(const config::PublishConfig& config,
                                                             training::TrainingRank& rank,
                                                             TrainEvents on_event,
                                                             std::function<bool()> is_stopping,
                                                             std::uint32_t incarnation) {
  std::unique_ptr<StepPublisher> publisher(
      new StepPublisher(config, rank, std::move(on_event), std::move(is_stopping)));
  const training::ParallelSizes& sizes = rank.options().sizes;
  plugin::TrainerOptions options{.config = config.trainer,
                                 .rank = rank.place().pipeline * sizes.ep + rank.place().replica,
                                 .world_size = sizes.pp * sizes.ep,
                                 .incarnation = incarnation,
                                 .keeps_snapshots = false};  // the run ends some time
  options.config.take_over = options.config.take_over || incarnation > 0;
  publisher->options_ = std::move(options);
  WSYNC_TRY(publisher->start());
  return publisher;
}

Result<> StepPublisher::start() {
  auto trainer = WSYNC_TRY(plugin::Trainer::create(options_));
  WSYNC_TRY(trainer->start());
  trainer_ = std::move(trainer);
  return {};
}

plugin::RankTensors StepPublisher::describe() const {
  auto tensors = std::make_shared<std::vector<publish::RankTensor>>();
  const auto add = [&](const training::ParameterSet& set) {
    for (const moe::Parameter& parameter : set.parameters()) {
      const std::span<const float> values = set.values(parameter.name);
      tensors->push_back(
          {.info = {.name = parameter.name, .dtype = DType::kBF16, .shape = parameter.shape},
           .range = {},
           .bytes = publish::ReadTensor(
               [values](std::uint64_t offset, std::span<std::byte> into) -> Result<> {
                 training::export_bfloat16(values, offset, into);
                 return {};
               })});
    }
  };
  if (rank_.place().replica == 0) add(std::as_const(rank_.weights().dense));
  add(std::as_const(rank_.weights().experts));
  return tensors;
}

void StepPublisher::publish(std::uint64_t step) {
  const Result<> started = trainer_ ? Result<>() : start();
  const Result<std::uint64_t> id =
      started ? trainer_->publish_async(tensors_, step, plugin::Weights::kSame)
              : fail(started.error());
  if (!id) {
    log_warning("step {} is not published: {}", step, id.error().message());
    return;
  }
  running_.push_back({.id = *id, .step = step});
  newest_ = running_.back();
  snapshotted_ = false;
}

bool StepPublisher::must_publish_again(std::uint64_t step) {
  if (rank_.place().rank != 0 || (newest_ && step < newest_->step)) return false;
  if (!trainer_) {
    if (!std::exchange(is_lost_, false) || !start()) return false;
    newest_.reset();  // `newest_` was of the previous trainer
  }
  if (newest_ && step == newest_->step) {
    const auto view = trainer_->look(newest_->id);
    if (!view) return false;  // it ended long ago
    const control::PublishStatus& status = view->status;
    if (status.state != PublishState::kFailed || !status.version.none()) return false;
  }
  return trainer_->expect(step).has_value();
}

bool StepPublisher::wait_a_little(const Running& running, PublishState state) const {
  const auto view = trainer_->wait(running.id, state, now() + kLook);
  return view || view.error().code() != ErrorCode::kDeadline;
}

void StepPublisher::do_without_the_lost(const Running& running) {
  if (rank_.group() == nullptr || rank_.group()->health()) return;
  // Fails if the trainer's thread has ended, and every publish with it.
  if (const auto told = trainer_->no_more(running.step); !told)
    log_debug("step {}: {}", running.step, told.error().message());
}

void StepPublisher::wait_snapshotted() {
  if (snapshotted_) return;
  snapshotted_ = true;
  if (running_.empty()) return;
  const Running& newest = running_.back();
  const TimePoint begun = now();
  bool told = false;
  bool given_up = false;
  do {
    if (rank_.place().rank != 0) continue;
    do_without_the_lost(newest);
    if (given_up) continue;
    if (!told && now() - begun > kTellWait) {
      told = true;
      log_warning("training waits for the fleet to begin with step {}", newest.step);
    }
    const auto wait_limit = is_stopping_() ? std::min(wait_limit_, kWaitLimitAtEnd) : wait_limit_;
    if (now() - begun < wait_limit) continue;
    given_up = true;
    if (!trainer_->give_up(newest.step)) break;  // its thread has ended, and every publish with it
  } while (!wait_a_little(newest, PublishState::kSnapshotted));
  // A failed or superseded publish has released the weights too; notify_ended() reports it.
  const auto view = trainer_->look(newest.id);
  const bool read = !given_up || (view && view->status.state != PublishState::kFailed);
  wait_limit_ = std::min(read ? kWaitLimit : kWaitLimitOnceLost, rank_.options().deadline / 2);
}

void StepPublisher::notify_ended() {
  while (!running_.empty()) {
    const auto view = trainer_->look(running_.front().id);
    if (view && !plugin::is_final(view->status.state)) return;
    if (view) notify(running_.front(), *view);
    running_.pop_front();
  }
}

Result<> StepPublisher::wait_served(std::chrono::milliseconds wait_limit) {
  if (rank_.place().rank != 0) return {};
  const TimePoint begun = now();
  bool told = false;
  while (!running_.empty() && !is_stopping_()) {
    const Running front = running_.front();
    do_without_the_lost(running_.back());
    if (rank_.group() != nullptr) WSYNC_TRY(rank_.group()->health());
    if (!wait_a_little(front, PublishState::kCommitted)) {
      if (now() - begun > wait_limit)
        return fail(ErrorCode::kDeadline,
                    fmt::format("no engine serves the weights of step {} after {} ms; `wsync "
                                "status` says which sidecars and engines are there",
                                front.step, wait_limit.count()));
      if (!told && now() - begun > kTellWait) {
        told = true;
        log_warning("waiting for engines to serve the weights of step {}", front.step);
      }
      continue;
    }
    const auto view = trainer_->look(front.id);
    running_.pop_front();
    if (!view) return fail(view.error());
    notify(front, *view);
    if (running_.empty() && view->status.state != PublishState::kCommitted)
      return fail(
          view->status.code == ErrorCode::kPartial ? ErrorCode::kPartial : ErrorCode::kRefused,
          fmt::format("the weights of step {} are not served by every engine: {}", front.step,
                      view->status.reason));
  }
  return {};
}

void StepPublisher::end_all() {
  wait_snapshotted();
  const TimePoint begun = now();
  std::optional<TimePoint> stopping;
  bool told = rank_.place().rank != 0;
  for (notify_ended(); !running_.empty(); notify_ended()) {
    if (wait_a_little(running_.front(), PublishState::kCommitted)) continue;
    if (!told && now() - begun > kTellWait) {
      told = true;
      log_warning(
          "waiting for the fleet to serve step {} (publish.deadlines); an interrupt ends the wait",
          running_.back().step);
    }
    if (is_stopping_() && !stopping) stopping = now();
    if (rank_.place().rank == 0 && stopping && now() - *stopping > kEndWaitLimit) break;
  }
  for (const Running& running : std::exchange(running_, {}))
    if (auto view = trainer_->look(running.id)) {
      view->status.state = PublishState::kFailed;
      view->status.reason = "the run was asked to end before the fleet served this step";
      notify(running, *view);
    }
  if (newest_ && trainer_)
    if (const auto view = trainer_->look(newest_->id))
      is_lost_ = view->status.state == PublishState::kFailed && view->status.version.none() &&
                 rank_.group() != nullptr && !rank_.group()->health();
  trainer_.reset();  // the other ranks wait for a message of rank 0, or for its end
}

void StepPublisher::notify(const Running& running, const plugin::PublishView& view) {
  const control::PublishStatus& status = view.status;
  if (status.state == PublishState::kCommitted) epoch_ = status.version.epoch;
  if (rank_.place().rank != 0) return;  // rank 0 reports the same publish
  on_event_({{"event", "publish"},
             {"step", running.step},
             {"state", state_name(status.state)},
             {"version", status.version.to_string()},
             {"bytes", status.bytes},
             {"content_digest", status.content_digest.to_string()},
             {"snapshot_seconds", in_seconds(status.snapshot_ns)},
             {"staged_seconds", in_seconds(status.staged_ns)},
             {"paused_seconds", in_seconds(status.paused_ns)},
             {"replicas", status.replicas},
             {"reason", status.reason}});
}

}  // namespace wsync::cli
