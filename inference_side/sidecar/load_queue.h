// LoadQueue: decides which loads wait, and which of them run together on the devices. One load
// brings one version into every rank of one replica. A replica has at most one load at a time.
//
// Unified devices: each rank reads the staged version itself, so for the queue a load ends as soon
// as it is sent; so does a load by a patch on any kind of device. Otherwise, on separate devices
// and GPUs, the loads of one version share a run of the weight pipeline. A run starts if no other
// run is in progress and no replica is about to join it. Loads of another version wait for the next
// run.
//
// Usage: call advance() for a replica whenever a condition for its load may have changed, call
// start_run() whenever a run may have become possible, and execute the commands in order.
//
// Pure: no I/O; the time is an argument. Thread: confined to one thread.
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
  kWaiting,  // a condition is missing; no rank has been sent Load
  kQueued,   // Load was sent to its ranks; waits for a run of the pipeline
  kRunning,  // part of the run in progress
  kSent,     // its ranks have every byte; not all of them have answered
  kFailed,   // cannot succeed; waits until the switch cancels or replaces it
  kEnded,    // the load is forgotten
};
[[nodiscard]] std::string_view load_state_name(LoadState state) noexcept;
// Whether the transition table has a row from one state to the other.
[[nodiscard]] bool is_legal(LoadState from, LoadState to) noexcept;
// The transition table of one load, for the protocol documentation.
[[nodiscard]] TransitionTable load_transitions();

// A rank that takes part in a load.
struct LoadRank {
  reload::EngineId engine{};
  std::uint32_t rank = 0;
  reload::DeviceIndex device{};
};

// What the queue requests when a load needs it.
enum class DeviceNeed : std::uint8_t { kConnection, kBuffers };

// The conditions of a load at the moment of the call.
struct LoadNeeds {
  struct Rank {
    LoadRank rank;
    // Whether Prepare for the version was sent to the rank, or why the rank cannot load it.
    // std::nullopt: its load plan is still being computed.
    std::optional<Result<>> prepared;
  };
  bool staged = false;      // the version can be loaded from this host
  bool whole = false;       // every rank of the replica is attached
  std::vector<Rank> ranks;  // the attached ranks
  // Whether the devices can read the version. std::nullopt: the devices are still being prepared
  // for it. Unified devices: always success.
  std::optional<Result<>> devices = Result<>{};
  bool connected = true;  // the devices have their streams and communicators
  bool buffers = true;    // the devices have their buffers
  // Every rank is sent a patch, which it writes by itself: the devices are not needed.
  bool by_patch = false;
};

// ---- commands ----

// Send Load to these ranks, which are all ranks of the replica.
struct SendLoad {
  std::string replica;
  std::uint64_t request = 0;
  Version version;
  std::uint32_t deadline_ms = 0;
  std::vector<LoadRank> ranks;
  Version base = {};      // of reload::BeginLoad
  bool by_patch = false;  // of LoadNeeds
};
// Send Abort to every attached rank of the replica, then prepare the ranks for the version again,
// because an engine forgets a version whose load was cancelled.
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
// Report to the switch that the load has not begun: Load was sent to no rank.
struct ReportLoadNotBegun {
  std::string replica;
  std::uint64_t request = 0;
  std::string why;
};
// Neither the run in progress nor the next one may wait for this engine any longer.
struct LeaveRun {
  reload::EngineId engine{};
  Error reason;
};
// Create the streams and communicators of the devices, then call made().
struct ConnectDevices {};
// Allocate the buffers of the devices, then call made().
struct AllocateBuffers {};
// A rank in a run.
struct RunSeat {
  LoadRank rank;
  std::string replica;
  std::uint64_t request = 0;
};
// Start a run of the weight pipeline, and call run_finished() at its end, even if it cannot start.
struct StartRun {
  Version version;
  TimePoint deadline{};
  // An engine that sends no acknowledgement for this long is dropped.
  std::chrono::nanoseconds bucket_ack_deadline{};
  std::vector<RunSeat> seats;
};
using LoadCommand = std::variant<SendLoad, SendAbort, ReportLoadFailed, ReportLoadNotBegun,
                                 LeaveRun, ConnectDevices, AllocateBuffers, StartRun>;
using LoadCommands = std::vector<LoadCommand>;

// This class has more than 25 methods: each event of a load has its own, and each condition that a
// load waits for.
class LoadQueue {
 public:
  // Engines that a run has lost, each with the reason. All other engines have every bucket.
  using LostEngines = std::vector<std::pair<reload::EngineId, Error>>;

