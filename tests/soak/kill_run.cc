#include "tests/soak/kill_run.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/config/train_config.h"
#include "tests/soak/harness.h"
#include "tests/soak/trainer_process.h"

namespace wsync::soak {
namespace {

// Time limit from one kill to the next possible kill, including the start of all ranks. It is many
// times the usual duration.
constexpr std::chrono::seconds kKillDeadline{120};
constexpr std::chrono::minutes kReferenceDeadline{30};  // from one step to the next, at most
// before the first kill, to measure the time of a step
constexpr std::size_t kStepsBefore = 10;
constexpr unsigned kRestarts = 5;
constexpr std::size_t kTextBytes = 65'536;

moe::ModelSpec kill_model(const training::ParallelSizes& sizes) {
  return {.vocabulary = 256,
          .hidden = 16,
          .layers = sizes.stages(),
          .heads = 2,
          .key_value_heads = 1,
          .head_dim = 8,
          .experts = 4 * sizes.ep,
          .experts_per_token = 2,
          .expert_hidden = 16,
          .max_positions = 512};
}

Result<> write_text(const std::string& path, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(kTextBytes, ' ');
  for (char& letter : text) letter = static_cast<char>('a' + random() % 26);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail(ErrorCode::kIo, fmt::format("{}: cannot be written", path));
  return {};
}

class KillRun {
 public:
  KillRun(const KillOptions& options, const Interrupt& interrupt, const OnKillProgress& on_progress)
      : options_(options), interrupt_(interrupt), on_progress_(on_progress), random_(options.seed) {
    result_.options = options;
  }

