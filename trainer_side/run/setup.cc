#include "trainer_side/run/setup.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "trainer_side/publish/directory_watch.h"
#include "trainer_side/run/rollouts.h"
#include "trainer_side/training/checkpoint.h"

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;

// Returns the directory whose config.json has the sizes of the model; empty if the configuration
// has them.
const std::string& spec_directory(const config::TrainConfig& config) {
  return config.resume.empty() ? config.model.checkpoint : config.resume;
}

std::string spec_file(const config::TrainConfig& config) {
  return spec_directory(config) + "/config.json";
}

// Checks that a directory to resume from is one that a run has saved.
Result<> check_resumed_directory(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error))
    return fail(ErrorCode::kNotFound, fmt::format("resume: {}: no such directory", directory));
  if (fs::exists(directory + "/config.json", error)) return {};
  std::uint64_t newest = 0;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    newest = std::max(newest, publish::step_of(entry->path()).value_or(0));
  return fail(ErrorCode::kNotFound,
              fmt::format("resume: {}: no config.json in it; {}", directory,
                          newest == 0 ? "give a step_N directory that a run saved in save.directory"
                                      : fmt::format("give the newest in it, {}",
                                                    training::state_directory(directory, newest))));
}

Result<moe::ModelSpec> spec_of(const config::TrainConfig& config) {
  if (!config.resume.empty()) WSYNC_TRY(check_resumed_directory(config.resume));
  if (const std::string& directory = spec_directory(config); !directory.empty())
    return moe::load_spec(directory);
  const config::ModelConfig& model = config.model;
  return moe::ModelSpec{.vocabulary = model.vocabulary,
                        .hidden = model.hidden,
                        .layers = model.layers,
                        .heads = model.heads,
                        .key_value_heads = model.key_value_heads,
                        .head_dim = model.head_dim,
                        .experts = model.experts,
                        .experts_per_token = model.experts_per_token,
                        .expert_hidden = model.expert_hidden,
                        .max_positions = std::max(config.data.sequence, 2048U),
                        .tied_embeddings = model.tied_embeddings};
}

Result<> check_resumed(const config::TrainConfig& config, const training::RunFacts& expected,
                       const training::RunFacts& found) {
  const auto refused = [&](const std::string& why) {
    return fail(ErrorCode::kInvalidInput, fmt::format("resume: {}: {}", config.resume, why));
  };
  if (found.step >= config.steps)
    return refused(
        fmt::format("it has taken {} steps and this run ends with step {}; give more "
                    "`steps`",
                    found.step, config.steps));
  if (found.text != expected.text && config.rollout)
    return refused(
        fmt::format("it has not trained on the task '{}' of {} digits; begin with "
                    "model.checkpoint",
                    config.rollout->task, config.rollout->digits));
  if (found.text != expected.text)
    return refused(
        fmt::format("it has trained on another text (digest {}, data.files have {}); "
                    "give its files, or begin with model.checkpoint",
                    found.text.to_string(), expected.text.to_string()));
  if (found.data_seed != expected.data_seed)
    return refused(fmt::format("its {} is {}, this run's {}",
                               config.rollout ? "rollout.seed" : "data.seed", found.data_seed,
                               expected.data_seed));
  if (found.dp != expected.dp || found.microbatches != expected.microbatches ||
      found.sequences != expected.sequences || found.sequence != expected.sequence)
    return refused(fmt::format(
        "its steps have {} replicas with {} micro-batches of {} sequences of {} bytes; this run's "
        "{}, {}, {} and {}: the steps to come would not be the same",
        found.dp, found.microbatches, found.sequences, found.sequence, expected.dp,
        expected.microbatches, expected.sequences, expected.sequence));
  return {};
}

// The model of a state has precedence over the configuration. A size that is set in the
// configuration and differs is an error. A size that equals the default is treated as not set.
Result<> check_resumed_model(const config::TrainConfig& config, const moe::ModelSpec& found) {
  using Config = config::ModelConfig;
  using Spec = moe::ModelSpec;
  struct Size {
    const char* key;
    std::uint32_t Config::* given;
    std::uint32_t Spec::* found;
  };
  constexpr std::array kSizes{
      Size{"vocabulary", &Config::vocabulary, &Spec::vocabulary},
      Size{"hidden", &Config::hidden, &Spec::hidden},
      Size{"layers", &Config::layers, &Spec::layers},
      Size{"heads", &Config::heads, &Spec::heads},
      Size{"key_value_heads", &Config::key_value_heads, &Spec::key_value_heads},
      Size{"head_dim", &Config::head_dim, &Spec::head_dim},
      Size{"experts", &Config::experts, &Spec::experts},
      Size{"experts_per_token", &Config::experts_per_token, &Spec::experts_per_token},
      Size{"expert_hidden", &Config::expert_hidden, &Spec::expert_hidden},
  };
  if (!config.model.checkpoint.empty()) return {};
  const Config left_out;
  for (const Size& size : kSizes)
    if (const std::uint32_t given = config.model.*size.given;
        given != left_out.*size.given && given != found.*size.found)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("resume: {}: its model.{} is {}, this run's is {}; leave the model's "
                              "keys out, or begin a new run",
                              config.resume, size.key, found.*size.found, given));
  if (config.model.tied_embeddings && !found.tied_embeddings)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("resume: {}: its model has a head of its own, this run's "
                            "model.tied_embeddings is true; leave it out, or begin a new run",
                            config.resume));
  return {};
}

