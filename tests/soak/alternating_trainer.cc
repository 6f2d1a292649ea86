#include "tests/soak/alternating_trainer.h"

#include <array>
#include <utility>

#include "shared/base/format.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/training/checkpoint.h"
#include "trainer_side/training/parameters.h"

namespace wsync::soak {
namespace {

using control::PublishState;

// The seeds give different matrices. Norms start as ones in each set.
constexpr std::array<std::uint64_t, 2> kSeeds{1, 2};
constexpr double kDeviation = 0.3;

Result<config::TrainerConfig> config_of(const std::string& run_directory,
                                        const std::string& state_directory) {
  return config::load_trainer({.file = {},
                               .environment = {},
                               .set = {"run_dir=" + run_directory, "state_dir=" + state_directory,
                                       "pause_mode=keep", "bucket_bytes=1MiB"}});
}

void round_all(training::ParameterSet& parameters) {
  for (float& value : parameters.all())
    value = training::from_bfloat16(training::to_bfloat16(value));
}

// Few values, so that a patch is worth making, and such that each token has another
// log-probability: in all norms, and in one of four matrices.
void change_few(training::ParameterSet& parameters) {
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const moe::Parameter& parameter = parameters.parameters()[i];
    const std::span<float> values = parameters.values(parameter.name);
    if (parameter.shape.size() == 1)
      values.front() = -values.front();
    else if (i % 4 == 0)
      values.back() += 1;
  }
}

}  // namespace

void AlternatingTrainer::add(training::ParameterSet parameters) {
  Weights& weights = weights_.emplace_back(Weights{.rounded = std::move(parameters)});
  auto tensors = std::make_shared<std::vector<publish::RankTensor>>();
  for (const moe::Parameter& parameter : weights.rounded.parameters()) {
    Bytes& values =
        weights.values.emplace_back(parameter.elements() * dtype_bits(DType::kBF16) / 8);
    training::export_bfloat16(std::as_const(weights.rounded).values(parameter.name), 0, values);
    // The tensor points to these bytes. They do not move when the list grows.
    tensors->push_back(
        {.info = {.name = parameter.name, .dtype = DType::kBF16, .shape = parameter.shape},
         .range = {},
         .bytes = std::span<const std::byte>(values)});
  }
  weights.tensors = std::move(tensors);
}

Result<std::unique_ptr<AlternatingTrainer>> AlternatingTrainer::create(
    const moe::ModelSpec& spec, const std::string& checkpoint, const std::string& run_directory,
    const std::string& state_directory) {
  std::unique_ptr<AlternatingTrainer> made(new AlternatingTrainer());
  for (const std::uint64_t seed : kSeeds) {
    training::ParameterSet parameters(moe::all_parameters(spec));
    training::initialise(parameters, seed, kDeviation);
    round_all(parameters);
    if (made->weights_.empty())
      WSYNC_TRY(training::save_model(checkpoint, spec, parameters, training::SavedAs::kBFloat16));
    training::ParameterSet nearly = parameters;
    change_few(nearly);
    round_all(nearly);
    made->add(std::move(parameters));
    made->add(std::move(nearly));
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
