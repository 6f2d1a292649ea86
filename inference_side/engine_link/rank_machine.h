// RankMachine: the state of one rank of a replica as its sidecar drives it, as a pure state
// machine. It decides which command is accepted in which state, what is answered, which fence and
// which versions are known, and what the link has to do next. Nothing runs here: EngineLink
// executes the actions with the engine and the sidecar's memory, and reports each result back.
//
//   loading --Load--> tainted --all bytes proven--> loaded --Commit--> paused --Resume--> serving
//   serving --the engine has stopped--> paused --Load--> tainted
//
// A copying load marks the rank tainted before the first byte changes, and only a complete, proven
// load ends that. A rank that adopts copies nothing, so its state stays until the load is proven.
// A rank never resumes by itself. The loss of the sidecar changes no state; it ends what the
// sidecar had in progress.
//
// Driving it: give each frame to handle(), each report of the engine to handle_report() and the end
// of the connection to handle_loss(), and execute the actions that come back in their order. The
// comment of an action names the function that takes its result.
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

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"
#include "shared/control/messages.h"

namespace wsync::engine {

// "loading", "serving", "paused", "loaded" or "tainted", as in logs and sentences.
[[nodiscard]] std::string_view rank_state_name(control::RankState state) noexcept;
// The transition table of RankMachine, for the page of the protocol.
[[nodiscard]] TransitionTable rank_transitions();

// Which rank this is, and how it takes weights. Fixed while the machine lives.
struct RankIdentity {
  std::string replica;
  std::uint32_t rank = 0;
  bool leader = true;
  bool adopts = false;   // TakeMode::kAdopt: a load changes no byte of the rank's memory
  bool serving = false;  // it serves weights of its own when it starts
};

// What the engine says by itself, at the end of its step number `step`.
struct RankReport {
  enum class What : std::uint8_t {
    kPaused,   // it has stopped because a pause was requested
    kStopped,  // it has stopped without a request
    kRunning,  // it serves again
  };
  What what = What::kPaused;
  std::uint64_t step = 0;
};

// How a load went, measured by the one who ran it.
struct LoadOutcome {
  std::uint64_t bytes = 0;  // proven
  std::uint64_t copy_ns = 0;
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
// Map what the welcome brings. Then handle_welcomed(); if that fails, a refusal and a disconnect.
struct AcceptWelcome {
  control::Envelope request;
  const control::EngineWelcome* message = nullptr;  // borrowed from the frame
};
// Plan and map the version. Then handle_prepared().
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
// Ask the engine to pause. handle_pause_failed() when it refuses; its end is a report.
struct PauseEngine {
  control::Envelope request;
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t deadline_ms = 0;
};
// Map the buffers that the load needs. Then handle_buffers_mapped().
struct MapBuffers {
  control::Envelope request;
  const control::Load* message = nullptr;  // borrowed from the frame
};
// Load the prepared version, in place of a load that may be in progress. Then handle_load_ended():
// at once where the version is mapped whole, as it always is for a rank that adopts, and otherwise
// after a later TakeBucket.
struct StartLoad {
  Version version;
  TimePoint deadline{};
  std::uint32_t copy_threads = 1;
};
// End the load in progress with kCancelled. Then handle_load_ended().
struct CancelLoad {};
// Copy a bucket out of an IPC buffer. Then handle_bucket_taken(), and after it handle_load_ended()
// when that was the last one or the copy failed.
struct TakeBucket {
  control::Envelope request;
  std::uint64_t bucket = 0;
  std::uint32_t slot = 0;
};
// Every byte is in place and proven: notify the engine.
struct NotifyLoaded {
  Version version;
  std::uint64_t bytes = 0;
};
// Let the engine commit. Then handle_committed().
struct CommitEngine {
  control::Envelope request;
  Version version;
};
// What was loaded is what the engine serves from; the version before may be unmapped.
struct ActivateLoaded {};
// Let the engine resume. Then handle_resumed().
struct ResumeEngine {
  control::Envelope request;
  bool overtakes_pause = false;  // a pause has no answer yet
};
// Read the rank's tensors back and answer with their digests; check_readable() before each of them.
struct ReadTensors {
  control::Envelope request;
  Version version;
};
using RankAction =
    std::variant<SendReply, SendRefusal, NoteError, AcceptWelcome, PrepareVersion, NotifyPrepared,
                 ForgetVersion, PauseEngine, MapBuffers, StartLoad, CancelLoad, TakeBucket,
                 NotifyLoaded, CommitEngine, ActivateLoaded, ResumeEngine, ReadTensors>;
using RankActions = std::vector<RankAction>;

// It has more than 25 methods: each of the twelve messages of a sidecar has an overload of
// handle_command().
class RankMachine {
 public:
  explicit RankMachine(RankIdentity identity);

