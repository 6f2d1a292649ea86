// The fleet of `wsync demo`: sidecars, engines and, unless the demo trains, a trainer agent, as
// processes, and what a user would ask of them.
//
// Thread: the one of `children`. Outlives: `children` outlives the fleet.
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

namespace wsync::cli {

inline constexpr std::uint32_t kDemoSidecars = 2;

struct FleetOptions {
  std::uint32_t sidecars = kDemoSidecars;
  std::uint32_t engines = 4;  // of all sidecars together
  std::uint32_t devices = 4;  // separate ones, of each sidecar
  std::uint64_t buffer_bytes = 0;
  // Without, the first sidecar is asked what is asked here, and no engine is a killed.
  bool with_trainer = true;
  bool generates = false;  // engines answer over HTTP, and are no killed
  std::string run_dir;     // sockets
  std::string trace_dir;   // <sidecar>.json and .svg, trainer.json; written when they end
  std::string checkpoint;  // names and shapes of the engines' model
};

// The `result` of one object that a command has printed with --json; `line`: the last one of its
// output. kInternal: it is otherwise.
[[nodiscard]] Result<nlohmann::json> result_in(const std::string& line, const std::string& command);

// What an engine said of itself when it ended.
struct EngineResult {
  std::string replica;
  std::uint64_t steps = 0;
  std::uint64_t torn = 0;
  std::map<std::string, std::uint64_t> steps_by_version;
};
// For --json: a list, in this order.
nlohmann::json engines_json(const std::vector<EngineResult>& engines);

class DemoFleet {
 public:
  DemoFleet(ChildProcesses& children, FleetOptions options);
  // Ends what still runs, as stop() does.
  ~DemoFleet();
  DemoFleet(const DemoFleet&) = delete;
  DemoFleet& operator=(const DemoFleet&) = delete;

  // Starts every process, and returns when every engine has attached.
  [[nodiscard]] Result<> start();

  // One question to the coordinator, or to the first sidecar. At most one ask() beside one begin().
  template <class Reply>
  [[nodiscard]] Result<Reply> ask(const control::Message& message) {
    const std::unique_ptr<Question> question = begin(message);
    return answer<Reply>(*question);
  }
  // A question that is answered while the scenario goes on. Destroyed before its answer, it ends the
  // trainer, and so itself.
  class Question {
   public:
    explicit Question(DemoFleet& fleet) : fleet_(fleet) {}
    ~Question();
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    [[nodiscard]] bool answered() const noexcept { return state_->done; }

   private:
    friend class DemoFleet;
    struct State {
      bool done = false;
      Result<control::Decoded> decoded = fail(ErrorCode::kInternal, "not answered yet");
    };
    DemoFleet& fleet_;
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

  // Returns when every replica but `except` serves `version` and is ready.
  [[nodiscard]] Result<> until_ready(const Version& version, const std::string& except = {});
  // Returns the report of a replica as soon as `wanted` holds for it.
  [[nodiscard]] Result<control::ReplicaReport> until_replica(
      const std::string& replica, const std::string& what,
      const std::function<bool(const control::ReplicaReport&)>& wanted);
  // Reads back what the engines hold: `engines` of them are there, all on `version`, without a
  // difference. kDigestMismatch otherwise. Returns the bytes compared.
  [[nodiscard]] Result<std::uint64_t> verify(const Version& version, std::size_t engines);
  // The same while versions come and go: every engine on any of them. Returns what each holds.
  [[nodiscard]] Result<std::vector<control::VerifyRank>> verify_whatever(std::size_t engines);

  // The engine that may be killed: its lines are read.
  [[nodiscard]] Child& killed_engine() noexcept { return *killed_engine_; }
  [[nodiscard]] const std::string& killed_replica() const noexcept { return replicas_.back(); }
  // Starts it anew, as a process whose lines are not read.
  [[nodiscard]] Result<> restart_killed_engine();

  // Ends trainer, engines and sidecars, in this order; what the engines have counted. Processes
  // that do not end by themselves are killed.
  [[nodiscard]] Result<std::vector<EngineResult>> stop();

  [[nodiscard]] const std::vector<std::string>& replicas() const noexcept { return replicas_; }
  // Where each engine that generates is reached. kDeadline: one does not listen.
  [[nodiscard]] Result<std::vector<std::string>> addresses();
  [[nodiscard]] static std::string sidecar_name(std::uint32_t index);

 private:
  [[nodiscard]] std::string address() const;
  [[nodiscard]] Result<> wait_for(Question& question);
  [[nodiscard]] Result<> start_sidecar(std::uint32_t index);
  [[nodiscard]] Result<> start_trainer();
  [[nodiscard]] Result<Child*> start_engine(std::uint32_t index, ChildOutput output);
  [[nodiscard]] Result<control::StatusReply> status();
  [[nodiscard]] Result<> until_status(
      const std::string& what, const std::function<bool(const control::StatusReply&)>& holds);
  void end_trainer();
  void end_all();
  [[nodiscard]] Result<EngineResult> result_of(std::uint32_t index) const;

  ChildProcesses& children_;
  const FleetOptions options_;
  std::vector<std::string> replicas_;  // by engine
  Child* trainer_ = nullptr;
  std::vector<Child*> sidecars_;
  std::vector<Child*> engines_;
  Child* killed_engine_ = nullptr;
};

}  // namespace wsync::cli