  Result<KillResult> run() {
    result_.machine = this_machine();
    const auto busy = WSYNC_TRY(busy_with_others(interrupt_));
    result_.others_busy = busy;
    WSYNC_TRY(write_text(at("text"), options_.seed));
    CpuLoad cpu;
    WSYNC_TRY(run_with_kills());
    WSYNC_TRY(run_without());
    for (unsigned i = 0; i < kRestarts; ++i) WSYNC_TRY(restart());
    result_.stolen = cpu.since_last().stolen;
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::string at(std::string_view name) const {
    return fmt::format("{}/{}", options_.directory, name);
  }

  // All runs have the same number of steps in their configuration, and none reaches the last one.
  Result<std::unique_ptr<TrainerProcess>> start(const std::string& name,
                                                std::vector<std::string> more) const {
    const training::ParallelSizes& sizes = options_.sizes;
    const moe::ModelSpec model = kill_model(sizes);
    std::vector<std::string> command{options_.executable, "train",  "--events", "--json",
                                     "--log-level",       "warning"};
    std::vector<std::string> settings{
        fmt::format("model.hidden={}", model.hidden), fmt::format("model.layers={}", model.layers),
        fmt::format("model.heads={}", model.heads),
        fmt::format("model.key_value_heads={}", model.key_value_heads),
        fmt::format("model.head_dim={}", model.head_dim),
        fmt::format("model.experts={}", model.experts),
        fmt::format("model.expert_hidden={}", model.expert_hidden),
        fmt::format("data.files={}", at("text")), "data.sequence=16", "data.micro_batch=2",
        fmt::format("parallel.pp={}", sizes.pp), fmt::format("parallel.vpp={}", sizes.vpp),
        fmt::format("parallel.ep={}", sizes.ep), fmt::format("parallel.dp={}", sizes.dp),
        fmt::format("schedule.microbatches={}", 2 * sizes.pp),
        fmt::format("steps={}", config::kTrainSteps),
        // A long deadline, so that a slow heartbeat on a busy machine does not count as a loss. The
        // ranks that are lost here are killed.
        "heartbeat.deadline=1m", "recovery.enabled=true"};
    settings.insert(settings.end(), more.begin(), more.end());
    for (std::string& setting : settings) {
      command.emplace_back("--set");
      command.push_back(std::move(setting));
    }
    return TrainerProcess::start(
        {.command = std::move(command), .environment = {}, .log_file = at(name + ".log")},
        sizes.ranks());
  }

  Result<> run_with_kills() {
    const TimePoint begin = now();
    auto trainer = WSYNC_TRY(start("run-with-kills", {"save.directory=" + at("saved")}));
    WSYNC_TRY(kill_all(*trainer));
    WSYNC_TRY(trainer->end(interrupt_));
    result_.seconds = seconds(now() - begin);
    const KillLog& log = trainer->log();
    if (!log.saved()) return fail(ErrorCode::kInternal, "the run with kills has saved nothing");
    saved_ = *log.saved();
    result_.steps = saved_.step;
    result_.kills = log.kills();
    result_.steps_told_again = log.steps_told_again();
    steps_ = log.steps();
    return {};
  }

  Result<> kill_all(TrainerProcess& trainer) {
    const KillLog& log = trainer.log();
    TimePoint deadline = now() + kKillDeadline;
    std::optional<TimePoint> next;
    for (;;) {
      const bool is_ready = log.is_ready() && log.step_seconds().size() >= kStepsBefore;
      if (is_ready && log.kills().size() == options_.kills) return {};
      if (is_ready && !next) next = now() + delay(log);
      const auto came = WSYNC_TRY(trainer.take_event(interrupt_, next.value_or(deadline)));
      if (came) continue;
      if (!next)
        return fail(ErrorCode::kDeadline,
                    fmt::format("the training run has not gone on within {} s: {}",
                                kKillDeadline.count(), log.state()));
      // take_event() is accurate to the millisecond only. Sleep for the rest.
      std::this_thread::sleep_for(*next - now());
      WSYNC_TRY(trainer.kill_rank(static_cast<std::uint32_t>(random_() % options_.sizes.ranks())));
      next.reset();
      deadline = now() + kKillDeadline;
      on_progress_(fmt::format("kill {} of {}, step {}", log.kills().size() + 1, options_.kills,
                               log.last_step()));
    }
  }

  // Uniform over the time of `between` steps, so that kills hit every phase of a step.
  std::chrono::nanoseconds delay(const KillLog& log) {
    constexpr double kRandomRange = 0x1p53;
    const double step = spread_of(log.step_seconds()).median;
    const double share = static_cast<double>(random_() >> 11U) / kRandomRange;
    return std::chrono::nanoseconds(
        static_cast<std::int64_t>(1e9 * share * step * options_.between));
  }

  // Runs the same steps again without kills. The only difference in the configuration is when the
  // state is saved. The run executes a few more steps before it is stopped.
  Result<> run_without() {
    auto trainer =
        WSYNC_TRY(start("run-without-kills", {"save.directory=" + at("reference"),
                                              fmt::format("save.every={}", saved_.step)}));
    const KillLog& log = trainer->log();
    std::string reference;
    while (reference.empty()) {
      const auto came = WSYNC_TRY(trainer->take_event(interrupt_, now() + kReferenceDeadline));
      if (!came)
        return fail(ErrorCode::kDeadline,
                    fmt::format("the run without kills has taken no step for {} min: {}",
                                kReferenceDeadline.count(), log.state()));
      on_progress_(fmt::format("step {} of {} without kills", log.last_step(), saved_.step));
      if (log.saved() && log.saved()->step == saved_.step) reference = log.saved()->directory;
    }
    WSYNC_TRY(trainer->end(interrupt_));
    result_.step_seconds = log.step_seconds();
    result_.steps_diverged = compare_steps(steps_, log.steps(), saved_.step);
    result_.files_diverged = WSYNC_TRY(compare_states(saved_.directory, reference));
    return {};
  }

  // Measures the alternative to recovery: a start from a checkpoint.
  Result<> restart() {
    const TimePoint begin = now();
    auto trainer = WSYNC_TRY(start("restart", {"resume=" + saved_.directory}));
    while (trainer->log().steps().empty()) {
      const auto came = WSYNC_TRY(trainer->take_event(interrupt_, begin + kKillDeadline));
      if (!came)
        return fail(ErrorCode::kDeadline,
                    fmt::format("a run that goes on from {} has taken no step within {} s",
                                saved_.directory, kKillDeadline.count()));
    }
    result_.restart_seconds.push_back(seconds(now() - begin));
    return trainer->end(interrupt_);
  }

  const KillOptions& options_;
  const Interrupt& interrupt_;
  const OnKillProgress& on_progress_;
  std::mt19937_64 random_;
  KillResult result_;
  SavedEvent saved_;              // from the run with kills
  std::vector<StepEvent> steps_;  // reported by the run with kills
};

}  // namespace

bool KillResult::passed() const {
  return steps_diverged.count == 0 && files_diverged.count == 0 &&
         std::ranges::all_of(kills, &Kill::recovered_within_a_step);
}

Result<> check_kill_options(const KillOptions& options) {
  const training::ParallelSizes& sizes = options.sizes;
  if (options.kills == 0 || options.kills > kKillsMax || options.between == 0 ||
      options.between > kKillBetweenMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} with {} between them; expected 1 to {} kills and 1 to {} steps",
                            counted(options.kills, "kill"), counted(options.between, "step"),
                            kKillsMax, kKillBetweenMax));
  if (sizes.pp == 0 || sizes.pp > kKillRanksMax || sizes.dp == 0 ||
      sizes.dp > kKillRanksMax / sizes.pp)
    return fail(ErrorCode::kInvalidInput, fmt::format("pp {} times dp {}: expected 1 to {} ranks",
                                                      sizes.pp, sizes.dp, kKillRanksMax));
  WSYNC_TRY(training::check_parallel(sizes, kill_model(sizes)));
  if (sizes.dp / sizes.ep < 2)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("dp {} with ep {}: nobody else has the experts of a rank that is lost; "
                            "expected dp to be at least two times ep",
                            sizes.dp, sizes.ep));
  return {};
}

Result<KillResult> run_kills(const KillOptions& options, const Interrupt& interrupt,
                             const OnKillProgress& on_progress) {
  WSYNC_TRY(check_kill_options(options));
  return KillRun(options, interrupt, on_progress).run();
}

}  // namespace wsync::soak
