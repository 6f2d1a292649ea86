// Simulates the engine processes of one replica as the protocol sees them: ranks with memory, a
// leader that opens steps with headers, a link from each rank to its sidecar, and crashes. Every
// step checks the bytes that it reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/engine_link/rank_machine.h"
#include "inference_side/reload/replica_switch.h"
#include "shared/base/digest.h"
#include "shared/control/messages.h"
#include "tests/simulation/arenas.h"
#include "tests/simulation/schedule.h"

namespace wsync::simulation {

struct GroupHooks {
  // Callbacks from a rank to its sidecar, in the order of the rank's link. They return false if the
  // sidecar is down.
  std::function<void(std::uint32_t rank, reload::RankAttached)> attached;
  std::function<void(std::uint32_t rank)> detached;
  std::function<void(std::uint32_t rank, control::Message, std::uint64_t request)> say;
  std::function<bool()> sidecar_up;
  std::function<bool()> sidecar_answers;  // it is up and does not stand still
  // Why the sidecar refuses the rank; std::nullopt if it may attach.
  std::function<std::optional<std::string>(std::uint32_t rank)> refusal;
  std::function<Digest(const Version&)> content_of;  // content that the version name stands for
  std::function<void(const std::string&)> violation;
  std::function<void()> adopted;  // a rank has adopted a version
};

// A Load command as one rank receives it.
struct LoadOrder {
  std::uint64_t request = 0;
  Version version;
  Digest bytes;  // digest of the staged copy
  // of the trainer's arena, if the staged copy lies in it; the rank takes it when its load begins
  std::weak_ptr<const int> lease;
  bool spoiled = false;  // the rank finds a wrong checksum
  // number of buckets that arrive by bucket_ready(); 0: the rank copies everything itself
  std::uint64_t buckets = 0;
  bool brings_buffers = false;  // carries handles of device buffers, which the rank maps
};

class EngineGroup {
 public:
  // `adopts`: the ranks serve from the staged copies. A load then changes no byte that is served,
  // and a rank keeps the lease of the version that it serves.
  EngineGroup(Schedule& schedule, std::string name, std::uint32_t ranks, bool adopts,
              GroupHooks hooks);

  struct Rank {
    bool up = false;
    bool attached = false;
    engine::RankMachine machine{
        // the product's rank machine; this file simulates its engine and its memory
        engine::RankIdentity{}};
    Digest memory;  // digest of the bytes from which the rank serves; zero: no version
    Digest loaded;  // of a rank that adopts: of the mapped version that is not committed yet
    Lease reads;    // of the version that it loads or has mapped
    Lease lease;    // of the version that it has adopted
    bool in_step = false;
    Version step_version;
    std::deque<Version> headers;      // headers that a follower has not executed yet; 0.0: stop
    std::uint64_t life = 0;           // number of the process
    std::uint64_t link = 0;           // number of its connection
    std::uint64_t load = 0;           // number of the active copy
    LoadOrder ordered;                // newest load that has arrived
    std::optional<LoadOrder> taking;  // load whose buckets are arriving
    std::uint64_t taken = 0;          // number of buckets received
    std::uint64_t mapped_link = 0;    // link whose device buffers this rank has mapped; 0: none
    TimePoint link_free{};            // earliest delivery time, which keeps messages in order
    TimePoint still_until{};          // it stands still until then
    [[nodiscard]] control::RankState state() const noexcept { return machine.state(); }
    [[nodiscard]] const Version& active() const noexcept { return machine.active(); }
  };

  // Messages from the sidecar. They arrive after a delay and in order, unless the link breaks.
  void pause(std::uint32_t rank, std::uint64_t request);
  void load(std::uint32_t rank, const LoadOrder& order);
  void bucket_ready(std::uint32_t rank, std::uint64_t request, std::uint64_t bucket);
  void cancel_load(std::uint32_t rank, const Version& version);
  void commit(std::uint32_t rank, std::uint64_t request, Version version);
  void resume(std::uint32_t rank, std::uint64_t request);

  void start(std::uint32_t rank);  // starts a new process
  void crash(std::uint32_t rank);
  void sidecar_lost();
  void attach_all();
  // The sidecar has closed the rank's connection. The rank notices later and attaches again.
  void drop_link(std::uint32_t rank);
  // The rank's Welcome contained device buffers. The rank keeps them mapped as long as its link
  // exists.
  void map_buffers(std::uint32_t rank) { ranks_[rank].mapped_link = ranks_[rank].link; }
  // Extends the leader's current step by `time`, to simulate an engine that hangs.
  void stall(std::chrono::nanoseconds time) {
    stalled_until_ = std::max(stalled_until_, schedule_.now() + time);
  }
  // The processes that run now stand still until then.
  void stand_still(TimePoint until);

  [[nodiscard]] const std::vector<Rank>& ranks() const noexcept { return ranks_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  // How many leases the ranks hold, some perhaps of the same arena.
  [[nodiscard]] std::size_t leases() const noexcept;
  [[nodiscard]] bool serves() const noexcept {
    return formed_ && ranks_[0].state() == control::RankState::kServing;
  }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  void deliver(std::uint32_t rank, std::function<void()> action);
  void say(std::uint32_t rank, control::Message message, std::uint64_t request);
  void handle(std::uint32_t rank, const control::Message& message, std::uint64_t request);
  void report(std::uint32_t rank, engine::RankReport::What what);
  void execute(std::uint32_t rank, const engine::RankActions& actions);
  void copy(std::uint32_t rank);
  void adopt(std::uint32_t rank);
  void take_bucket(std::uint32_t rank, const engine::TakeBucket& take);
  void end_load(std::uint32_t rank, const std::string& failure);
  void lose_sidecar(std::uint32_t rank);
  void attach(std::uint32_t rank);
  void attach_later(std::uint32_t rank, std::chrono::nanoseconds delay);
  void break_group();
  void form_group();
  void lead();
  void open_step();
  void follow(std::uint32_t rank);
  void refuse_step();
  void enter(std::uint32_t rank, const Version& version);
  void leave(std::uint32_t rank);
  void pause_leader();
  void check(std::uint32_t rank, const char* when);

  Schedule& schedule_;
  std::string name_;
  std::vector<Rank> ranks_;
  const bool adopts_;
  GroupHooks hooks_;
  bool formed_ = false;
  // generation of the group; headers of other generations are ignored
  std::uint64_t group_ = 0;
  bool pause_requested_ = false;  // the leader must stop and has not stopped yet
  bool leading_ = false;          // a step is scheduled or open
  std::uint64_t steps_ = 0;
  TimePoint stalled_until_{};
};

}  // namespace wsync::simulation