  // A frame of the sidecar. Refused, without any other effect: a fence below the highest one that
  // was seen, another rank's message, a command before the welcome, a message that is not for
  // engines.
  [[nodiscard]] RankActions handle(const control::Envelope& envelope,
                                   const control::Message& message);
  // What the engine has reported.
  [[nodiscard]] RankActions handle_report(const RankReport& report);
  // The connection has ended, or could not be made: prepared versions, the load in progress and an
  // unanswered pause are gone; the state stays.
  [[nodiscard]] RankActions handle_loss(const std::string& why);

  // ---- results of actions, with their `request` ----

  void handle_welcomed();
  [[nodiscard]] RankActions handle_prepared(const control::Envelope& request,
                                            const Version& version, const Result<>& outcome);
  [[nodiscard]] RankActions handle_pause_failed(const control::Envelope& request,
                                                const Error& error);
  // `now` is when the load begins; its deadline counts from there.
  [[nodiscard]] RankActions handle_buffers_mapped(const control::Envelope& request,
                                                  const control::Load& load,
                                                  const Result<>& outcome, TimePoint now);
  [[nodiscard]] static RankActions handle_bucket_taken(const control::Envelope& request,
                                                       std::uint64_t bucket,
                                                       const Result<>& outcome);
  // Only while loading() has a version.
  [[nodiscard]] RankActions handle_load_ended(const LoadOutcome& outcome);
  [[nodiscard]] RankActions handle_committed(const control::Envelope& request,
                                             const Version& version, const Result<>& outcome);
  // `paused_at`: the engine reported the end of the overtaken pause at this step before it resumed,
  // and that report is not given to handle_report().
  [[nodiscard]] RankActions handle_resumed(const control::Envelope& request,
                                           const Result<>& outcome,
                                           std::optional<std::uint64_t> paused_at);

  // ---- what it knows ----

  [[nodiscard]] control::RankState state() const noexcept { return state_; }
  [[nodiscard]] const Version& active() const noexcept { return active_; }  // 0.0 = none
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  // A sidecar has welcomed this rank, and is not lost.
  [[nodiscard]] bool welcomed() const noexcept { return welcomed_; }
  // The version that is being loaded.
  [[nodiscard]] std::optional<Version> loading() const;
  // The envelope of an answer to `request`: its round and request, this rank, the highest fence.
  [[nodiscard]] control::Envelope answer_to(const control::Envelope& request) const;
  // Whether the rank still holds `version`, which a reading began with; kRefused when it does not.
  [[nodiscard]] Result<> check_readable(const Version& version) const;
  // The first broken rule, kInternal. Rules: a loaded version is named in `loaded` alone; a load
  // runs only in a rank that does not serve, and marks one that copies as tainted; only a leader
  // has an unanswered pause; without a sidecar nothing of a sidecar is in progress.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Load {
    control::Envelope request;
    Version version;
    bool brings_buffers = false;  // its buffers are the sidecar's again when it has been answered
  };

  [[nodiscard]] Result<> move(control::RankState to);
  [[nodiscard]] std::optional<SendRefusal> refusal_of(const control::Envelope& envelope,
                                                      const control::Message& message) const;
  // One for each message that a sidecar may send.
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::EngineWelcome& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Refuse& message);
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::ErrorReply& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Prepare& message) const;
  [[nodiscard]] RankActions handle_command(const control::Envelope& envelope,
                                           const control::Release& message);
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
  [[nodiscard]] Result<> begin_load(const control::Envelope& request, const control::Load& load);

  RankIdentity identity_;
  control::RankState state_ = control::RankState::kLoading;
  Version active_;
  std::optional<Version> loaded_;  // in kLoaded: proven, not committed
  std::uint64_t step_ = 0;
  control::Fence fence_;  // highest seen
  bool welcomed_ = false;
  bool refused_ = false;                            // by the sidecar, on this connection
  std::optional<control::Envelope> pending_pause_;  // not answered yet
  std::set<Version> prepared_;
  std::optional<Load> load_;
};

}  // namespace wsync::engine
