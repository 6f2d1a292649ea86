// Scenario: what the scenarios of `wsync demo` have in common. Each of them runs a fleet of real
// processes on this machine, checks what the fleet does, and reports it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "deploy/fleet/fleet.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/command/context.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/chrome_trace.h"

namespace wsync::cli {

inline constexpr std::uint32_t kTrainStepsMin = 4;  // the picture shows two steps
inline constexpr std::uint32_t kTrainStepsMax = 10'000;
inline constexpr std::uint32_t kRlStepsMax = 100'000;

struct DemoOptions {
  std::uint32_t engines = 4;
  // Options of the main scenario:
  std::string checkpoint;  // empty: generate one
  std::uint64_t size = 0;  // bytes of a generated checkpoint
  std::uint32_t devices = 4;
  // Options of the training scenarios:
  std::uint32_t steps = 150;  // with --rl: steps that train on generated answers
  std::uint32_t warm_start_steps = 90;
  std::uint32_t max_staleness = 0;
  std::uint32_t seed = 1;
  bool sync = true;  // false: engines keep the first weights

  std::string run_dir;    // for sockets; must be a short path
  std::string state_dir;  // of the coordinator
  std::string work_dir;   // for checkpoints
  std::string trace_dir;  // for the traces of the processes
};

// Environment of a scenario. All references are borrowed and outlive the scenario.
struct DemoContext {
  ChildProcesses& children;
  const DemoOptions& options;
  std::function<Result<std::string>()> output;  // directory of pictures and traces
  std::function<void(const std::string&)> on_line;

  // Reports one event as a line of text.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    on_line(fmt::format(format, std::forward<Args>(args)...));
  }
};

// Thread: that of the context's children. All of its processes have ended after its destruction.
class Scenario {
 public:
  explicit Scenario(const DemoContext& context) : context_(context), options_(context.options) {}
  virtual ~Scenario() = default;
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  // Runs once. Errors: those of ChildProcesses::until(), explained from the output of the
  // processes; kDigestMismatch if an engine holds other bytes than it should; kInternal if another
  // check of the scenario failed. The exit code of the outcome is 1 if a generation step of an
  // engine was torn.
  [[nodiscard]] Result<Outcome> run();

 protected:
  // Starts fleet_ and does everything that needs it.
  [[nodiscard]] virtual Result<> play() = 0;
  // Writes the files and adds the scenario's own fields to report_, with "picture" and possibly
  // "trace". Returns a table for people. Called after the fleet has ended.
  [[nodiscard]] virtual Result<std::string> report() = 0;

  // Each sidecar has `devices` separate devices. Engines are distributed over the sidecars.
  // `model`: options of an engine that define its weights.
  struct FleetShape {
    std::uint32_t sidecars = 1;
    std::uint32_t devices = 2;
    std::uint64_t buffer_bytes = limits::kMiB;
    std::vector<std::string> model;
  };
  [[nodiscard]] fleet::FleetOptions fleet_options(const FleetShape& shape) const;
  [[nodiscard]] Result<> start_fleet(fleet::FleetOptions options);
  // Returns the name of a sidecar, such as "host0".
  [[nodiscard]] static std::string sidecar_name(std::uint32_t index);

  struct Verified {
    std::uint64_t bytes = 0;            // that were read back
    std::vector<std::string> versions;  // that the engines hold, without duplicates
  };
  // Checks that so many engines hold `version` (any version if it is none) and that every tensor is
  // equal.
  [[nodiscard]] Result<Verified> verify(const Version& version, std::size_t engines) const;

  // Reads the traces <name>.json that processes have written. Errors as trace::read_chrome_trace().
  [[nodiscard]] Result<std::vector<trace::ProcessTrace>> read_traces(
      const std::vector<std::string>& names) const;
  // Writes one trace of all processes, with the flows of updates, and reports the file.
  [[nodiscard]] Result<> write_trace(const std::string& output,
                                     std::vector<trace::ProcessTrace> processes);
  // Describes this machine, such as "2 cores of AMD EPYC 7B13".
  [[nodiscard]] static std::string machine_text();

  const DemoContext& context_;
  const DemoOptions& options_;
  const TimePoint begin_ = now();
  nlohmann::json report_;   // output of --json
  std::uint64_t torn_ = 0;  // torn steps of engines that have ended
  std::unique_ptr<fleet::Fleet> fleet_;

 private:
  [[nodiscard]] Result<Outcome> play_and_report();
};

// Main scenario: publish three versions, kill an engine in the middle of a switch, repair it,
// refuse an invalid checkpoint, and roll back.
[[nodiscard]] std::unique_ptr<Scenario> make_demo_scenario(const DemoContext& context);
// --train: engines load the weights of every training step.
[[nodiscard]] std::unique_ptr<Scenario> make_train_scenario(const DemoContext& context);
// --rl: a policy learns from the answers that engines generate with it.
[[nodiscard]] std::unique_ptr<Scenario> make_rl_scenario(const DemoContext& context);

}  // namespace wsync::cli
