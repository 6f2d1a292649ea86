// The configuration of a training run. Every key, its unit and its default are documented in
// deploy/config/train.yaml; a test keeps them equal to the defaults here.
//
// Plain numbers and names: what they make of a model or of a schedule is checked by who builds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/log_config.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"

namespace wsync::config {

inline constexpr std::uint32_t kTrainSteps = 1'000'000'000;
inline constexpr std::uint32_t kTrainSequence = 65'536;    // bytes
inline constexpr std::uint32_t kTrainMicroBatch = 65'536;  // sequences
// Of a run: what a process group may have, inside a host and between hosts.
inline constexpr std::uint32_t kTrainRanks = 256;
inline constexpr std::uint32_t kTaskDigits = 32;
inline constexpr std::uint32_t kTaskAnswers = 128;  // what an engine gives to one question
inline constexpr std::uint32_t kTrainStaleness = 1'000;
inline constexpr std::uint32_t kTrainRequests = 256;
inline constexpr std::uint32_t kTrainAttempts = 1'000;
inline constexpr std::uint32_t kTrainVirtualChunks = 64;     // of one rank
inline constexpr std::uint32_t kTrainMicrobatches = 65'536;  // of one step
inline constexpr std::uint32_t kByteValues = 256;            // the tokens of byte-level text

struct ModelConfig {
  // Hugging Face directory to begin from; its config.json has the sizes, and those here mean
  // nothing. Empty: random weights of these sizes.
  std::string checkpoint;
  std::uint32_t vocabulary = kByteValues;
  std::uint32_t hidden = 64;
  std::uint32_t layers = 4;
  std::uint32_t heads = 4;
  std::uint32_t key_value_heads = 2;
  std::uint32_t head_dim = 16;
  std::uint32_t experts = 8;
  std::uint32_t experts_per_token = 2;
  std::uint32_t expert_hidden = 64;
  bool tied_embeddings = false;
  std::uint32_t seed = 1;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

struct DataConfig {
  std::vector<std::string> files;  // files and directories; empty = the licence texts of Debian
  std::uint32_t sequence = 64;     // bytes
  std::uint32_t micro_batch = 4;   // sequences
  std::uint32_t seed = 1;
  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

// pp * dp ranks. Expert-parallel ranks lie inside data parallelism: ep divides dp.
struct ParallelConfig {
  std::uint32_t pp = 2;
  std::uint32_t vpp = 2;  // chunks of layers on each pipeline rank
  std::uint32_t ep = 1;
  std::uint32_t dp = 1;
  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

struct ScheduleConfig {
  std::string order = "interleaved";          // a name that schedule::order_of knows
  std::uint32_t microbatches = 4;             // of each data-parallel replica in a step
  std::optional<std::uint32_t> group;         // absent = parallel.pp
  bool overlap = false;                       // of expert-parallel communication; needs ep > 1
  std::optional<std::uint32_t> extra_warmup;  // absent = 1 with overlap, 0 without
  bool delay_wgrad = true;
  bool offload = false;
  friend bool operator==(const ScheduleConfig&, const ScheduleConfig&) = default;
};

// The schedule of the learning rate ends at TrainConfig::steps.
struct OptimizerConfig {
  double learning_rate = 3e-3;
  double final_learning_rate = 3e-4;
  std::uint32_t warmup_steps = 10;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // 0 = no clipping
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct SaveConfig {
  std::string directory;    // step_N directories are made in it; empty = nothing is saved
  std::uint32_t every = 0;  // steps; 0 = at the end only
  friend bool operator==(const SaveConfig&, const SaveConfig&) = default;
};

// From the loss of a rank, where all are on this host.
struct RecoveryConfig {
  bool enabled = true;
  std::uint32_t attempts = 3;  // losses of a rank in a row, without a step that ends between them
  bool keep_silent = false;    // a rank that gives no sign of life is cut off, and not killed
  friend bool operator==(const RecoveryConfig&, const RecoveryConfig&) = default;
};

struct RanksConfig {
  // Directory that all hosts of the run share; empty = all ranks on this host.
  std::string rendezvous;
  std::string address = "127.0.0.1";  // of this host, where ranks of other hosts reach its ranks
  friend bool operator==(const RanksConfig&, const RanksConfig&) = default;
};

struct PublishConfig {
  std::uint32_t every = 1;  // steps
  // Its checkpoint, watch and trace_file have no keys here and are off (the run's trace_file names
  // what is traced of rounds); its log is the run's.
  TrainerConfig trainer = {.watch = false};
  friend bool operator==(const PublishConfig&, const PublishConfig&) = default;
};

// Reinforcement learning: what is trained on, in place of text.
struct RolloutConfig {
  std::vector<std::string> engines;  // http://HOST:PORT
  std::string task = "reverse";      // a name that rollout::Task knows
  std::uint32_t digits = 4;
  std::uint32_t seed = 1;
  std::uint32_t answers = 8;           // to each problem
  std::uint32_t warm_start_steps = 1;  // on right answers, before the first that is generated
  std::uint32_t max_staleness = 0;     // steps
  std::uint32_t requests = 4;          // at once at each engine
  double temperature = 1;
  double clip_low = 0.2;
  double clip_high = 0.2;
  double kl = 0;
  Milliseconds deadline{30'000};     // of one question to an engine
  Milliseconds wait_limit{300'000};  // for all answers of a step
  friend bool operator==(const RolloutConfig&, const RolloutConfig&) = default;
};

struct TrainConfig {
  ModelConfig model;
  DataConfig data;
  ParallelConfig parallel;
  ScheduleConfig schedule;
  OptimizerConfig optimizer;
  std::uint32_t steps = 100;  // in all, those before `resume` included
  SaveConfig save;
  std::string resume;  // a step_N directory that `save` made; it rules over model.checkpoint
  HeartbeatConfig heartbeat;
  RecoveryConfig recovery;
  Milliseconds deadline{60'000};  // of one exchange between ranks
  RanksConfig ranks;
  std::optional<RolloutConfig> rollout;  // absent = `data` is trained on
  std::optional<PublishConfig> publish;  // absent = nothing is published
  std::string trace_file;                // empty = none
  std::string picture;                   // empty = none
  LogConfig log;
  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

// As load_sidecar() and parse_sidecar().
[[nodiscard]] Result<TrainConfig> load_train(const Sources& sources);
[[nodiscard]] Result<TrainConfig> parse_train(std::string_view text, std::string_view name,
                                              const Sources& sources = {});
// Every key, in the order of the example file.
[[nodiscard]] std::vector<std::string> train_keys();

// Whether the file or a --set has a top-level key that a training run has and a publisher of
// directories has not ("model", "parallel", ...): what `wsync trainer` is to do with it. Errors as
// load_train(); what is no YAML is one.
[[nodiscard]] Result<bool> is_train_config(const Sources& sources);

}  // namespace wsync::config
