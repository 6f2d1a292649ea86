// `wsync demo`: runs a whole fleet on this machine for about a minute.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <unistd.h>

#include "deploy/cli/commands.h"
#include "deploy/demo/scenario.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/command/programs.h"
#include "shared/config/units.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX declares it nowhere

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;

// Smallest size with enough buckets for a kill between two of them.
constexpr std::uint64_t kSizeMin = 16 * limits::kMiB;
constexpr std::uint32_t kRlSteps = 300;        // steps that train on generated answers
constexpr std::uint32_t kTrainEngines = 2;     // with --train and --rl
constexpr std::size_t kTemporaryPathMax = 40;  // paths of sockets are limited to 108 bytes

struct DemoCommand {
  DemoOptions demo;
  bool train = false;
  bool reinforce = false;
  bool no_sync = false;
  bool engines_given = false;
  bool steps_given = false;
  bool size_given = false;
  std::string size = "256MiB";
  std::string work;
  std::string output;
  std::string trace;  // extra copy of trace.json; empty: none
  bool keep = false;
};

Result<std::string> make_unique_directory(const std::string& beginning) {
  std::string path = beginning + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return fail_errno(path, errno);
  return path;
}

std::string temporary_directory() {
  std::error_code error;
  const fs::path path = fs::temp_directory_path(error);
  return error || path.string().size() > kTemporaryPathMax ? "/tmp" : path.string();
}

// The directories of a run. The destructor removes those that are temporary.
class DemoFolders {
 public:
  DemoFolders() = default;
  DemoFolders(const DemoFolders&) = delete;
  DemoFolders& operator=(const DemoFolders&) = delete;
  ~DemoFolders() { remove(); }

  Result<> create(const DemoCommand& command) {
    keep_ = command.keep;
    auto base = WSYNC_TRY(make_unique_directory(temporary_directory() + "/wsync-demo-"));
    base_ = base;
    work_ = base_ + "/work";
    std::error_code error;
    if (!command.work.empty()) {
      fs::create_directories(command.work, error);
      auto work = make_unique_directory(fs::absolute(command.work).string() + "/wsync-demo-");
      if (!work) return fail(work.error().with_context("--work"));
      work_ = *work;
    }
    for (const char* name : {"/run", "/state", "/log", "/trace", "/work"})
      if (!fs::create_directory(base_ + name, error) && error)
        return fail_errno(base_ + name, error.value());
    for (const std::string& path : {run(), state()})
      fs::permissions(path, fs::perms::owner_all, error);
    return open_output(command.output);
  }
  // Returns the directory for results. If none was given, it is created by this call and not
  // earlier, so that a failed run leaves nothing behind.
  Result<std::string> output() {
    if (!output_.empty()) return output_;
    auto made = make_unique_directory(temporary_directory() + "/wsync-demo-results-");
    if (made) output_ = *made;
    return made;
  }
  void remove() noexcept {
    std::error_code ignored;
    if (made_output_) fs::remove(output_, ignored);  // only removes an empty directory
    if (keep_) return;
    if (!work_.empty()) fs::remove_all(work_, ignored);
    if (!base_.empty()) fs::remove_all(base_, ignored);
  }
  [[nodiscard]] std::string run() const { return base_ + "/run"; }
  [[nodiscard]] std::string state() const { return base_ + "/state"; }
  [[nodiscard]] std::string log() const { return base_ + "/log"; }
  [[nodiscard]] std::string trace() const { return base_ + "/trace"; }
  [[nodiscard]] const std::string& base() const { return base_; }
  [[nodiscard]] const std::string& work() const { return work_; }

 private:
  Result<> open_output(const std::string& wanted) {
    if (wanted.empty()) return {};
    output_ = fs::absolute(wanted).string();
    std::error_code error;
    made_output_ = fs::create_directories(output_, error);
    if (error) return fail_errno("--output " + output_, error.value());
    if (!fs::is_directory(output_, error) || ::access(output_.c_str(), W_OK) != 0)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("--output {}: expected a directory that this user can write to", output_));
    return {};
  }
  std::string base_;
  std::string work_;
  std::string output_;
  bool made_output_ = false;
  bool keep_ = false;
};