Result<> check_directory(const char* key, const fs::path& directory) {
  if (::access(directory.empty() ? "." : directory.c_str(), W_OK | X_OK) == 0) return {};
  return fail_errno(fmt::format("{}: cannot write to {}", key, directory.string()), errno);
}

// Checks before the run that all its outputs can be written, so that a long run does not fail at
// its end.
Result<> check_outputs(const config::TrainConfig& config, std::uint64_t done) {
  for (const auto& [key, path] :
       {std::pair{"trace_file", &config.trace_file}, std::pair{"picture", &config.picture}})
    if (!path->empty()) WSYNC_TRY(check_directory(key, fs::path(*path).parent_path()));
  const std::string& directory = config.save.directory;
  if (directory.empty()) return {};
  std::error_code error;
  if (!fs::is_directory(directory, error) && !fs::create_directories(directory, error) && error)
    return fail_errno("save.directory: " + directory, error.value());
  WSYNC_TRY(check_directory("save.directory", directory));
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = publish::step_of(entry->path());
    // A run that is asked to stop can save at any step.
    if (step && *step > done && *step <= config.steps)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("save.directory: {} exists already, and this run may save step {} there; "
                      "continue from it (resume), remove it or give another directory",
                      entry->path().string(), *step));
  }
  if (error) return fail_errno("save.directory: " + directory, error.value());
  return {};
}

// Returns what determines the batches of rank 0, which all ranks must agree on.
std::string rollout_text(const config::TrainConfig& config) {
  if (!config.rollout) return "none";
  const config::RolloutConfig& c = *config.rollout;
  return fmt::format("{} {} seed {} after {} answers {}", c.task, c.digits, c.seed,
                     c.warm_start_steps, c.answers);
}

// Returns the digest of the task. It replaces that of the text if engines generate the data.
Digest problems_of(const config::RolloutConfig& config) {
  const std::string name = fmt::format("{} {}", config.task, config.digits);
  return digest_of(std::as_bytes(std::span(name)));
}

}  // namespace

Result<training::TrainingOptions> training_options(const config::TrainConfig& config) {
  const auto spec = WSYNC_TRY(spec_of(config));
  if (spec.vocabulary < config::kByteValues)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: the model has a vocabulary of {} tokens; bytes need {}",
                            spec_file(config), spec.vocabulary, config::kByteValues));
  const auto order = WSYNC_TRY(schedule::order_of(config.schedule.order));
  training::TrainingOptions options{
      .spec = spec,
      .sizes = {.pp = config.parallel.pp,
                .vpp = config.parallel.vpp,
                .ep = config.parallel.ep,
                .dp = config.parallel.dp},
      .schedule = {.order = order,
                   .shape = {.pp = config.parallel.pp,
                             .vpp = config.parallel.vpp,
                             .microbatches = config.schedule.microbatches},
                   .group = config.schedule.group,
                   .overlap = config.schedule.overlap,
                   .extra_warmup = config.schedule.extra_warmup,
                   .delay_wgrad = config.schedule.delay_wgrad},
      .offload = config.schedule.offload,
      .optimizer = {.learning_rate = config.optimizer.learning_rate,
                    .final_learning_rate = config.optimizer.final_learning_rate,
                    .warmup_steps = config.optimizer.warmup_steps,
                    .total_steps = config.steps,
                    .beta1 = config.optimizer.beta1,
                    .beta2 = config.optimizer.beta2,
                    .epsilon = config.optimizer.epsilon,
                    .weight_decay = config.optimizer.weight_decay,
                    .clip_norm = config.optimizer.clip_norm},
      .sequences = config.data.micro_batch,
      .sequence = config.data.sequence,
      .deadline = config.deadline,
      .second_holders = config.recovery.enabled && config.ranks.rendezvous.empty(),
      .run = fmt::format("steps {} save {} every {} resume {} checkpoint {} seeds {} {} publish {} "
                         "trace {} picture {} rollout {}",
                         config.steps, config.save.directory, config.save.every, config.resume,
                         config.model.checkpoint, config.model.seed, config.data.seed,
                         config.publish ? config.publish->every : 0, config.trace_file,
                         config.picture, rollout_text(config))};
  if (const auto fits = training::check_parallel(options.sizes, spec); !fits) {
    const bool by_file = !spec_directory(config).empty();
    return fail(by_file ? fits.error().with_context(spec_file(config)) : fits.error());
  }
  (void)WSYNC_TRY(training::plan_training(options));
  return options;
}

