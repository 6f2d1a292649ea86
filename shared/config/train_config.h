// The configuration of a training run. deploy/config/train.yaml documents every key with its unit
// and default; a test checks that the defaults in that file equal those here.
//
// The fields are plain numbers and names. The code that builds a model or a schedule from them
// checks their meaning.
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
// Limit of a run, equal to what a process group supports within a host and between hosts.
inline constexpr std::uint32_t kTrainRanks = 256;
inline constexpr std::uint32_t kTaskDigits = 32;
inline constexpr std::uint32_t kTaskAnswers = 128;  // answers of an engine to one question
inline constexpr std::uint32_t kTrainStaleness = 1'000;
inline constexpr std::uint32_t kTrainRequests = 256;
inline constexpr std::uint32_t kTrainAttempts = 1'000;
inline constexpr std::uint32_t kTrainVirtualChunks = 64;     // per rank
inline constexpr std::uint32_t kTrainMicrobatches = 65'536;  // per step
inline constexpr std::uint32_t kByteValues = 256;            // token values of byte-level text

struct ModelConfig {
  // Hugging Face directory to start from. Its config.json provides the sizes, and the sizes here
  // are ignored. Empty: random weights of the sizes here.
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

// A run has pp * dp ranks. Expert-parallel groups lie inside data parallelism: ep divides dp.
struct ParallelConfig {
  std::uint32_t pp = 2;
  std::uint32_t vpp = 2;  // chunks of layers per pipeline rank
  std::uint32_t ep = 1;
  std::uint32_t dp = 1;
  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

struct ScheduleConfig {
  std::string order = "interleaved";          // a name known to schedule::order_of
  std::uint32_t microbatches = 4;             // per data-parallel replica and step
  std::optional<std::uint32_t> group;         // absent = parallel.pp
  bool overlap = false;                       // of expert-parallel communication; needs ep > 1
  std::optional<std::uint32_t> extra_warmup;  // absent = 1 with overlap, 0 without
  bool delay_wgrad = true;
  bool offload = false;
  friend bool operator==(const ScheduleConfig&, const ScheduleConfig&) = default;
};

// The learning-rate schedule ends at TrainConfig::steps.
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
  std::string directory;    // parent of the step_N directories; empty = nothing is saved
  std::uint32_t every = 0;  // steps; 0 = only at the end
  friend bool operator==(const SaveConfig&, const SaveConfig&) = default;
};

// Recovery from the loss of a rank if all ranks are on this host.
struct RecoveryConfig {
  bool enabled = true;
  std::uint32_t attempts = 3;  // consecutive losses of a rank without a completed step in between
  bool keep_silent = false;    // disconnect a silent rank instead of killing it
  friend bool operator==(const RecoveryConfig&, const RecoveryConfig&) = default;
};

struct RanksConfig {
  // Directory shared by all hosts of the run. Empty: all ranks are on this host.
  std::string rendezvous;
  std::string address = "127.0.0.1";  // address of this host for ranks on other hosts
  friend bool operator==(const RanksConfig&, const RanksConfig&) = default;
};

struct PublishConfig {
  std::uint32_t every = 1;  // steps
  // Its checkpoint, watch and trace_file have no keys here and are disabled. The run's trace_file
  // also covers the publishing rounds, and the run's log settings apply. It waits longer for
  // memory, because the last step must not remain unpublished.
  TrainerConfig trainer = {.watch = false, .deadlines = {.snapshot = Milliseconds(10'000)}};
  friend bool operator==(const PublishConfig&, const PublishConfig&) = default;
};

// Reinforcement learning: training data comes from rollouts instead of text.
struct RolloutConfig {
  std::vector<std::string> engines;  // http://HOST:PORT
  std::string token;                 // file with the token that they need; empty = none
  std::string task = "reverse";      // a name known to rollout::Task
  std::uint32_t digits = 4;
  std::uint32_t seed = 1;
  std::uint32_t answers = 8;           // per problem
  std::uint32_t warm_start_steps = 1;  // steps on correct answers before the first generated batch
  std::uint32_t max_staleness = 0;     // steps
  std::uint32_t requests = 4;          // concurrent requests per engine
  double temperature = 1;
  double clip_low = 0.2;
  double clip_high = 0.2;
  double kl = 0;
  Milliseconds deadline{30'000};     // for one request to an engine
  Milliseconds wait_limit{300'000};  // for all answers of a step
  friend bool operator==(const RolloutConfig&, const RolloutConfig&) = default;
};

struct TrainConfig {
  ModelConfig model;
  DataConfig data;
  ParallelConfig parallel;
  ScheduleConfig schedule;
  OptimizerConfig optimizer;
  std::uint32_t steps = 100;  // total, including those before `resume`
  SaveConfig save;
  std::string resume;  // a step_N directory made by `save`; overrides model.checkpoint
  HeartbeatConfig heartbeat;
  RecoveryConfig recovery;
  Milliseconds deadline{60'000};  // for one exchange between ranks
  RanksConfig ranks;
  std::optional<RolloutConfig> rollout;  // absent = train on `data`
  std::optional<PublishConfig> publish;  // absent = nothing is published
  std::string trace_file;                // empty = none
  std::string picture;                   // empty = none
  LogConfig log;
  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

// Like load_sidecar() and parse_sidecar().
[[nodiscard]] Result<TrainConfig> load_train(const Sources& sources);
[[nodiscard]] Result<TrainConfig> parse_train(std::string_view text, std::string_view name,
                                              const Sources& sources = {});
// Returns every key, in the order of the example file.
[[nodiscard]] std::vector<std::string> train_keys();

// Returns true if the file or a --set has a top-level key ("model", "parallel", ...) that exists
// only for training runs, not for a publisher of directories. `wsync trainer` uses this to select
// its mode. Errors as load_train(), including invalid YAML.
[[nodiscard]] Result<bool> is_train_config(const Sources& sources);

}  // namespace wsync::config