// Returns the environment of this process without WSYNC_ variables, which would change the
// configuration of the fleet.
std::vector<std::string> fleet_environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!std::string_view(*entry).starts_with("WSYNC_")) environment.emplace_back(*entry);
  return environment;
}

Result<> check_checkpoint(DemoCommand& command) {
  if (!command.demo.checkpoint.empty()) {
    if (command.size_given)
      return fail(ErrorCode::kInvalidInput,
                  "--size sets the size of a generated checkpoint; give either --size or "
                  "--checkpoint, not both");
    std::error_code error;
    const std::string given = command.demo.checkpoint;
    command.demo.checkpoint = fs::canonical(given, error).string();
    if (error)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--checkpoint {}: {}", given, error.message()));
    return {};
  }
  const Result<std::uint64_t> size = config::parse_size(command.size);
  if (!size) return fail(size.error().with_context("--size"));
  if (*size < kSizeMin)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--size {}: expected at least {}, so that a switch takes long enough "
                            "to kill an engine during it",
                            command.size, config::format_size(kSizeMin)));
  command.demo.size = *size;
  return {};
}

// Sets options whose defaults depend on the scenario.
Result<> settle_options(DemoCommand& command) {
  DemoOptions& demo = command.demo;
  const bool trains = command.train || command.reinforce;
  if (command.steps_given && !trains)
    return fail(ErrorCode::kInvalidInput, "--steps needs --train or --rl");
  if (command.train && demo.steps > kTrainStepsMax)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--steps {}: expected at most {} with --train", demo.steps, kTrainStepsMax));
  if (command.reinforce && !command.steps_given) demo.steps = kRlSteps;
  if (trains && !command.engines_given) demo.engines = kTrainEngines;
  demo.sync = !command.no_sync;
  return trains ? Result<>() : check_checkpoint(command);
}

Result<Outcome> run_demo(DemoCommand command, bool json) {
  const TimePoint begin = now();
  WSYNC_TRY(settle_options(command));
  if (!command.trace.empty()) WSYNC_TRY(check_trace_file(command.trace));
  // Checks the programs that are started later. Otherwise a missing program would only appear as a
  // child process that ends early.
  (void)WSYNC_TRY(find_wsync_program("wsync-engine"));
  if (command.train || command.reinforce) (void)WSYNC_TRY(find_wsync_program("wsync-train"));
  DemoFolders folders;
  WSYNC_TRY(folders.create(command));
  command.demo.run_dir = folders.run();
  command.demo.state_dir = folders.state();
  command.demo.work_dir = folders.work();
  command.demo.trace_dir = folders.trace();
  const auto children = WSYNC_TRY(
      ChildProcesses::create(folders.log(), fleet_environment(), [&folders] { folders.remove(); }));
  const DemoContext context{.children = *children,
                            .options = command.demo,
                            .output = [&folders] { return folders.output(); },
                            .on_line =
                                [&](const std::string& line) {
                                  print_line(
                                      json ? stderr : stdout,
                                      fmt::format("{:5.1f} s  {}", seconds(now() - begin), line));
                                }};
  if (command.keep)
    context.say("--keep: checkpoints and logs stay in {} and {}", folders.base(), folders.work());
  const auto scenario = command.reinforce ? make_rl_scenario(context)
                        : command.train   ? make_train_scenario(context)
                                          : make_demo_scenario(context);
  auto outcome = scenario->run();
  if (!outcome || command.trace.empty()) return outcome;
  std::error_code error;
  fs::copy_file(outcome->result.at("trace").get<std::string>(), command.trace,
                fs::copy_options::overwrite_existing, error);
  if (error) return fail_errno("--trace " + command.trace, error.value());
  return outcome;
}

}  // namespace

