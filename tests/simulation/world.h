// A fleet in virtual time. The real PublishQueue, Coordinator, Sidecar and ReplicaSwitch machines
// are connected by a network that loses, duplicates, delays and reorders messages. Disks fail and
// processes crash or stand still. Sidecars join and leave, and some have the name of another one.
// The safety rules are checked after every step.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/staging/sidecar.h"
#include "tests/simulation/arenas.h"
#include "tests/simulation/engine_group.h"
#include "tests/simulation/schedule.h"
#include "tests/simulation/simulated_hub.h"
#include "trainer_side/coordinator/coordinator.h"
#include "trainer_side/coordinator/decision_store.h"
#include "trainer_side/publish/publish_queue.h"

namespace wsync::simulation {

// The replica that is the canary of coordinators with one.
inline constexpr std::string_view kCanary = "r0.0";

struct WorldOptions {
  std::uint64_t seed = 1;
  // slots; the second coordinator sometimes starts while the first one runs
  std::uint32_t coordinators = 2;
  std::uint32_t sidecars = 3;
  std::uint32_t replicas = 2;                 // per sidecar
  std::uint32_t ranks = 2;                    // per replica
  HubDevices devices = HubDevices::kUnified;  // devices of each sidecar
  std::uint32_t late = 0;                     // further sidecars, which are absent at first
  bool changing = false;                      // sidecars join and leave
  // a second process with the name of a sidecar, and a second replica with the name of another
  bool twins = false;
  // processes that stand still, and two sidecars on the trainer's host, which read its arenas
  bool holders = false;
  bool adopts = false;  // engines serve from the arenas of their sidecar (unified devices)
  // sidecar 1 and perhaps its engines stand still from then on, as long as there are faults
  std::optional<std::chrono::milliseconds> stands_still_after;
  bool faults = true;
  std::chrono::milliseconds faulty{6'000};
  std::chrono::milliseconds calm{40'000};
};

struct WorldStatistics {
  std::uint64_t events = 0;
  std::uint64_t crashes = 0;
  std::uint64_t rounds_ok = 0;
  std::uint64_t rounds_failed = 0;
  std::uint64_t rollbacks_ok = 0;
  std::uint64_t promotions_ok = 0;
  std::uint64_t superseded = 0;       // superseded publishes
  std::uint64_t left_out = 0;         // publishes whose round left out a slow sidecar
  std::uint64_t held = 0;             // snapshots that were kept until a round could begin
  std::uint64_t lost_rounds = 0;      // rounds of such publishes that have lost every sidecar
  std::uint64_t repeated = 0;         // of these, publishes that got another round
  std::uint64_t parted = 0;           // versions of which ranks on other hosts serve parts
  std::uint64_t streamed = 0;         // rounds that began before their snapshot was complete
  std::uint64_t stream_failures = 0;  // of these, snapshots that failed
  std::uint64_t stream_cancels = 0;   // of these, rounds that ended before their snapshot
  std::uint64_t trainers_lost = 0;    // without their coordinators
  std::uint64_t relayed = 0;          // held versions that a sidecar has been asked to pass on
  std::uint64_t described = 0;        // of these, versions of which the coordinator knew nothing
  std::uint64_t as_changes = 0;       // versions that were staged as what changes
  std::uint64_t in_place = 0;         // of these, completed in the memory of their base
  std::uint64_t beside = 0;           // or in memory of their own
  std::uint64_t bases_lost = 0;       // or not at all
  std::uint64_t bytes_first = 0;      // stagings whose digest came after the bytes
  std::uint64_t cancelled = 0;        // cancelled publishes
  // the decision was already made, or no update was running
  std::uint64_t cancels_refused = 0;
  std::uint64_t forgotten = 0;           // sidecars that a coordinator has forgotten
  std::uint64_t replicas_forgotten = 0;  // replicas that a sidecar has forgotten
  std::uint64_t steps = 0;               // serving steps of the engines
  std::uint64_t dropped = 0;             // messages that the machines dropped
  std::uint64_t joins = 0;               // of sidecars with new names
  std::uint64_t returns = 0;             // of sidecars that had left
  std::uint64_t leaves = 0;
  std::uint64_t stops = 0;              // processes that stood still
  std::uint64_t ok_beside_stopped = 0;  // good rounds while a sidecar stood still
  std::uint64_t arenas_added = 0;       // arenas beyond the maximum, because of such processes
  std::uint64_t names_refused = 0;      // Hellos of a name whose owner was connected
  std::uint64_t names_taken = 0;        // names that a twin got while their owners were away
  std::uint64_t ranks_refused = 0;      // ranks whose place was taken by a replica of the same name
  std::uint64_t disks_broken = 0;       // disks that failed for a while
  std::uint64_t disks_hung = 0;         // disks whose writes did not return for seconds
  std::uint64_t late_stores = 0;  // publishes that ended at their deadline because of such a disk
  std::uint64_t writes_failed = 0;
  std::uint64_t to_older = 0;        // messages to an older release, from one that is not
  std::uint64_t adopted = 0;         // versions that a rank has adopted
  std::uint64_t greetings_lost = 0;  // Hello or Welcome, on a connection that stayed open
  std::map<std::string, std::uint64_t> reasons;  // reasons of failed rounds and rollbacks
  HubStatistics hubs;
  void add(const WorldStatistics& other);
};

class World {
 public:
  explicit World(WorldOptions options);
  ~World();

  // Runs the part with faults, then the calm part. Returns true if no rule was violated and all
  // replicas have reached the target.
  bool run();
  [[nodiscard]] const std::vector<std::string>& violations() const noexcept { return violations_; }
  [[nodiscard]] const WorldStatistics& statistics() const noexcept { return statistics_; }

 private:
  class Facts;  // what a PublishQueue asks its coordinator
  struct Fetched {
    Digest content;
    Lease lease;           // none: the bytes were copied
    bool complete = true;  // false: its snapshot is being taken
  };
  // What a sidecar stages. It is complete when its bytes and its content digest are here.
  struct Incoming {
    staging::StartStaging command;
    Digest expected;
    std::optional<Fetched> bytes;
  };
  // One active snapshot.
  struct SnapshotRun {
    publish::BeginSnapshot what;
    bool stopped = false;
    bool weights_read = false;
    bool awaits_memory = false;
    std::optional<TrainerHold> hold;  // of its arena; none while it waits
    Version streamed;                 // its round was requested before its end
  };
  struct Snapshot {
    Digest content;
    TrainerHold hold;
    bool complete = true;  // false: it is being taken, and its buckets are served
  };
  struct CoordinatorProcess {
    std::unique_ptr<coordinator::Coordinator> machine;  // null: down
    bool is_older = false;                              // its release has no capabilities
    std::unique_ptr<Facts> facts;
    std::unique_ptr<publish::PublishQueue> queue;
    std::chrono::milliseconds publish_deadline{};
    std::optional<Arenas> arenas;
    std::optional<SnapshotRun> snapshot;
    // publishes reported as cancelled while their snapshots were running
    std::set<std::uint64_t> stopping;
    std::uint64_t life = 0;
    std::uint64_t timer = 0;
    std::size_t store = 0;  // index of the store that holds its record
    // Its trainer is a process of its own, which can be lost alone.
    bool is_apart = false;
    std::uint64_t trainer = 0;        // how many trainers there were
    std::set<std::uint64_t> orphans;  // publishes of lost trainers, which nobody answers
    // when the last write ends; writes run one after the other
    TimePoint store_free_at{};
    std::map<Version, Snapshot> snapshots;  // offered snapshots; each occupies an arena
    // Those that were dropped by the same commands: the job that took one still has it.
    std::map<Version, Snapshot> dropped;
    std::set<std::uint64_t> kept;               // publishes without a deadline while they are held
    std::set<std::uint64_t> keeps;              // publishes whose snapshots may be held
    std::map<std::uint64_t, TrainerHold> held;  // complete snapshots that are not offered yet
    std::map<std::uint64_t, Version> lost;      // publishes whose last round has lost every sidecar
    std::map<std::uint64_t, TimePoint> publishes;  // publishes without an answer yet
    std::map<std::uint64_t, TimePoint> rollbacks;
    std::map<std::uint64_t, TimePoint> promotions;
  };
  struct SidecarProcess {
    std::string name;     // two processes may have the same one
    std::string peer;     // its address on the control port, which each process has anew
    bool present = true;  // false: it has not joined yet, or has left
    bool was_there = false;
    bool is_older = false;  // its release has no capabilities
    std::unique_ptr<staging::Sidecar> machine;
    // It stands still: what happens to it waits until it continues.
    bool stopped = false;
    std::uint64_t stops = 0;
    std::deque<std::function<void()>> waiting;
    TimePoint disc_works_at{};     // its disk fails until then
    TimePoint disc_hangs_until{};  // no write that begins before returns earlier
    std::uint64_t life = 0;
    std::uint64_t heartbeats = 0;  // it has sent; each of its processes has another address
    std::uint64_t timer = 0;
    staging::SidecarRecord disc;
    std::map<Version, Digest> store;
    std::optional<Incoming> incoming;     // the version that it stages
    std::map<Version, Lease> leases;      // of the trainer's arenas, instead of memory of its own
    std::map<Version, Lease> own_leases;  // of memory of its own
    // Versions of which only what changes from another one is here, and that one.
    std::map<Version, Version> changes;
    std::map<Version, control::Fence> relayed;  // versions that others may fetch, under which fence
    std::optional<std::size_t> home;            // the coordinator to which it is connected
    std::uint64_t connection = 0;
    std::vector<std::unique_ptr<EngineGroup>> groups;
    std::unique_ptr<SimulatedHub> hub;
  };

  // processes
  void start_coordinator(std::size_t c);
  void crash_coordinator(std::size_t c);
  void start_sidecar(std::size_t s);
  void crash_sidecar(std::size_t s);
  void make_groups(std::size_t s);
  void make_group(std::size_t s, std::uint32_t r, std::string name);
  void make_hub(std::size_t s);
  // membership, and processes that stand still
  void join(std::size_t s);
  void leave(std::size_t s);
  void change_membership();
  void start_engines(std::size_t s);
  void crash_engines(std::size_t s);
  void start_twin();
  void stop_twin();
  void stop_twins();
  void stand_still(std::size_t s, std::optional<std::chrono::nanoseconds> time);
  void go_on(std::size_t s);
  // Runs an action of a sidecar's process: at once, or when the process continues.
  void in_sidecar(std::size_t s, std::function<void()> action);
  [[nodiscard]] std::size_t present_count() const;
  [[nodiscard]] bool is_twin(std::size_t s) const { return s == twin_; }
  [[nodiscard]] bool is_on_trainers_host(std::size_t s) const {
    return s == 0 || (options_.holders && s == 1);
  }
  // The process behind an address of the control port.
  [[nodiscard]] std::optional<std::size_t> process_of(const std::string& peer) const;
  // the control network
  void connect(std::size_t s);
  void break_link(std::size_t s);
  void to_sidecar(std::size_t c, const std::string& peer, control::Envelope envelope,
                  control::Message message);
  [[nodiscard]] bool loses_greeting(const control::Message& message);
  void to_coordinator(std::size_t s, control::Envelope envelope, control::Message message);
  void heartbeat(std::size_t s);
  [[nodiscard]] control::Heartbeat numbered_heartbeat(std::size_t s);
  void new_peer(std::size_t s);
  // machines
  void coordinator_step(std::size_t c, coordinator::CoordinatorEvent event);
  void sidecar_step(std::size_t s, staging::SidecarEvent event);
  void arm_coordinator(std::size_t c);
  void arm_sidecar(std::size_t s);
  void execute(std::size_t c, const coordinator::CoordinatorCommand& command);
  void execute(std::size_t s, const staging::SidecarCommand& command);
  void persist(std::size_t s, const staging::Persist& command);
  void store(std::size_t c, const coordinator::Store& command);
  [[nodiscard]] bool suits(bool from_older, bool to_older, const control::Envelope& envelope,
                           control::Message& message);
  void lose_late(std::size_t s, std::size_t c, const std::string& peer);
  void stage(std::size_t s, const staging::StartStaging& command);
  void end_staging(std::size_t s, const staging::StartStaging& command);
  void bytes_arrived(std::size_t s, const staging::StartStaging& command, const Fetched& fetched);
  void complete(std::size_t s, const staging::CompleteVersion& command, TimePoint begin);
  void end_completion(std::size_t s, const staging::CompleteVersion& command, bool in_place);
  void relay_held(std::size_t s, const staging::RelayHeld& command);
  void expect_content(std::size_t s, const staging::ExpectContent& command);
  void promote(std::size_t c);
  void check_may_pause(std::size_t s, const EngineGroup& group);
  void for_replica(std::size_t s, const staging::ForReplica& command);
  [[nodiscard]] std::optional<Fetched> fetch(std::size_t s, const control::Stage& stage);
  // the trainer around a coordinator
  void start_queue(std::size_t c);
  void end_trainer(std::size_t c);
  void lose_trainer(std::size_t c);
  void start_trainer(std::size_t c);
  [[nodiscard]] std::string address_of(std::size_t c) const;
  void poll_queue(std::size_t c);
  void execute(std::size_t c, const Result<publish::PublishQueue::Commands>& commands);
  void execute(std::size_t c, const publish::QueueCommand& command);
  void take_snapshot(std::size_t c);
  void end_snapshot(std::size_t c, const std::optional<Error>& failure);
  void begin_copy(std::size_t c);
  void request_round(std::size_t c, const publish::RequestRound& command);
  void end_stream(std::size_t c, const Version& version, const std::optional<Error>& failure);
  void lose_round(std::size_t c, const coordinator::RoundLost& lost);
  void end_publish(std::size_t c, const publish::EndPublish& end);
  bool publish(std::size_t c);
  void give_up(std::size_t c);
  void cancel(std::size_t c);
  // client and faults
  void client();
  void inject();
  void inject_usual(std::size_t s, std::size_t c);
  void break_disc(std::size_t s);
  void silence(std::size_t s, const std::string& replica, std::uint32_t rank);
  void inject_stranger(std::size_t s, std::size_t c);
  void forget(std::size_t s, std::size_t c);
  void heal();
  [[nodiscard]] bool advance_calm(std::uint64_t& requests_before, std::string& unmet);
  void check_ends();
  // Prints what `text()` returns, with the time, if WSYNC_SIM_TRACE is set.
  template <class Text>
  void trace(const Text& text) const {
    if (is_traced_) print_trace(text());
  }
  void print_trace(const std::string& text) const;
  // checks
  void violate(const std::string& what);
  void check_sidecar(std::size_t s, const staging::SidecarEvent& event,
                     const staging::SidecarRecord& before, std::size_t commands);
  // Whether the last process that coordinator `c` knows under the name is this one.
  [[nodiscard]] bool is_owner(std::size_t c, const std::string& name, std::size_t s) const;
  // The connected process whose name a Hello of another one names; otherwise empty.
  [[nodiscard]] std::string owner_of_name(std::size_t c,
                                          const coordinator::CoordinatorEvent& event) const;
  void check_name(std::size_t c, const coordinator::CoordinatorEvent& event,
                  const std::string& owner);
  void check_arenas(std::size_t c);
  void check_forgotten(const coordinator::Forgotten& forgotten,
                       const std::vector<Version>& withdrawn);
  void check_reports(std::size_t s);
  void check_may_run(std::size_t s, const EngineGroup& group, const Version& version);
  void check_origin(std::size_t s, const staging::SidecarRecord& before);
  [[nodiscard]] std::string unmet_obligation() const;
  [[nodiscard]] bool converged() const;
  [[nodiscard]] std::string where() const;

  WorldOptions options_;
  Schedule schedule_;
  const bool is_traced_ = std::getenv("WSYNC_SIM_TRACE") != nullptr;
  bool faults_on_ = false;
  bool client_on_ = false;
  TimePoint calm_at_{};  // the end of the part with faults
  double intensity_ = 1.0;
  std::vector<CoordinatorProcess> coordinators_;
  std::vector<SidecarProcess> sidecars_;
  std::map<Version, Digest> contents_;       // content of each version name
  std::set<Version> parted_;                 // those of which ranks on other hosts serve parts
  std::map<Version, std::string> named_by_;  // address of the trainer that first used a name
  // Record of the host that the coordinators share, and record of another host, which is empty at
  // first.
  std::array<std::optional<coordinator::CoordinatorRecord>, 2> stores_;
  std::array<TimePoint, 2> stores_work_at_{};     // they fail until then
  std::array<TimePoint, 2> stores_hang_until_{};  // no write that begins before returns earlier
  std::optional<std::size_t> twin_;               // the process with the name of another one
  std::map<std::string, std::size_t> processes_;  // by address on the control port
  // New decisions that go back to an older version. Every other decision goes forward or repeats an
  // earlier one.
  std::set<control::Decision> rollbacks_decided_;
  std::vector<Version> withdrawn_before_;  // of the coordinator that takes a step
  std::set<Version> decided_;              // targets of stored decisions
  std::uint64_t published_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t last_ok_ = 0;  // newest successful publish
  // Versions that a completed rollback has withdrawn, each with the processes that had joined the
  // coordinator by then. The other sidecars cannot know of the rollback.
  std::map<Version, std::set<std::size_t>> gone_for_good_;
  // Names that operators may have had forgotten in any case, or that two processes had.
  std::set<std::string> forced_;
  std::set<Version> cancelled_;  // reported as stopped before a decision
  std::vector<std::string> violations_;
  WorldStatistics statistics_;
};

}  // namespace wsync::simulation
