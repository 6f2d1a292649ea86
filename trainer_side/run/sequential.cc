#include <nlohmann/json.hpp>

#include "trainer_side/run/progress.h"
#include "trainer_side/run/rank_run.h"
#include "trainer_side/training/reference_trainer.h"

namespace wsync::cli {

Result<> run_sequential(const config::TrainConfig& config, const TrainEvents& on_event) {
  stop_after_step();
  const auto options = WSYNC_TRY(training_options(config));
  auto begin = WSYNC_TRY(begin_run(config, options));
  training::ReferenceTrainer trainer(options.spec, options.optimizer,
                                     initial_weights(config, options, begin));
  if (begin.state) {
    trainer.mean() = std::move(begin.state->mean);
    trainer.variance() = std::move(begin.state->variance);
  }
  on_event(begin_event(config, options, begin, true));
  bool stopped = false;
  for (std::uint64_t step = begin.facts.step + 1; step <= config.steps && !stopped; ++step) {
    const TimePoint from = now();
    std::vector<std::vector<training::MicroBatch>> replicas;
    for (std::uint32_t replica = 0; replica < options.sizes.dp; ++replica)
      replicas.push_back(micro_batches(config, *begin.text, step, replica));
    const auto done = WSYNC_TRY(trainer.run_step(step, replicas));
    begin.facts.step = step;
    nlohmann::json event = step_event(step, done, since(from));
    event["snapshot_wait_seconds"] = 0;
    on_event(event);
    stopped = asked_to_stop() && step < config.steps;
    if (!saves_after(config, step) && (!stopped || config.save.directory.empty())) continue;
    const std::string path = training::state_directory(config.save.directory, step);
    WSYNC_TRY(training::save_state(path, {.spec = options.spec,
                                          .facts = begin.facts,
                                          .weights = trainer.weights(),
                                          .mean = trainer.mean(),
                                          .variance = trainer.variance()}));
    on_event({{"event", "saved"}, {"step", step}, {"directory", path}});
  }
  if (stopped) on_event({{"event", "stopped"}, {"step", begin.facts.step}});
  on_event({{"event", "end"}});
  return {};
}

}  // namespace wsync::cli
