// RankMachine: the state of one rank of a replica under its sidecar, as a pure state machine. It
// decides which command is accepted in which state, how it is answered, which fence and which
// versions are known, and what the link must do next. It executes nothing: EngineLink executes the
// actions with the engine and the sidecar's memory, and reports each result.
//
//   loading --Load--> tainted --all bytes proven--> loaded --Commit--> paused --Resume--> serving
//   serving --the engine has stopped--> paused --Load--> tainted
//
// A copying load marks the rank tainted before the first byte changes, and only a complete load
// removes the mark. Whether its bytes are right is for the sidecar to say, before it commits. A
// rank that adopts copies nothing, so its state does not change until its load is complete. A rank
// never resumes by itself. The loss of the sidecar changes no state; it ends what the sidecar had
// in progress.
//
// Usage: pass each frame to handle(), each report of the engine to handle_report() and the end of
// the connection to handle_loss(), and execute the returned actions in order. The comment of an
// action names the function that takes its result.
//
// Thread: confined to its driver. No I/O; nothing blocks or throws.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "inference_side/engine_link/engine.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"
#include "shared/control/messages.h"

namespace wsync::engine {

// "loading", "serving", "paused", "loaded" or "tainted", for logs and messages.
[[nodiscard]] std::string_view rank_state_name(control::RankState state) noexcept;
// The transition table of RankMachine, for the protocol documentation.
[[nodiscard]] TransitionTable rank_transitions();

// The identity of this rank, and how it takes weights. Fixed while the machine exists.
struct RankIdentity {
  std::string replica;
  std::uint32_t rank = 0;
  bool leader = true;
  bool adopts = false;   // TakeMode::kAdopt: a load changes no byte of the rank's memory
  bool serving = false;  // serves weights without a version at the start
};

// A report that the engine makes by itself, at the end of its step number `step`.
struct RankReport {
  enum class What : std::uint8_t {
    kPaused,   // it has stopped because a pause was requested
    kStopped,  // it has stopped without a request
    kRunning,  // it serves again
  };
  What what = What::kPaused;
  std::uint64_t step = 0;
};

// The result of a load, measured by the code that executed it.
struct LoadOutcome {
  std::uint64_t bytes = 0;  // that are in place
  std::uint64_t copy_ns = 0;
  std::vector<SplitSum> sums;         // for the answer, as in control::Loaded
  std::vector<SplitSum> before = {};  // likewise
  std::uint64_t written_bytes = 0;    // likewise
  Result<> result;
};

// ---- actions ----

// Send the message under the round and the request of `request`.
struct SendReply {
  control::Envelope request;
  control::Message message;
};
// Count a refusal, log it and send an ErrorReply under `request`.
struct SendRefusal {
  control::Envelope request;
  ErrorCode code = ErrorCode::kRefused;
  std::string why;
};
// Keep the sentence as the link's last error.
struct NoteError {
  std::string sentence;
};
// The sidecar has refused the rank: keep the sentence as NoteError does, and try again later each
// time.
struct NoteRefusal {
  std::string sentence;
  control::Problem problem;  // the first one of the layout; without a tensor if there is none
};
// Map what the welcome contains, then call handle_welcomed(). If that fails, a refusal and a
// disconnect follow.
struct AcceptWelcome {
  control::Envelope request;
  const control::EngineWelcome* message = nullptr;  // borrowed from the frame
};
// Plan and map the version, ask the engine, then call handle_prepared(); `is_refused`: the engine
// has refused it.
struct PrepareVersion {
  control::Envelope request;
  const control::Prepare* message = nullptr;  // borrowed from the frame
};
// The version is prepared: notify the engine.
struct NotifyPrepared {
  Version version;
};
// Unmap a prepared version, unless it is in use.
struct ForgetVersion {
  Version version;
};
// Give up the kept mappings of arenas, except those of versions that are prepared or in use.
struct ForgetArenas {};
// Ask the engine to pause. Call handle_pause_failed() if it refuses. A report says when the engine
// has paused.
struct PauseEngine {
  control::Envelope request;
  PauseRequest what;
};
// Map the buffers or the patch that the load needs, then call handle_buffers_mapped().
struct MapBuffers {
  control::Envelope request;
  const control::Load* message = nullptr;  // borrowed from the frame
};
// Load the prepared version, in place of any load in progress. Call handle_load_ended() at once if
// the version is mapped whole, as it always is for a rank that adopts; otherwise after a later
// TakeBucket.
struct StartLoad {
  Version version;
  TimePoint deadline{};
  std::uint32_t copy_threads = 1;
};
// End the load in progress with kCancelled, then call handle_load_ended().
struct CancelLoad {};
// Copy a bucket out of an IPC buffer, then call handle_bucket_taken(). After it, call
// handle_load_ended() if the bucket was the last one or the copy failed.
struct TakeBucket {
  control::Envelope request;
  std::uint64_t bucket = 0;
  std::uint32_t slot = 0;
};
// Every byte is in place: notify the engine.
struct NotifyLoaded {
  Version version;
  std::uint64_t bytes = 0;
};
// Let the engine commit, then call handle_committed(), at once or when the engine has answered. A
// repetition for the same version, while the engine has not answered, replaces only the request.
struct CommitEngine {
  control::Envelope request;
  Version version;
};
// The engine now serves from the loaded version; the previous version may be unmapped.
struct ActivateLoaded {};
// Let the engine resume, then call handle_resumed().
struct ResumeEngine {
  control::Envelope request;
  bool overtakes_pause = false;  // a pause has no answer yet
};
// Read the rank's tensors back and answer with their digests. Call check_readable() before each of
// them.
struct ReadTensors {
  control::Envelope request;
  Version version;
};
// Read a patch whose load may follow. Nothing is answered.
struct ReadPatchAhead {
  const control::PatchAhead* message = nullptr;  // borrowed from the frame
};
// Begin or end a scrub. Its report is sent when there is one, not as an answer.
struct ScrubWeights {
  control::Scrub message;
};
using RankAction =
    std::variant<SendReply, SendRefusal, NoteError, NoteRefusal, AcceptWelcome, PrepareVersion,
                 NotifyPrepared, ForgetVersion, ForgetArenas, PauseEngine, MapBuffers, StartLoad,
                 CancelLoad, TakeBucket, NotifyLoaded, CommitEngine, ActivateLoaded, ResumeEngine,
                 ReadTensors, ReadPatchAhead, ScrubWeights>;
using RankActions = std::vector<RankAction>;

// This class has more than 25 methods: each of the sixteen messages of a sidecar has an overload
// of handle_command().
class RankMachine {
 public:
  explicit RankMachine(RankIdentity identity);

