// Fleet: starts sidecars, engines and, on request, a trainer as processes of this machine, and
// sends them the requests that a user would send. `wsync demo`, the benchmarks and the soak tests
// use it. SidecarSpec and EngineSpec describe the processes that they need.
//
// Thread: that of the ChildProcesses, which outlive the fleet.
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
  std::string name;     // name of the process and of its log
  std::string sidecar;  // one of FleetOptions::sidecars
  std::string replica;
  std::vector<std::string> command;  // "engine" and its options, without --sidecar and --replica
  ChildOutput output = ChildOutput::kFile;
  ChildInput input = ChildInput::kNone;
};

struct FleetOptions {
  std::string executable;  // path of wsync; empty: the executable of this process
  std::string prefix;      // prefix of sidecar and trainer process names; unique per fleet
  std::string run_dir;     // directory of sockets; must be a short path
  std::string state_dir;
  std::vector<SidecarSpec> sidecars;
  std::vector<EngineSpec> engines;
  // Settings of `wsync trainer`. Without them no trainer is started: the caller publishes by other
  // means, and the first sidecar handles the requests below.
  std::optional<std::vector<std::string>> trainer;
};

// Counters of an engine at its end.
struct EngineResult {
  std::string replica;
  std::uint64_t steps = 0;
  std::uint64_t torn = 0;
  std::map<std::string, std::uint64_t> steps_by_version;
};

// Returns the `result` of the JSON object that a command printed with --json. kInternal if `line`
// is not such an object.
[[nodiscard]] Result<nlohmann::json> result_in(const std::string& line, const std::string& command);
// Returns the last line of a file; empty if it has none.
[[nodiscard]] std::string last_line_of(const std::string& path);

// This class has more than 25 methods because it starts, queries, awaits and stops each kind of
// process.
class Fleet {
 public:
  Fleet(ChildProcesses& children, FleetOptions options);
  // Calls shutdown().
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Starts every process and returns when every engine has attached. `on_line` may be empty. It
  // receives each line of engines with ChildOutput::kLines, inside ChildProcesses::until(). Errors:
  // kDeadline; those of until().
  using OnLine = std::function<void(std::size_t engine, const std::string& line)>;
  [[nodiscard]] Result<> start(const OnLine& on_line = {});

  // Sends one request to the coordinator, or to the first sidecar, and returns the reply. At most
  // one ask() may run while one begin() is pending.
  template <class Reply>
  [[nodiscard]] Result<Reply> ask(const control::Message& message) {
    const std::unique_ptr<Question> question = begin(message);
    return answer<Reply>(*question);
  }
  // A pending request. The caller can do other work until the reply arrives. Destroying it before
  // that ends the trainer, because nothing else can end the wait of the request's thread.
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
      Result<control::Decoded> decoded = fail(ErrorCode::kInternal, "no reply has arrived yet");
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
    return fail(ErrorCode::kInternal, "the coordinator sent a reply of another type");
  }

  // Returns when every engine except `except` is ready and serves `version`.
  [[nodiscard]] Result<> until_ready(const Version& version, const std::string& except = {});
  // Returns the report of a replica as soon as `wanted` accepts it.
  [[nodiscard]] Result<control::ReplicaReport> until_replica(
      const std::string& replica, const std::string& what,
      const std::function<bool(const control::ReplicaReport&)>& wanted);
  // Reads back the weights of the engines. Checks that `engines` engines reply, that all hold
  // `version`, and that no tensor differs. kDigestMismatch otherwise. If `version` is none, they
  // may hold any version, and one that is loading another one meanwhile is asked again.
  [[nodiscard]] Result<std::vector<control::VerifyRank>> verify(const Version& version,
                                                                std::size_t engines);

  [[nodiscard]] const FleetOptions& options() const noexcept { return options_; }
  [[nodiscard]] Child& engine(std::size_t index) noexcept { return *engines_[index]; }
  [[nodiscard]] const Child& engine(std::size_t index) const noexcept { return *engines_[index]; }
  [[nodiscard]] const Child& sidecar(std::size_t index) const noexcept { return *sidecars_[index]; }
  // Null if the fleet has no trainer.
  [[nodiscard]] const Child* trainer() const noexcept { return trainer_; }
  // Returns true if every process that was started is still running.
  [[nodiscard]] bool all_running() const noexcept;
  // Starts a new process in place of an engine that has ended. Its output goes to a file.
  [[nodiscard]] Result<> restart_engine(std::size_t index);
  // Returns the URLs of engines that serve HTTP and whose output goes to files. kDeadline if an
  // engine does not listen.
  [[nodiscard]] Result<std::vector<std::string>> addresses();
  // Returns the options of a child process of this fleet: its program, and the fleet's environment
  // variables with the given arguments.
  [[nodiscard]] ChildOptions command(std::string name, std::vector<std::string> arguments) const;
  // Returns the control address of the coordinator, or of the first sidecar.
  [[nodiscard]] std::string address() const;

  // Ends trainer, engines and sidecars, in this order. Kills processes that do not end by
  // themselves.
  void shutdown();
  // Calls shutdown() and returns the counters of the engines, whose output must go to files.
  // kInternal if an engine did not print its result.
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
