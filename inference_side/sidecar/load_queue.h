// LoadQueue: which loads wait, and which of them run together on the devices. One load brings one
// version into every rank of one replica; a replica has at most one load at a time.
//
// Unified devices: a rank reads the staged version itself, so a load ends here as soon as it is
// sent. Separate devices and GPUs: the loads of one version share a run of the weight pipeline. A
// run starts when no other one is in progress and no replica is about to join it. Loads of another
// version wait for the next run.
//
// Driving it: call advance() for a replica whenever something that its load needs may have changed,
// start_run() whenever a run may have become possible, and execute the commands in order.
//
// Pure: no I/O, and the time is passed in. Thread: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "inference_side/reload/replica_switch.h"
#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"
#include "shared/weights/version.h"

namespace wsync::agent {

enum class LoadState : std::uint8_t {
  kWaiting,  // something that it needs is missing; no rank has been sent Load
  kQueued,   // Load is sent to its ranks; it waits for a run of the pipeline
  kRunning,  // it is in the run that is in progress
  kSent,     // its ranks have got everything; they have not all answered
  kFailed,   // it cannot succeed any more; it waits for the switch to cancel or replace it
  kEnded,    // it is forgotten
};
[[nodiscard]] std::string_view load_state_name(LoadState state) noexcept;
// Whether the transition table has a row from one state to the other.
[[nodiscard]] bool is_legal(LoadState from, LoadState to) noexcept;
// The transition table of one load, for the page of the protocol.
[[nodiscard]] TransitionTable load_transitions();

// A rank that takes part in a load.
struct LoadRank {
  reload::EngineId engine{};
  std::uint32_t rank = 0;
  reload::DeviceIndex device{};
};

// What the queue asks for when a load needs it.
enum class DeviceNeed : std::uint8_t { kConnection, kBuffers };

// What a load needs, as it is at the moment of the call.
struct LoadNeeds {
  struct Rank {
    LoadRank rank;
    // Whether the rank was sent Prepare for the version, or why it cannot take it. Nothing: its
    // load plan is still being computed.
    std::optional<Result<>> prepared;
  };
  bool staged = false;      // the version can be loaded from this host
  bool whole = false;       // every rank of the replica is attached
  std::vector<Rank> ranks;  // those that are attached
  // Whether the devices can read the version. Nothing: they are still being made ready for it.
  // Unified devices: always success.
  std::optional<Result<>> devices = Result<>{};
  bool connected = true;  // the devices have their streams and communicators
  bool buffers = true;    // the devices have their buffers
};

// ---- commands ----

// Send Load to these ranks: all of the replica.
struct SendLoad {
  std::string replica;
  std::uint64_t request = 0;
  Version version;
  std::uint32_t deadline_ms = 0;
  std::vector<LoadRank> ranks;
};
// Send Abort to every attached rank of the replica, then prepare them for the version anew: an
// engine forgets a version whose load was cancelled.
struct SendAbort {
  std::string replica;
  std::uint64_t request = 0;
  Version version;
};
// Report to the switch that this rank has not loaded.
struct ReportLoadFailed {
  std::string replica;
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  Version version;
  std::string why;
};
// Report to the switch that the load has not begun: no rank was sent Load.
struct ReportLoadNotBegun {
  std::string replica;
  std::uint64_t request = 0;
  std::string why;
};
// The run in progress must not wait for this engine any more, and neither must the next one.
struct LeaveRun {
  reload::EngineId engine{};
  Error reason;
};
// Give the devices their streams and communicators, then call made().
struct ConnectDevices {};
// Give the devices their buffers, then call made().
struct AllocateBuffers {};
// A rank in a run.
struct RunSeat {
  LoadRank rank;
  std::string replica;
  std::uint64_t request = 0;
};
// Start a run of the weight pipeline, then call run_finished(), also when it cannot start.
struct StartRun {
  Version version;
  TimePoint deadline{};
  // An engine that acknowledges nothing for this long is dropped.
  std::chrono::nanoseconds bucket_ack_deadline{};
  std::vector<RunSeat> seats;
};
using LoadCommand = std::variant<SendLoad, SendAbort, ReportLoadFailed, ReportLoadNotBegun,
                                 LeaveRun, ConnectDevices, AllocateBuffers, StartRun>;
using LoadCommands = std::vector<LoadCommand>;

class LoadQueue {
 public:
  // Engines that a run has lost, each with the reason. The others have every bucket.
  using LostEngines = std::vector<std::pair<reload::EngineId, Error>>;

