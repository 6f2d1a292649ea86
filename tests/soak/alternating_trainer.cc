#include "tests/soak/alternating_trainer.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/training/checkpoint.h"
#include "trainer_side/training/parameters.h"

namespace wsync::soak {
namespace {

using control::PublishState;

// The two seeds give different matrices. Norms start as ones in both sets.
constexpr std::array<std::uint64_t, 2> kSeeds{1, 2};
constexpr double kDeviation = 0.3;

Result<config::TrainerConfig> config_of(const std::string& run_directory,
                                        const std::string& state_directory) {
  return config::load_trainer({.file = {},
                               .environment = {},
                               .set = {"run_dir=" + run_directory, "state_dir=" + state_directory,
                                       "pause_mode=keep", "bucket_bytes=1MiB"}});
}

}  // namespace

Result<std::unique_ptr<AlternatingTrainer>> AlternatingTrainer::create(
    const moe::ModelSpec& spec, const std::string& checkpoint, const std::string& run_directory,
    const std::string& state_directory) {
  std::unique_ptr<AlternatingTrainer> made(new AlternatingTrainer());
  made->weights_.reserve(kSeeds.size());
  for (const std::uint64_t seed : kSeeds) {
    Weights& weights = made->weights_.emplace_back(
        Weights{.rounded = training::ParameterSet(moe::all_parameters(spec))});
    training::ParameterSet& parameters = weights.rounded;
    training::initialise(parameters, seed, kDeviation);
    for (float& value : parameters.all())
      value = training::from_bfloat16(training::to_bfloat16(value));
    if (made->weights_.size() == 1)
      WSYNC_TRY(training::save_model(checkpoint, spec, parameters, training::SavedAs::kBFloat16));
    auto tensors = std::make_shared<std::vector<publish::RankTensor>>();
    for (const moe::Parameter& parameter : parameters.parameters()) {
      Bytes& values =
          weights.values.emplace_back(parameter.elements() * dtype_bits(DType::kBF16) / 8);
      training::export_bfloat16(std::as_const(parameters).values(parameter.name), 0, values);
      // The tensor points to these bytes. They do not move when the list grows.
      tensors->push_back(
          {.info = {.name = parameter.name, .dtype = DType::kBF16, .shape = parameter.shape},
           .range = {},
           .bytes = std::span<const std::byte>(values)});
    }
    weights.tensors = std::move(tensors);
  }
  auto config = WSYNC_TRY(config_of(run_directory, state_directory));
  made->trainer_ = WSYNC_TRY(plugin::Trainer::create({.config = std::move(config)}));
  WSYNC_TRY(made->trainer_->start());
  return made;
}

const training::ParameterSet& AlternatingTrainer::weights_of(
    const Version& version) const noexcept {
  return weights_[version.step % weights_.size()].rounded;
}

Result<> AlternatingTrainer::begin() {
  ++step_;
  const auto publish =
      WSYNC_TRY(trainer_->publish_async(weights_[step_ % weights_.size()].tensors, step_));
  publish_ = publish;
  return {};
}

Result<std::optional<Published>> AlternatingTrainer::ended(std::chrono::milliseconds wait) const {
  const auto view = trainer_->wait(publish_, PublishState::kCommitted, now() + wait);
  if (!view && view.error().code() == ErrorCode::kDeadline) return std::nullopt;
  if (!view) return fail(view.error());
  const control::PublishStatus& status = view->status;
  if (status.state != PublishState::kCommitted || status.replicas != 1)
    return fail(ErrorCode::kRefused,
                fmt::format("publish {} came to {}: {}", step_, counted(status.replicas, "replica"),
                            status.reason.empty() ? "no reason given" : status.reason));
  return Published{.version = status.version, .paused_ns = status.paused_ns};
}

}  // namespace wsync::soak