  // Handles a frame of the sidecar. Refuses, without any other effect: a fence below the highest
  // known fence, a message for another rank, a command before the welcome, a message that is not
  // for engines.
  [[nodiscard]] RankActions handle(const control::Envelope& envelope,
                                   const control::Message& message);
  // Handles a report of the engine.
  [[nodiscard]] RankActions handle_report(const RankReport& report);
  // The connection has ended or could not be established. Prepared versions, the load in progress
  // and an unanswered pause are dropped; the state does not change.
  [[nodiscard]] RankActions handle_loss(const std::string& why);

  // The engine has given its memory away, after handle_loss(): it holds no version, whatever it
  // held. The highest fence stays known.
  void handle_suspended();

  // ---- results of actions, with their `request` ----

  void handle_welcomed();
  [[nodiscard]] RankActions handle_prepared(const control::Envelope& request,
                                            const Version& version, const Result<>& outcome,
                                            bool is_refused = false);
  [[nodiscard]] RankActions handle_pause_failed(const control::Envelope& request,
                                                const Error& error);
  // `now` is the beginning of the load; its deadline is measured from there.
  [[nodiscard]] RankActions handle_buffers_mapped(const control::Envelope& request,
                                                  const control::Load& load,
                                                  const Result<>& outcome, TimePoint now);
  [[nodiscard]] static RankActions handle_bucket_taken(const control::Envelope& request,
                                                       std::uint64_t bucket,
                                                       const Result<>& outcome);
  // Call only while loading() has a version.
  [[nodiscard]] RankActions handle_load_ended(const LoadOutcome& outcome);
  [[nodiscard]] RankActions handle_committed(const control::Envelope& request,
                                             const Version& version, const Result<>& outcome);
  // `paused_at`: set if the engine reported, before it resumed, that the overtaken pause ended at
  // this step. That report must not be passed to handle_report().
  [[nodiscard]] RankActions handle_resumed(const control::Envelope& request,
                                           const Result<>& outcome,
                                           std::optional<std::uint64_t> paused_at);

