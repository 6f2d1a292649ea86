// The engine side of one simulated sidecar. EngineRegistry, LoadQueue and DeviceBuffers are the
// real ones. A device group, a pipeline and preparations that take virtual time and sometimes fail
// replace EngineHub and EngineDevices.
//
// This class also checks the safety rules: no bucket is read while there are no buffers, no buffer
// is freed while an engine has it mapped, and every invariant holds after every call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "inference_side/sidecar/device_buffers.h"
#include "inference_side/sidecar/engine_registry.h"
#include "inference_side/sidecar/load_queue.h"
#include "inference_side/staging/sidecar.h"
#include "shared/base/digest.h"
#include "tests/simulation/engine_group.h"
#include "tests/simulation/schedule.h"

namespace wsync::simulation {

using agent::AllocateBuffers;
using agent::ConnectDevices;
using agent::DeviceBuffers;
using agent::DeviceNeed;
using agent::EngineRegistry;
using agent::LeaveRun;
using agent::LoadCommand;
using agent::LoadCommands;
using agent::LoadNeeds;
using agent::LoadQueue;
using agent::ReportLoadFailed;
using agent::ReportLoadNotBegun;
using agent::RunSeat;
using agent::SendAbort;
using agent::SendLoad;
using agent::StartRun;

enum class HubDevices : std::uint8_t {
  kUnified,       // ranks read the staged version themselves
  kKeptBuffers,   // GPUs whose buffers always exist
  kFreedBuffers,  // GPUs whose buffers exist only while loads run
};

struct HubHooks {
  std::function<void(const std::string& replica, staging::RankEvent)> notify;
  std::function<bool(double probability)> fault;  // returns false while no fault may occur
  std::function<void(const std::string&)> violation;
  // Runs an action of the sidecar's process: at once, or when the process continues.
  std::function<void(std::function<void()>)> run;
};

struct HubStatistics {
  std::uint64_t runs = 0;
  std::uint64_t runs_failed = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t connects = 0;
  std::uint64_t drops = 0;      // engines that a run gave up
  std::uint64_t not_begun = 0;  // loads that did not begin
  void add(const HubStatistics& other);
};

class SimulatedHub {
 public:
  SimulatedHub(Schedule& schedule, HubDevices devices, std::uint32_t ranks_of_sidecar,
               HubHooks hooks);

  // Why a rank of the group may not attach now.
  [[nodiscard]] std::optional<std::string> refusal_of(const EngineGroup& group, std::uint32_t rank,
                                                      std::uint32_t device) const;
  // The group whose rank is attached as this rank; null if there is none.
  [[nodiscard]] EngineGroup* group_of(const std::string& replica, std::uint32_t rank) const;
  // Events of the engines' links. `device`: device of the rank, unique in the sidecar.
  void attached(EngineGroup& group, std::uint32_t device, const reload::RankAttached& what);
  void detached(EngineGroup& group, std::uint32_t rank);
  void handle(EngineGroup& group, std::uint32_t rank, const control::Message& message,
              std::uint64_t request);

  // Commands of the sidecar's state machine. `bytes`: digest of the staged copy. `spoiled`: the
  // first rank finds a wrong checksum in it.
  void begin(const std::string& replica, const reload::BeginLoad& load, Digest bytes,
             const Lease& lease, bool spoiled);
  void cancel(const std::string& replica, std::uint64_t request);
  void expect_more(bool expected);
  void add_version(const Version& version);
  void remove_version(const Version& version);
  // Whether no device has failed for good to read the version.
  [[nodiscard]] bool can_use(const Version& version) const;

  // The sidecar's process has ended. The next process begins with an empty state.
  void restart();
  [[nodiscard]] const HubStatistics& statistics() const noexcept { return statistics_; }

 private:
  struct Connection {
    EngineGroup* group = nullptr;
    std::uint32_t rank = 0;
    std::uint64_t link = 0;  // link of the group's rank
    std::map<Version, Result<>> prepared;
  };
  struct Copy {
    Digest bytes;
    std::weak_ptr<const int> lease;
    bool spoiled = false;
  };
  // A run of the pipeline. It hands out one bucket after the other, each to every engine of the
  // run.
  struct Run {
    std::uint64_t number = 0;
    StartRun job;
    std::uint64_t bucket = 0;
    std::set<reload::EngineId> engines;
    std::set<reload::EngineId> owing;  // engines that have not acknowledged the bucket yet
    LoadQueue::LostEngines lost;
  };

  [[nodiscard]] bool on_devices() const noexcept { return devices_ != HubDevices::kUnified; }
  [[nodiscard]] control::EngineHello hello_of(const EngineGroup& group, std::uint32_t device) const;
  [[nodiscard]] std::optional<reload::EngineId> id_of(const EngineGroup& group,
                                                      std::uint32_t rank) const;
  void later(std::chrono::nanoseconds delay, std::function<void()> action);
  void prepare(reload::EngineId id, const Version& version);
  [[nodiscard]] LoadNeeds needs_of(const std::string& replica, const Version& version) const;
  void advance(const std::string& replica);
  void advance_all();
  void notify_later(const std::string& replica, staging::RankEvent event);
  void forget(reload::EngineId id);
  void execute(const LoadCommands& commands);
  void execute(const SendLoad& command);
  void execute(const SendAbort& command);
  void execute(const ReportLoadFailed& command);
  void execute(const ReportLoadNotBegun& command);
  void execute(const LeaveRun& command);
  void execute(const ConnectDevices& command);
  void execute(const AllocateBuffers& command);
  void execute(const StartRun& command);
  // the pipeline
  void start_run();
  void begin_bucket();
  void handle_bucket_ack(reload::EngineId id, std::uint64_t bucket);
  void leave_run(reload::EngineId id, const Error& reason);
  void drop_silent(std::uint64_t bucket);
  void finish_run(const std::optional<Error>& failure);
  void drop(reload::EngineId id);
  // the devices
  void connect();
  void free_unused();
  void check_unmapped(const char* when);
  void check(const Result<>& moved);
  void check();

  Schedule& schedule_;
  const HubDevices devices_;
  const std::uint32_t ranks_;
  HubHooks hooks_;
  std::uint64_t life_ = 0;  // number of the sidecar's process
  std::unique_ptr<EngineRegistry> registry_;
  std::unique_ptr<LoadQueue> queue_;
  std::unique_ptr<DeviceBuffers> buffers_;
  std::map<reload::EngineId, Connection> connections_;
  // known versions, and whether the devices can read them
  std::map<Version, std::optional<Result<>>> versions_;
  std::map<std::string, Copy> copies_;  // newest load of each replica
  std::optional<Run> run_;
  std::uint64_t runs_ = 0;
  std::uint32_t next_engine_ = 1;
  HubStatistics statistics_;
};

}  // namespace wsync::simulation
