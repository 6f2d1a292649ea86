#include "deploy/cli/train_publish.h"

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

double in_seconds(std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

bool StepPublisher::publishes(const training::TrainingOptions& options,
                              const training::Place& place) {
  return place.replica < options.sizes.ep;
}

StepPublisher::StepPublisher(const config::PublishConfig& config, training::TrainingRank& rank,
                             TrainEvents on_event)
    : config_(config), rank_(rank), on_event_(std::move(on_event)), tensors_(describe()) {}

Result<std::unique_ptr<StepPublisher>> StepPublisher::create(const config::PublishConfig& config,
                                                             training::TrainingRank& rank,
                                                             TrainEvents on_event) {
  std::unique_ptr<StepPublisher> publisher(new StepPublisher(config, rank, std::move(on_event)));
  const training::ParallelSizes& sizes = rank.options().sizes;
  auto trainer =
      plugin::Trainer::create({.config = config.trainer,
                               .rank = rank.place().pipeline * sizes.ep + rank.place().replica,
                               .world_size = sizes.pp * sizes.ep});
  if (!trainer) return fail(std::move(trainer).error());
  publisher->trainer_ = std::move(*trainer);
  WSYNC_TRY(publisher->trainer_->start());
  return publisher;
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
  if (step % config_.every != 0) return;
  const auto id = trainer_->publish_async(tensors_, step);
  if (!id) {
    log_warning("step {} is not published: {}", step, id.error().message());
    return;
  }
  running_.push_back({.id = *id, .step = step});
  snapshotted_ = false;
}

void StepPublisher::wait_snapshotted() {
  if (snapshotted_) return;
  snapshotted_ = true;
  if (running_.empty()) return;
  // A publish that fails or is superseded has let the weights go as well: it is told by
  // tell_ended().
  (void)trainer_->wait(running_.back().id, PublishState::kSnapshotted, std::nullopt);
}

void StepPublisher::tell_ended(bool all) {
  while (!running_.empty()) {
    const Running first = running_.front();
    if (all) (void)trainer_->wait(first.id, PublishState::kCommitted, std::nullopt);
    const auto view = trainer_->look(first.id);
    if (view && !plugin::is_final(view->status.state)) return;
    if (view) tell(first, *view);
    running_.pop_front();
  }
}

void StepPublisher::tell(const Running& running, const plugin::PublishView& view) const {
  const control::PublishStatus& status = view.status;
  if (rank_.place().rank != 0) return;  // rank 0 knows as much
  on_event_({{"event", "publish"},
             {"step", running.step},
             {"state", state_name(status.state)},
             {"version", status.version.to_string()},
             {"bytes", status.bytes},
             {"snapshot_seconds", in_seconds(status.snapshot_ns)},
             {"staged_seconds", in_seconds(status.staged_ns)},
             {"paused_seconds", in_seconds(status.paused_ns)},
             {"replicas", status.replicas},
             {"reason", status.reason}});
}

}  // namespace wsync::cli