  // ---- views ----

  [[nodiscard]] control::RankState state() const noexcept { return state_; }
  [[nodiscard]] const Version& active() const noexcept { return active_; }  // 0.0 = none
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  // Whether the engine was asked to pause and has not answered yet.
  [[nodiscard]] bool is_asked_to_pause() const noexcept { return pending_pause_.has_value(); }
  // Whether a sidecar has welcomed this rank and is not lost.
  [[nodiscard]] bool welcomed() const noexcept { return welcomed_; }
  // The version that is being loaded.
  [[nodiscard]] std::optional<Version> loading() const;
  // The envelope of an answer to `request`: its round and request, this rank, the highest fence.
  [[nodiscard]] control::Envelope answer_to(const control::Envelope& request) const;
  // Whether the rank still holds `version`, with which a read-back began; kRefused if not.
  [[nodiscard]] Result<> check_readable(const Version& version) const;
  // Returns kInternal with the first broken rule. Rules: only `loaded` names a loaded version; a
  // load runs only in a rank that does not serve, and a copying load marks it as tainted; only a
  // leader has an unanswered pause; without a sidecar, nothing of a sidecar is in progress.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Load {
    control::Envelope request;
    Version version;
  };

  [[nodiscard]] Result<> move(control::RankState to);
  // Why a rank that neither serves nor is paused cannot be read, in one sentence.
  [[nodiscard]] std::string why_no_version() const;
  [[nodiscard]] std::optional<SendRefusal> refusal_of(const control::Envelope& envelope,
                                                      const control::Message& message) const;
  // One overload for each message that a sidecar may send.
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::EngineWelcome& message);
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Refuse& message);
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::ErrorReply& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Prepare& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Release& message);
  [[nodiscard]] static RankActions handle_command(const control::Envelope& envelope,
                                                  const control::UnmapArenas& message);
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Abort& message);
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Pause& message);
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Load& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::BucketReady& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Commit& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Resume& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::ReadDigests& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::PatchAhead& message) const;
  [[nodiscard]] static RankActions handle_command(const control::Envelope& envelope,
                                                  const control::Scrub& message);
  [[nodiscard]] static RankActions handle_command(const control::Envelope& envelope,
                                                  const control::Ping& message);
  [[nodiscard]] Result<> begin_load(const control::Envelope& request, const control::Load& load);

  RankIdentity identity_;
  control::RankState state_ = control::RankState::kLoading;
  Version active_;
  std::optional<Version> loaded_;  // in kLoaded: proven, not committed
  std::uint64_t step_ = 0;
  control::Fence fence_;  // highest seen
  bool welcomed_ = false;
  // Of this release, those that the sidecar of this connection has named.
  control::Capabilities capabilities_ = 0;
  bool refused_ = false;                            // by the sidecar, on this connection
  std::optional<control::Envelope> pending_pause_;  // not answered yet
  std::set<Version> prepared_;
  std::optional<Load> load_;
};

}  // namespace wsync::engine
