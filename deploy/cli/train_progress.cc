#include "deploy/cli/train_progress.h"

#include <atomic>
#include <csignal>
#include <unistd.h>

#include "deploy/cli/context.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

// Any thread may get a signal, and the one that runs the steps asks.
std::atomic<int> stop_signals = 0;
static_assert(std::atomic<int>::is_always_lock_free, "what a signal handler may touch");

}  // namespace

void stop_after_step() {
  struct sigaction action{};
  action.sa_flags = SA_RESTART;  // no file is left half written for it
  action.sa_handler = [](int) {
    if (stop_signals.fetch_add(1) > 0) ::_exit(kExitInterrupted);
  };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool asked_to_stop() noexcept { return stop_signals > 0; }

double since(TimePoint begin) { return seconds(now() - begin); }

json step_event(std::uint64_t step, const training::StepResult& result, double taken) {
  return {{"event", "step"},
          {"step", step},
          {"loss", result.loss},
          {"gradient_norm", result.gradient_norm},
          {"learning_rate", result.learning_rate},
          {"seconds", taken}};
}

json begin_event(const config::TrainConfig& config, const training::TrainingOptions& options,
                 const RunBegin& begin, bool sequential) {
  std::uint64_t parameters = 0;
  for (const moe::Parameter& parameter : moe::all_parameters(options.spec))
    parameters += parameter.elements();
  return {{"event", "begin"},
          {"ranks", sequential ? 1 : options.sizes.ranks()},
          {"sequential", sequential},
          {"pp", options.sizes.pp},
          {"vpp", options.sizes.vpp},
          {"ep", options.sizes.ep},
          {"dp", options.sizes.dp},
          {"parameters", parameters},
          {"text_bytes", begin.text ? begin.text->bytes() : 0},
          {"tokens_of_step", options.tokens_of_step()},
          {"first_step", begin.facts.step + 1},
          {"steps", config.steps}};
}

}  // namespace wsync::cli
