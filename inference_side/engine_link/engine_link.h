// EngineLink: one rank's side of the link to its sidecar. RankMachine decides the effect of a
// command in the rank's current state, LinkConnection owns the socket, and VersionLoader holds and
// loads the versions. EngineLink connects these three with the Engine.
//
// When the sidecar is lost, a serving rank continues to serve and a paused rank stays paused.
// Leases of versions that are not in use are released. The link reconnects with growing pauses, and
// its hello reports the rank's state.
//
// Thread: poll() and everything that it calls (the Engine) belong to one thread: the caller's, or
// the link's own thread after start(). report_*(), status() and fd() may be called from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/link_connection.h"
#include "inference_side/engine_link/rank_machine.h"
#include "inference_side/engine_link/read_back.h"
#include "inference_side/engine_link/version_loader.h"
#include "shared/base/unique_fd.h"

namespace wsync::engine {

// What a sidecar has said when it refused this rank.
struct LinkRefusal {
  // Counts refusals that differ from the one before, or that come after another error or after a
  // prepared version. 0: there was none.
  std::uint64_t number = 0;
  bool holds = false;        // no sidecar has welcomed the rank since
  std::string sentence;      // why
  control::Problem problem;  // the first one of the layout; without a tensor if there is none
};

struct LinkStatus {
  bool attached = false;  // welcomed by a sidecar
  control::RankState state = control::RankState::kLoading;
  Version active;  // 0.0 = none
  // Frames and commands that this rank has refused, and attempts to attach that a sidecar has.
  std::uint64_t refusals = 0;
  LinkRefusal refusal;             // of a sidecar, the newest one
  std::string last_error;          // one sentence; empty = none so far
  std::uint64_t copied_bytes = 0;  // of weights, by all loads so far; none by kAdopt
};

// This class has more than 25 methods: it implements the calls of the engine, the callbacks of the
// connection and the actions of RankMachine.
class EngineLink final : private LinkHandler {
 public:
  // Checks the description (replica name, world size, destinations on a GPU) and creates the
  // descriptors. It does not connect; the first poll() does. `engine` is borrowed and must outlive
  // the link.
  [[nodiscard]] static Result<std::unique_ptr<EngineLink>> create(EngineDescription description,
                                                                  std::string socket_path,
                                                                  Engine& engine);
  ~EngineLink();
  EngineLink(const EngineLink&) = delete;
  EngineLink& operator=(const EngineLink&) = delete;

  // Readable when poll() has something to do.
  [[nodiscard]] int fd() const noexcept { return connection_->fd(); }
  // Waits up to timeout_ms (-1: without limit) for an event and handles it. The only error is kIo,
  // because the loss of a sidecar is not an error here. During a `wsync verify`, each call reads
  // back at least one tensor. It begins no further tensor after 2 ms, or after another event has
  // arrived. During a scrub of what only the engine can read, it reads when that is due
  // (EngineScrub).
  [[nodiscard]] Result<> poll(int timeout_ms);
  // Serves the link on its own thread until stop(); must not be combined with poll(). Returns
  // kInvalidInput if it was started or stopped before: a link can be started only once.
  [[nodiscard]] Result<> start();
  // Ends the thread of start() after the current callback. Does nothing without a thread.
  void stop();

  // Ends the link for a time in which the rank has no memory for weights. Until resume(), no memory
  // of the engine is touched, the engine is not called, and poll() only waits. The thread of
  // start() ends. What was loaded is forgotten: the rank holds no version afterwards. kBusy, and
  // nothing changes, while the engine has not answered a load or a commit (Answer::kLater): its
  // threads read the version. kInvalidInput if it is suspended already. Owner's thread, not in a
  // callback.
  [[nodiscard]] Result<> suspend();
  // While it is suspended: the memory of a tensor is at this address when it comes back. It is
  // checked by resume(). kInvalidInput if the link is not suspended, if the rank does not take
  // pieces, or if it has no such tensor.
  [[nodiscard]] Result<> move_destination(std::size_t tensor, std::byte* address);
  // The memory is there again, at the addresses of the description. On a GPU they are checked
  // again; the error names the tensor, and the link stays suspended. The link connects anew, and
  // the thread of start() runs again. kInvalidInput if it is not suspended; kResourceExhausted.
  [[nodiscard]] Result<> resume();
  [[nodiscard]] bool is_suspended() const noexcept { return suspended_; }