  // `runs`: loads need a run of the pipeline (separate devices and GPUs).
  explicit LoadQueue(bool runs) : runs_(runs) {}

  // ---- from the replica's switch ----

  // A new load; it replaces the one that the replica had. Call advance() next.
  [[nodiscard]] LoadCommands begin(const std::string& replica, const reload::BeginLoad& load);
  // Gives the load of this request up. Nothing happens when the replica has another one or none.
  [[nodiscard]] LoadCommands cancel(const std::string& replica, std::uint64_t request);
  // While true, another replica is about to begin its load: no run starts.
  void expect_more(bool expected) noexcept { more_expected_ = expected; }

  // ---- what has changed ----

  // Sends the load of this replica when everything it needs is there; otherwise asks for what can
  // be asked for, or gives the load up when what it needs cannot come.
  [[nodiscard]] LoadCommands advance(const std::string& replica, const LoadNeeds& needs);
  // The version of the replica's load while that is waiting, so that advance() can do something.
  [[nodiscard]] std::optional<Version> waiting_for(const std::string& replica) const;
  // Replicas whose load is waiting.
  [[nodiscard]] std::vector<std::string> waiting() const;
  // The answer to ConnectDevices or AllocateBuffers. After a failure the loads that waited for it
  // are given up; after a success call advance() for the others.
  [[nodiscard]] LoadCommands made(DeviceNeed need, const Result<>& outcome);
  // An attached engine is gone: the load of its replica cannot succeed any more. The switch hears
  // of the lost rank by other means and cancels the load.
  void engine_lost(const std::string& replica, reload::EngineId engine);
  // This rank has answered that it has loaded everything.
  void loaded(const std::string& replica, std::uint64_t request, std::uint32_t rank);
  // The version cannot be loaded from here any more. A run that reads it goes on.
  [[nodiscard]] LoadCommands release(const Version& version);

  // ---- runs ----

  // The next run, when there is one and it may start; at most one command.
  [[nodiscard]] LoadCommands start_run(TimePoint now);
  // The run in progress has ended, or could not start.
  [[nodiscard]] LoadCommands run_finished(const Result<LostEngines>& outcome);
  // The seat of an engine in the run in progress; nothing when it has none, or has left it.
  [[nodiscard]] std::optional<RunSeat> seat_of(reload::EngineId engine) const;

  // Whether this is the request of the replica's load. Acknowledgements of another one are stale:
  // the buffer may belong to another bucket by now.
  [[nodiscard]] bool is_current(const std::string& replica, std::uint64_t request) const;
  // Whether a load needs the devices' buffers, or is about to.
  [[nodiscard]] bool needs_buffers() const;
  // Nothing when the replica has no load.
  [[nodiscard]] std::optional<LoadState> state(const std::string& replica) const;

  // The first broken rule (kInternal). Rules: every move had a row in the table; the queue has each
  // queued load once, and no other; a load that was sent has ranks, and no engine is in two loads;
  // a running load is in the run, with the run's version; no engine has two seats.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Load {
    std::uint64_t request = 0;
    Version version;
    std::uint32_t deadline_ms = 0;
    LoadState state = LoadState::kWaiting;
    std::optional<DeviceNeed> waits_for;     // it has asked for it
    std::vector<LoadRank> ranks;             // once it is sent
    std::set<reload::EngineId> left;         // of these, the ones that no run waits for
    std::set<std::uint32_t> cannot_prepare;  // reported already
    std::set<std::uint32_t> loaded;
  };
  struct Run {
    Version version;
    std::vector<RunSeat> seats;
  };
  void move(const std::string& replica, Load& load, LoadState to);
  void leave_run(Load& load, const Error& reason, LoadCommands& out);
  void not_begun(const std::string& replica, const std::string& why, LoadCommands& out);
  void fail_ranks(const std::string& replica, Load& load, const std::string& why,
                  LoadCommands& out);
  [[nodiscard]] bool ranks_prepared(const std::string& replica, Load& load, const LoadNeeds& needs,
                                    LoadCommands& out);
  [[nodiscard]] Result<> check_run() const;

  const bool runs_;
  std::map<std::string, Load> loads_;  // by replica
  std::vector<std::string> order_;     // replicas whose load is queued
  std::optional<Run> run_;
  bool more_expected_ = false;
  std::optional<Error> illegal_move_;
};

}  // namespace wsync::agent