  // `runs`: loads need a run of the pipeline (separate devices and GPUs).
  explicit LoadQueue(bool runs) : runs_(runs) {}

  // ---- calls for the replica's switch ----

  // Begins a load, which replaces the current load of the replica. Call advance() next.
  [[nodiscard]] LoadCommands begin(const std::string& replica, const reload::BeginLoad& load);
  // Cancels the load of this request. Does nothing if the replica has another load or none.
  [[nodiscard]] LoadCommands cancel(const std::string& replica, std::uint64_t request);
  // While true, no run starts, because another replica is about to begin its load.
  void expect_more(bool expected) noexcept { more_expected_ = expected; }

  // ---- changes of conditions ----

  // Sends the load of this replica if every condition is met. Otherwise requests what can be
  // requested, or gives up the load if a condition cannot be met.
  [[nodiscard]] LoadCommands advance(const std::string& replica, const LoadNeeds& needs);
  // The version of the replica's load if that load is waiting, so that advance() can have an
  // effect.
  [[nodiscard]] std::optional<Version> waiting_for(const std::string& replica) const;
  // The base of the replica's load, as in reload::BeginLoad; 0.0 if it has none.
  [[nodiscard]] Version base_of(const std::string& replica) const;
  // Replicas whose load is waiting.
  [[nodiscard]] std::vector<std::string> waiting() const;
  // The answer to ConnectDevices or AllocateBuffers. A failure gives up the loads that waited for
  // it. After a success, call advance() for the waiting loads.
  [[nodiscard]] LoadCommands made(DeviceNeed need, const Result<>& outcome);
  // An attached engine is gone, so the load of its replica can no longer succeed. The switch learns
  // of the lost rank separately and cancels the load.
  void engine_lost(const std::string& replica, reload::EngineId engine);
  // This rank has reported that it has loaded everything.
  void loaded(const std::string& replica, std::uint64_t request, std::uint32_t rank);
  // The version can no longer be loaded from here. A run that already reads it continues.
  [[nodiscard]] LoadCommands release(const Version& version);

  // ---- runs ----

  // Returns the command for the next run if there is one and it may start; at most one command.
  [[nodiscard]] LoadCommands start_run(TimePoint now);
  // The run in progress has ended, or could not start.
  [[nodiscard]] LoadCommands run_finished(const Result<LostEngines>& outcome);
  // The engine's seat in the run in progress; std::nullopt if it has none or has left the run.
  [[nodiscard]] std::optional<RunSeat> seat_of(reload::EngineId engine) const;

  // Whether this is the request of the replica's current load. Acknowledgements of another request
  // are stale, because the buffer may already hold another bucket.
  [[nodiscard]] bool is_current(const std::string& replica, std::uint64_t request) const;
  // Whether a load needs the device buffers now, or will need them next.
  [[nodiscard]] bool needs_buffers() const;
  // std::nullopt if the replica has no load.
  [[nodiscard]] std::optional<LoadState> state(const std::string& replica) const;

  // Returns kInternal with the first broken rule. Rules: every transition had a row in the table;
  // the queue contains each queued load exactly once and nothing else; a load that was sent has
  // ranks, and no engine is in two loads; a running load is in the run and has the run's version;
  // no engine has two seats.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Load {
    std::uint64_t request = 0;
    Version version;
    std::uint32_t deadline_ms = 0;
    Version base = {};
    LoadState state = LoadState::kWaiting;
    bool by_patch = false;                   // set when the load is sent
    std::optional<DeviceNeed> waits_for;     // what it has requested
    std::vector<LoadRank> ranks;             // set when the load is sent
    std::set<reload::EngineId> left;         // those of `ranks` that no run waits for
    std::set<std::uint32_t> cannot_prepare;  // already reported
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
  [[nodiscard]] bool devices_ready(const std::string& replica, Load& load, const LoadNeeds& needs,
                                   LoadCommands& out);
  [[nodiscard]] bool ranks_prepared(const std::string& replica, Load& load, const LoadNeeds& needs,
                                    LoadCommands& out);
  [[nodiscard]] Result<> check_run() const;

  const bool runs_;
  std::map<std::string, Load> loads_;  // by replica
  std::vector<std::string> order_;     // replicas with a queued load
  std::optional<Run> run_;
  bool more_expected_ = false;
  std::optional<Error> illegal_move_;
};

}  // namespace wsync::agent