void add_demo(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "demo",
       .description = "Run a whole fleet on this machine: publish, verify, refuse, kill, repair "
                      "and roll back. With --train, train a model and publish the weights of every "
                      "step. With --rl, train a model on the engines' answers",
       .examples = {"wsync demo", "wsync demo --size 1GiB --engines 8 --output results",
                    "wsync demo --checkpoint /models/qwen3-moe --json",
                    "wsync demo --train --steps 300", "wsync demo --rl",
                    "wsync demo --rl --max-staleness 2 --seed 7"}});
  if (!find_wsync_program("wsync-engine")) command->group("");  // it still says what is missing
  auto options = std::make_shared<DemoCommand>();
  CLI::Option* train = command->add_flag(
      "--train", options->train,
      "Train a small model with 4 processes; two engines load the weights of every step");
  CLI::Option* reinforce = command->add_flag(
      "--rl", options->reinforce,
      "Reinforcement learning: two engines generate answers, 2 processes train on their rewards");
  train->excludes(reinforce);
  CLI::Option* steps =
      command
          ->add_option(
              "--steps", options->demo.steps,
              fmt::format(
                  "Training steps (default: {}; with --rl, steps on the engines' answers, {})",
                  options->demo.steps, kRlSteps))
          ->check(CLI::Range(kTrainStepsMin, kRlStepsMax));
  command
      ->add_option("--warm-start", options->demo.warm_start_steps,
                   fmt::format("--rl: steps on correct answers before the first step on the "
                               "engines' answers (default: {})",
                               options->demo.warm_start_steps))
      ->check(CLI::Range(1U, kRlStepsMax))
      ->needs(reinforce);
  command
      ->add_option("--max-staleness", options->demo.max_staleness,
                   "--rl: number of steps that the weights of an answer may be behind the weights "
                   "it trains. 0: training waits for the answers of each step. 1 or more: engines "
                   "answer during training (default: 0)")
      ->check(CLI::Range(0, 1000))
      ->needs(reinforce);
  command
      ->add_option("--seed", options->demo.seed,
                   "--rl: random seed of weights, problems and answers (default: 1)")
      ->needs(reinforce);
  command
      ->add_flag("--no-sync", options->no_sync,
                 "--rl: the engines keep the first weights that they receive")
      ->needs(reinforce);
  command
      ->add_option("--checkpoint", options->demo.checkpoint,
                   "Publish this directory, then copies of it with other bytes, instead of a "
                   "generated checkpoint")
      ->type_name("DIR")
      ->excludes(train, reinforce);
  CLI::Option* size =
      command
          ->add_option(
              "--size", options->size,
              "Bytes of the generated checkpoint, bf16 in the Qwen3-MoE layout (default: 256MiB)")
          ->excludes(train, reinforce);
  CLI::Option* engines =
      command
          ->add_option("--engines", options->demo.engines,
                       "Number of engines, divided between the two sidecars (default: 4; with "
                       "--train or --rl, which use one sidecar: 2)")
          ->check(CLI::Range(2, 64));
  command
      ->add_option("--devices", options->demo.devices,
                   "Number of separate devices of each sidecar (default: 4)")
      ->check(CLI::Range(1, 16))
      ->excludes(train, reinforce);
  command
      ->add_option("--output", options->output,
                   "Directory for pictures and trace.json (default: a new directory in /tmp)")
      ->type_name("DIR");
  command
      ->add_option("--work", options->work,
                   "Write checkpoints to a new directory in this one (default: in /tmp)")
      ->type_name("DIR");
  command->add_option("--trace", options->trace, "Write the trace to this file as well")
      ->type_name("FILE")
      ->excludes(reinforce);
  command->add_flag("--keep", options->keep, "Keep checkpoints and logs at the end");
  command->callback([&context, options, size, engines, steps] {
    options->size_given = size->count() > 0;
    options->engines_given = engines->count() > 0;
    options->steps_given = steps->count() > 0;
    context.run("demo", [&] { return run_demo(*options, context.options.json); });
  });
}

}  // namespace wsync::cli