Result<RunBegin> begin_run(const config::TrainConfig& config,
                           const training::TrainingOptions& options, Outputs outputs) {
  std::optional<training::Corpus> text;
  if (!config.rollout) {
    text = WSYNC_TRY(training::Corpus::open(config.data.files, config.data.sequence));
  } else if (const auto task = task_of(config); !task) {
    return fail(task.error());
  } else if (options.spec.vocabulary != config::kByteValues) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: the model has a vocabulary of {} tokens, of which an engine may "
                            "generate any; `rollout` takes answers of bytes and needs {}",
                            spec_directory(config).empty() ? "model.vocabulary" : spec_file(config),
                            options.spec.vocabulary, config::kByteValues));
  }
  const training::RunFacts facts{
      .step = 0,
      .data_seed = config.rollout ? config.rollout->seed : config.data.seed,
      .text = text ? text->digest() : problems_of(*config.rollout),
      .dp = options.sizes.dp,
      .microbatches = options.schedule.shape.microbatches,
      .sequences = config.data.micro_batch,
      .sequence = config.data.sequence};
  RunBegin begin{.text = std::move(text), .facts = facts, .weights = {}, .state = {}};
  if (!config.resume.empty()) {
    auto state = WSYNC_TRY(training::load_state(config.resume));
    WSYNC_TRY(check_resumed_model(config, state.spec));
    WSYNC_TRY(check_resumed(config, facts, state.facts));
    begin.facts = state.facts;
    begin.state = std::move(state);
  } else if (!config.model.checkpoint.empty()) {
    auto model = WSYNC_TRY(training::load_model(config.model.checkpoint));
    begin.weights = std::move(model.parameters);
  }
  if (outputs == Outputs::kNew) WSYNC_TRY(check_outputs(config, begin.facts.step));
  return begin;
}

training::ParameterSet initial_weights(const config::TrainConfig& config,
                                       const training::TrainingOptions& options, RunBegin& begin) {
  if (begin.state) return std::move(begin.state->weights);
  if (begin.weights) return std::move(*begin.weights);
  training::ParameterSet weights(moe::all_parameters(options.spec));
  training::initialise(weights, config.model.seed);
  return weights;
}

std::vector<training::MicroBatch> micro_batches(const config::TrainConfig& config,
                                                const training::Corpus& text, std::uint64_t step,
                                                std::uint32_t replica) {
  const std::uint32_t count = config.schedule.microbatches;
  std::vector<training::MicroBatch> batches;
  for (std::uint32_t i = 0; i < count; ++i)
    batches.push_back(text.micro_batch(config.data.seed, step, std::uint64_t{replica} * count + i,
                                       config.data.micro_batch, config.data.sequence));
  return batches;
}

bool saves_after(const config::TrainConfig& config, std::uint64_t step) {
  if (config.save.directory.empty()) return false;
  return step == config.steps || (config.save.every != 0 && step % config.save.every == 0);
}

std::uint64_t newest_saved(const config::TrainConfig& config, std::uint64_t first) {
  std::uint64_t newest = 0;
  if (config.save.directory.empty()) return newest;
  std::error_code error;
  fs::directory_iterator entry(config.save.directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = publish::step_of(entry->path());
    if (step && *step >= first && *step <= config.steps) newest = std::max(newest, *step);
  }
  return newest;
}

void put_aside(const std::string& path, const std::string& why) {
  const std::string aside = path + ".unreadable";
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(path, aside, error);
  if (error)
    log_warning("{} cannot be resumed from ({}), and it could not be moved aside: {}", path, why,
                error.message());
  else
    log_warning("{} cannot be resumed from ({}); it is now {}", path, why, aside);
}

void remove_unfinished(const config::TrainConfig& config) {
  if (config.save.directory.empty()) return;
  std::error_code error;
  std::vector<fs::path> unfinished;
  fs::directory_iterator entry(config.save.directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(".step_") && name.ends_with(".tmp")) unfinished.push_back(entry->path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, error);
}

}  // namespace wsync::cli
