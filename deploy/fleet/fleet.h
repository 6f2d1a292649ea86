// Fleet: sidecars, engines and, if asked for, a trainer as processes of this machine, and the
// questions that a user would ask them. `wsync demo`, the benchmarks and the soak tests start their
// processes with it; each says by SidecarSpec and EngineSpec what it wants of them.
//
// Thread: the one of the ChildProcesses, which outlive the fleet.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shared/control/codec.h"
#include "shared/control/messages.h"
#include "shared/loop/child_process.h"

namespace wsync::fleet {

using cli::Child;
using cli::ChildInput;
using cli::ChildOptions;
using cli::ChildOutput;
using cli::ChildProcesses;

struct SidecarSpec {
  std::string name;
  std::vector<std::string> settings;  // "devices.count=2"
};

struct EngineSpec {
  std::string name;     // of the process, and of its log
  std::string sidecar;  // one of the fleet's
  std::string replica;
  std::vector<std::string> command;  // "engine" and its options, but for --sidecar and --replica
  ChildOutput output = ChildOutput::kFile;
  ChildInput input = ChildInput::kNone;
};

struct FleetOptions {
  std::string executable;  // wsync; empty: this process's
  std::string prefix;      // of the names of sidecar and trainer processes; fleets must differ
  std::string run_dir;     // for sockets; its path is short
  std::string state_dir;
  std::vector<SidecarSpec> sidecars;
  std::vector<EngineSpec> engines;
  // Settings of `wsync trainer`. Without, the caller publishes by other means, and the first
  // sidecar answers the questions below.
  std::optional<std::vector<std::string>> trainer;
};

// What an engine counted until its end.
struct EngineResult {
  std::string replica;
  std::uint64_t steps = 0;
  std::uint64_t torn = 0;
  std::map<std::string, std::uint64_t> steps_by_version;
};

// The `result` of one object that a command has printed with --json. kInternal: `line` is none.
[[nodiscard]] Result<nlohmann::json> result_in(const std::string& line, const std::string& command);
// The last line of a file; empty when it has none.
[[nodiscard]] std::string last_line_of(const std::string& path);

// It has more than 25 methods: it starts, asks, awaits and stops each kind of process.
class Fleet {
 public:
  Fleet(ChildProcesses& children, FleetOptions options);
  // Ends what still runs, as shutdown() does.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Starts every process, and returns when every engine has attached. `on_line` (may be empty) gets
  // each line of an engine whose output is lines, inside ChildProcesses::until(). kDeadline; errors
  // of until().
  using OnLine = std::function<void(std::size_t engine, const std::string& line)>;
  [[nodiscard]] Result<> start(const OnLine& on_line = {});

  // One question to the coordinator, or to the first sidecar. At most one ask() beside one begin().
  template <class Reply>
  [[nodiscard]] Result<Reply> ask(const control::Message& message) {
    const std::unique_ptr<Question> question = begin(message);
    return answer<Reply>(*question);
  }
  // A question that is answered while the caller does other things. Destroyed before its answer, it
  // ends the trainer, because nothing else ends a wait for the answer.
  class Question {
   public:
    explicit Question(Fleet& fleet) : fleet_(fleet) {}
    ~Question();
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    [[nodiscard]] bool answered() const noexcept { return state_->done; }

   private:
    friend class Fleet;
    struct State {
      bool done = false;
      Result<control::Decoded> decoded = fail(ErrorCode::kInternal, "not answered yet");
    };
    Fleet& fleet_;
    std::shared_ptr<State> state_ = std::make_shared<State>();
    std::jthread thread_;
  };
  [[nodiscard]] std::unique_ptr<Question> begin(control::Message message);
  template <class Reply>
  [[nodiscard]] Result<Reply> answer(Question& question) {
    WSYNC_TRY(wait_for(question));
    if (auto* reply = std::get_if<Reply>(&question.state_->decoded->message))
      return std::move(*reply);
    return fail(ErrorCode::kInternal, "the coordinator gave another answer than asked for");
  }

  // Returns when every engine but those of `except` serves `version` and is ready.
  [[nodiscard]] Result<> until_ready(const Version& version, const std::string& except = {});
  // Returns the report of a replica as soon as `wanted` holds for it.
  [[nodiscard]] Result<control::ReplicaReport> until_replica(
      const std::string& replica, const std::string& what,
      const std::function<bool(const control::ReplicaReport&)>& wanted);
  // Reads back what the engines hold: `engines` of them answer, all of `version` (of any version,
  // if it is none), without a difference. kDigestMismatch otherwise.
  [[nodiscard]] Result<std::vector<control::VerifyRank>> verify(const Version& version,
                                                                std::size_t engines);

  [[nodiscard]] const FleetOptions& options() const noexcept { return options_; }
  [[nodiscard]] Child& engine(std::size_t index) noexcept { return *engines_[index]; }
  [[nodiscard]] const Child& engine(std::size_t index) const noexcept { return *engines_[index]; }
  [[nodiscard]] const Child& sidecar(std::size_t index) const noexcept { return *sidecars_[index]; }
  [[nodiscard]] const Child* trainer() const noexcept { return trainer_; }  // null without one
  // Whether every process that was started still runs.
  [[nodiscard]] bool all_running() const noexcept;
  // Starts a new process in place of an engine that has ended; its output goes to a file.
  [[nodiscard]] Result<> restart_engine(std::size_t index);
  // The URLs of engines that serve HTTP and whose output goes to files. kDeadline: one does not
  // listen.
  [[nodiscard]] Result<std::vector<std::string>> addresses();
  // A command of the fleet: its program, and its variables beside the given ones.
  [[nodiscard]] ChildOptions command(std::string name, std::vector<std::string> arguments) const;
  // Where the coordinator answers, or the first sidecar.
  [[nodiscard]] std::string address() const;

  // Ends trainer, engines and sidecars, in this order. Processes that do not end by themselves are
  // killed.
  void shutdown();
  // The same, and what the engines have counted; their output goes to files. kInternal: one has not
  // told it.
  [[nodiscard]] Result<std::vector<EngineResult>> stop();

 private:
  [[nodiscard]] Result<> wait_for(Question& question);
  [[nodiscard]] Result<> until_socket(const std::string& path);
  [[nodiscard]] Result<Child*> start_engine(const EngineSpec& engine, ChildOutput output);
  [[nodiscard]] Result<> until_status(
      const std::string& what, const std::function<bool(const control::StatusReply&)>& holds);
  void end_trainer();
  [[nodiscard]] Result<EngineResult> result_of(std::size_t index) const;

  ChildProcesses& children_;
  const FleetOptions options_;
  Child* trainer_ = nullptr;
  std::vector<Child*> sidecars_;
  std::vector<Child*> engines_;
};

}  // namespace wsync::fleet
