#include "shared/config/train_config.h"

#include <algorithm>
#include <arpa/inet.h>
#include <limits>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/config/binder.h"
#include "shared/config/role.h"

namespace wsync::config {
namespace {

constexpr Range<std::uint32_t> kSize{1, static_cast<std::uint32_t>(limits::kModelDimension)};
constexpr Range<std::uint32_t> kSeed{0, std::numeric_limits<std::uint32_t>::max()};
// Range of the optimizer's numbers. It is wider than any practical use, and no value overflows a
// float32.
constexpr Range<double> kRate{1e-12, 1e3};
constexpr Range<double> kFinalRate{0, 1e3};
constexpr Range<double> kBeta{0, 0.999999};
constexpr Range<double> kEpsilon{1e-30, 1};
constexpr Range<double> kDecay{0, 1e3};
constexpr Range<double> kClipNorm{0, 1e9};
constexpr Range<double> kClipRatio{0, 1e3};
constexpr Range<double> kTemperature{1e-3, 1e3};

void bind_model(Binder& binder, ModelConfig& c) {
  binder.text("model.checkpoint", c.checkpoint);
  const std::size_t sizes = binder.keys().size();
  // Each token is one byte.
  binder.count("model.vocabulary", c.vocabulary, {kByteValues, kSize.max});
  binder.count("model.hidden", c.hidden, kSize);
  binder.count("model.layers", c.layers, kSize);
  binder.count("model.heads", c.heads, kSize);
  binder.count("model.key_value_heads", c.key_value_heads, kSize);
  binder.count("model.head_dim", c.head_dim, kSize);
  binder.count("model.experts", c.experts, kSize);
  binder.count("model.experts_per_token", c.experts_per_token, kSize);
  binder.count("model.expert_hidden", c.expert_hidden, kSize);
  binder.flag("model.tied_embeddings", c.tied_embeddings);
  binder.count("model.seed", c.seed, kSeed);
  if (c.checkpoint.empty()) return;
  const std::vector<std::string> keys = binder.keys();
  for (std::size_t i = sizes; i < keys.size(); ++i)
    if (const std::optional<Entry> entry = binder.take(keys[i]))
      binder.refuse(*entry,
                    "must be left out when model.checkpoint is set, because its config.json and "
                    "weights are used");
}

void bind_data(Binder& binder, DataConfig& c) {
  binder.paths("data.files", c.files);
  binder.count("data.sequence", c.sequence, {1, kTrainSequence});
  binder.count("data.micro_batch", c.micro_batch, {1, kTrainMicroBatch});
  binder.count("data.seed", c.seed, kSeed);
}

void bind_parallel(Binder& binder, ParallelConfig& c) {
  binder.count("parallel.pp", c.pp, {1, kTrainRanks});
  binder.count("parallel.vpp", c.vpp, {1, kTrainVirtualChunks});
  binder.count("parallel.ep", c.ep, {1, kTrainRanks});
  binder.count("parallel.dp", c.dp, {1, kTrainRanks});
  if (c.dp % c.ep != 0)
    binder.refuse("parallel.ep",
                  fmt::format("expected a divisor of parallel.dp ({}), because the ranks that "
                              "share a layer's experts are data-parallel replicas; found {}",
                              c.dp, c.ep));
  if (std::uint64_t{c.pp} * c.dp > kTrainRanks)
    binder.refuse("parallel.dp", fmt::format("expected at most {} ranks, found parallel.pp * "
                                             "parallel.dp = {} * {} = {}",
                                             kTrainRanks, c.pp, c.dp, std::uint64_t{c.pp} * c.dp));
}

// Checks that the model can be divided into the configured pipeline stages and expert groups. The
// sizes of a checkpoint, or of a training state to resume from, are not known here, so they are not
// checked.
void check_cut(Binder& binder, const TrainConfig& c) {
  const ModelConfig& model = c.model;
  const ParallelConfig& parallel = c.parallel;
  if (!model.checkpoint.empty() || !c.resume.empty()) return;
  const std::uint32_t stages = parallel.pp * parallel.vpp;
  if (model.layers % stages != 0)
    binder.refuse("model.layers",
                  fmt::format("expected a multiple of parallel.pp * parallel.vpp = {} * {} = {}, "
                              "found {}",
                              parallel.pp, parallel.vpp, stages, model.layers));
  if (model.experts % parallel.ep != 0)
    binder.refuse("model.experts", fmt::format("expected a multiple of parallel.ep ({}), found {}",
                                               parallel.ep, model.experts));
}

void bind_schedule(Binder& binder, const ParallelConfig& parallel, ScheduleConfig& c) {
  binder.choice(
      "schedule.order", c.order,
      {{"interleaved", "interleaved"}, {"1f1b", "1f1b"}, {"zb-h1", "zb-h1"}, {"gpipe", "gpipe"}});
  binder.count("schedule.microbatches", c.microbatches, {1, kTrainMicrobatches});
  binder.count_or_auto("schedule.group", c.group, {1, kTrainMicrobatches});
  binder.flag("schedule.overlap", c.overlap);
  binder.count_or_auto("schedule.extra_warmup", c.extra_warmup, {0, 1});
  binder.flag("schedule.delay_wgrad", c.delay_wgrad);
  binder.flag("schedule.offload", c.offload);
  if (c.overlap && parallel.ep == 1)
    binder.refuse("schedule.overlap",
                  "expected false with parallel.ep: 1, found true: without expert parallelism no "
                  "token leaves its rank, and there is no communication to overlap");
}

void bind_optimizer(Binder& binder, OptimizerConfig& c) {
  binder.number("optimizer.learning_rate", c.learning_rate, kRate);
  binder.number("optimizer.final_learning_rate", c.final_learning_rate, kFinalRate);
  if (c.final_learning_rate > c.learning_rate)
    binder.refuse("optimizer.final_learning_rate",
                  fmt::format("expected at most optimizer.learning_rate ({}), found {}",
                              c.learning_rate, c.final_learning_rate));
  binder.count("optimizer.warmup_steps", c.warmup_steps, {0, kTrainSteps});
  binder.number("optimizer.beta1", c.beta1, kBeta);
  binder.number("optimizer.beta2", c.beta2, kBeta);
  binder.number("optimizer.epsilon", c.epsilon, kEpsilon);
  binder.number("optimizer.weight_decay", c.weight_decay, kDecay);
  binder.number("optimizer.clip_norm", c.clip_norm, kClipNorm);
}

void bind_save(Binder& binder, SaveConfig& c) {
  binder.text("save.directory", c.directory);
  binder.count("save.every", c.every, {0, kTrainSteps});
  if (c.directory.empty() && c.every != 0)
    binder.refuse(
        "save.every",
        fmt::format("expected 0 without save.directory, found {}: there is no directory to save to",
                    c.every));
}

void bind_ranks(Binder& binder, RanksConfig& c) {
  binder.text("ranks.rendezvous", c.rendezvous);
  binder.text("ranks.address", c.address);
  in6_addr parsed{};
  if (::inet_pton(AF_INET, c.address.c_str(), &parsed) != 1 &&
      ::inet_pton(AF_INET6, c.address.c_str(), &parsed) != 1)
    binder.refuse("ranks.address",
                  fmt::format("expected an IP address such as 10.0.0.7, found '{}'", c.address));
}

void bind_publish(Binder& binder, std::optional<PublishConfig>& out) {
  bool on = binder.has_section("publish");
  binder.flag("publish.enabled", on);
  const Binder::Section section(binder, "publish", on);
  PublishConfig c;
  binder.count("every", c.every, {1, kTrainSteps});
  bind_publisher(binder, c.trainer);
  if (on) out = std::move(c);
}

void bind_rollout(Binder& binder, const TrainConfig& train, std::optional<RolloutConfig>& out) {
  bool on = binder.has_section("rollout");
  binder.flag("rollout.enabled", on);
  const Binder::Section section(binder, "rollout", on);
  RolloutConfig c;
  binder.words("engines", c.engines);
  bind_key_path(binder, "token", c.token);
  binder.choice("task", c.task, {{"reverse", "reverse"}, {"sort", "sort"}});
  binder.count("digits", c.digits, {1, kTaskDigits});
  binder.count("seed", c.seed, kSeed);
  binder.count("answers", c.answers, {1, kTaskAnswers});
  binder.count("warm_start_steps", c.warm_start_steps, {1, kTrainSteps});
  binder.count("max_staleness", c.max_staleness, {0, kTrainStaleness});
  binder.count("requests", c.requests, {1, kTrainRequests});
  binder.number("temperature", c.temperature, kTemperature);
  binder.number("clip_low", c.clip_low, kClipRatio);
  binder.number("clip_high", c.clip_high, kClipRatio);
  binder.number("kl", c.kl, kDecay);
  binder.duration("deadline", c.deadline, kDeadline);
  binder.duration("wait_limit", c.wait_limit, kDeadline);
  if (on && c.engines.empty())
    binder.refuse("engines",
                  "expected the addresses of the engines that generate, such as "
                  "http://127.0.0.1:8000, separated by commas; found none");
  const std::uint64_t sequences =
      std::uint64_t{train.parallel.dp} * train.schedule.microbatches * train.data.micro_batch;
  if (sequences % c.answers != 0)
    binder.refuse("answers", fmt::format("expected a divisor of the sequences of a step, "
                                         "parallel.dp * schedule.microbatches * data.micro_batch = "
                                         "{} * {} * {} = {}; found {}",
                                         train.parallel.dp, train.schedule.microbatches,
                                         train.data.micro_batch, sequences, c.answers));
  if (on) out = std::move(c);
}

void bind_train(Binder& binder, TrainConfig& c) {
  bind_model(binder, c.model);
  bind_data(binder, c.data);
  bind_parallel(binder, c.parallel);
  bind_schedule(binder, c.parallel, c.schedule);
  bind_optimizer(binder, c.optimizer);
  binder.count("steps", c.steps, {1, kTrainSteps});
  bind_save(binder, c.save);
  binder.text("resume", c.resume);
  check_cut(binder, c);
  bind_heartbeat(binder, c.heartbeat);
  binder.flag("recovery.enabled", c.recovery.enabled);
  binder.count("recovery.attempts", c.recovery.attempts, {1, kTrainAttempts});
  binder.flag("recovery.keep_silent", c.recovery.keep_silent);
  binder.duration("deadline", c.deadline, kDeadline);
  bind_ranks(binder, c.ranks);
  bind_rollout(binder, c, c.rollout);
  bind_publish(binder, c.publish);
  if (c.rollout && c.publish && c.publish->every != 1 && c.publish->every <= c.steps)
    binder.refuse(
        "publish.every",
        fmt::format(
            "expected 1 with `rollout`, so that each step's weights generate for the next step, or "
            "more than `steps` ({}), so that the engines keep their first weights; found {}",
            c.steps, c.publish->every));
  binder.text("trace_file", c.trace_file);
  binder.text("picture", c.picture);
  bind_log(binder, c.log);
  if (c.publish) c.publish->trainer.log = c.log;
}

std::string_view top_of(std::string_view key) { return key.substr(0, key.find_first_of(".=")); }

}  // namespace

Result<TrainConfig> load_train(const Sources& sources) { return load_role(bind_train, sources); }
Result<TrainConfig> parse_train(std::string_view text, std::string_view name,
                                const Sources& sources) {
  return parse_role(bind_train, text, name, sources);
}
std::vector<std::string> train_keys() { return keys_of_role(bind_train); }

Result<bool> is_train_config(const Sources& sources) {
  std::vector<std::string> given = sources.set;
  if (!sources.file.empty()) {
    const auto text = WSYNC_TRY(read_config_file(sources.file));
    const auto entries = WSYNC_TRY(parse_document(text, sources.file));
    for (const Entry& entry : entries) given.push_back(entry.key);
  }
  const auto among = [](const std::vector<std::string>& keys, std::string_view top) {
    return std::any_of(keys.begin(), keys.end(),
                       [top](const std::string& key) { return top_of(key) == top; });
  };
  const std::vector<std::string> of_run = train_keys();
  const std::vector<std::string> of_publisher = trainer_keys();
  return std::any_of(given.begin(), given.end(), [&](const std::string& key) {
    return among(of_run, top_of(key)) && !among(of_publisher, top_of(key));
  });
}

}  // namespace wsync::config