  // This rank has stopped serving after step `step`. Every rank must call this when the leader
  // stops.
  void report_paused(std::uint64_t step);
  // This rank has stopped serving after step `step` without a request, because the rank's group
  // broke or a rank refused a step.
  void report_stopped(std::uint64_t step);
  // This rank serves again, beginning with step `step`. Followers must call this; for the leader,
  // resume() implies it.
  void report_running(std::uint64_t step);
  // Waits while another thread handles what the sidecar has sent and has not shown yet that it
  // loads. After that, a report that was made before this call is handled before anything that the
  // sidecar sends. kDeadline after half a minute.
  [[nodiscard]] Result<> wait_until_settled();
  // The engine has used all layers of a load that it has answered with Answer::kLater, or it has
  // failed.
  void report_loaded(const Version& version, Result<> result);
  // The same for a commit.
  void report_committed(const Version& version, Result<> result);
  // The layout of a version that is prepared, loaded or active; null if there is none.
  [[nodiscard]] std::shared_ptr<const EngineLayout> layout(const Version& version) const;
  // The newest state, as of the last event.
  [[nodiscard]] LinkStatus status() const;

 private:
  EngineLink(EngineDescription description, Engine& engine);

  // ---- LinkHandler ----
  std::pair<control::Envelope, control::EngineHello> make_hello() override;
  void handle_wake() override;
  void handle_frame(control::Frame frame) override;
  void handle_malformed(const std::optional<control::Envelope>& envelope,
                        const Error& error) override;
  void handle_loss(const std::string& why) override;

  // Executes the decisions of the machine in order, and what follows from them. `fds`: descriptors
  // of the frame that caused them. Any answer may end the connection.
  void execute(const RankActions& actions, std::span<const UniqueFd> fds = {});
  void accept_welcome(const AcceptWelcome& action, std::span<const UniqueFd> fds);
  void take_bucket(const TakeBucket& action);
  void end_load(const LoadOutcome& outcome) { execute(machine_.handle_load_ended(outcome)); }
  void prepare(const PrepareVersion& action, std::span<const UniqueFd> fds);
  [[nodiscard]] Result<> map_buffers(const control::Load& load, std::span<const UniqueFd> fds);
  void start_load(const StartLoad& action);
  // std::nullopt: what was postponed is no longer to be loaded.
  void postpone(std::optional<StartLoad> load);
  void commit(const CommitEngine& action);
  void resume_engine(const ResumeEngine& action);
  void read_tensors();
  void report_scrubbed();
  void report(RankReport report);
  struct LateAnswer {
    enum class Call : std::uint8_t { kLoad, kCommit };
    Call call = Call::kLoad;
    Version version;
    Result<> result;
  };
  void report_late(LateAnswer answer);
  void handle_late(LateAnswer answer);
  void run();
  void end_thread();
  void publish_layouts();
  void publish_status();
  void note_error(const std::string& sentence);
  void note_refusal(const NoteRefusal& refusal);

  EngineDescription
      description_;  // changed only by move_destination() and resume(); others refer to it
  Engine& engine_;
  RankMachine machine_;
  // Declared before loader_, so that it is destroyed after it: buffers of the sidecar must be
  // unmapped before the sidecar sees the closed socket and frees them.
  std::unique_ptr<LinkConnection> connection_;
  std::unique_ptr<VersionLoader> loader_;
  std::optional<ReadBack> reading_;  // each poll() continues it
  // The commit that the engine has answered with Answer::kLater.
  std::optional<CommitEngine> committing_;
  // The newest load that came while the engine had not answered an earlier one, and what the
  // sidecar has for it. It begins when the engine has.
  std::optional<StartLoad> postponed_;
  std::vector<TakeBucket> postponed_buckets_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable settled_;
  std::thread::id served_by_;  // the thread of the last poll()
  bool is_handling_ = false;   // reports that are no longer in reports_, or frames
  std::deque<RankReport> reports_;
  std::deque<LateAnswer> late_answers_;
  std::map<Version, std::shared_ptr<const EngineLayout>> layouts_;
  LinkStatus status_;
  bool stopping_ = false;
  // Of the sidecar: the next attempt may have the same answer, which is logged once. "": none since
  // another error or a version that was prepared. Used by the thread that polls.
  std::string last_refusal_;
  std::thread thread_;       // owner's thread only
  bool suspending_ = false;  // owner's thread only
  bool suspended_ = false;   // owner's thread only
  bool had_thread_ = false;  // while suspended
};

}  // namespace wsync::engine
