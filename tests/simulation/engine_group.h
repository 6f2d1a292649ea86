// The engine processes of one replica, as far as the protocol can tell. Each rank is a real
// RankMachine with a memory. The leader opens steps by headers, each rank has a link to its
// sidecar, and processes crash. Every step checks the bytes that it reads.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "inference_side/engine_link/rank_machine.h"
#include "inference_side/reload/replica_switch.h"
#include "shared/base/digest.h"
#include "shared/control/messages.h"
#include "tests/simulation/schedule.h"

namespace wsync::simulation {

struct GroupHooks {
  // From a rank to its sidecar, in the order of its link. Returns false when the sidecar is down.
  std::function<void(std::uint32_t rank, reload::RankAttached)> attached;
  std::function<void(std::uint32_t rank)> detached;
  std::function<void(std::uint32_t rank, control::Message, std::uint64_t request)> say;
  std::function<bool()> sidecar_up;
  std::function<Digest(const Version&)> content_of;  // what the version's name stands for
  std::function<void(const std::string&)> violation;
};

class EngineGroup {
 public:
  EngineGroup(Schedule& schedule, std::string name, std::uint32_t ranks, GroupHooks hooks);

  struct Rank {
    bool up = false;
    bool attached = false;
    engine::RankMachine machine{
        engine::RankIdentity{}};  // the product's; this file is its engine and its memory
    Digest memory;                // what its bytes are; zero = no version's
    bool in_step = false;
    Version step_version;
    std::deque<Version> headers;  // of a follower, not yet followed; 0.0 = stop
    std::uint64_t life = 0;       // of the process
    std::uint64_t link = 0;       // of its connection
    std::uint64_t load = 0;       // of the copy that is going on
    Digest arriving;              // what that copy brings
    bool spoiled = false;         // and whether its checksums will differ
    TimePoint link_free{};        // messages keep their order
    [[nodiscard]] control::RankState state() const noexcept { return machine.state(); }
    [[nodiscard]] const Version& active() const noexcept { return machine.active(); }
  };

  // What the sidecar sends; it arrives after a while, in order, unless the link breaks.
  void pause(std::uint32_t rank, std::uint64_t request);
  void load(std::uint32_t rank, std::uint64_t request, Version version, Digest bytes, bool spoiled);
  void cancel_load(std::uint32_t rank);
  void commit(std::uint32_t rank, std::uint64_t request, Version version);
  void resume(std::uint32_t rank, std::uint64_t request);

  void start(std::uint32_t rank);  // a fresh process
  void crash(std::uint32_t rank);
  void sidecar_lost();
  void attach_all();
  // The leader's running step takes this much longer (an engine that hangs).
  void stall(std::chrono::nanoseconds time) { stalled_until_ = schedule_.now() + time; }

  [[nodiscard]] const std::vector<Rank>& ranks() const noexcept { return ranks_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  void deliver(std::uint32_t rank, std::function<void()> action);
  void say(std::uint32_t rank, control::Message message, std::uint64_t request);
  void handle(std::uint32_t rank, const control::Message& message, std::uint64_t request);
  void report(std::uint32_t rank, engine::RankReport::What what);
  void execute(std::uint32_t rank, const engine::RankActions& actions);
  void copy(std::uint32_t rank);
  void attach(std::uint32_t rank);
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
  GroupHooks hooks_;
  bool formed_ = false;
  std::uint64_t group_ = 0;       // generation; headers of another one are void
  bool pause_requested_ = false;  // of the leader; it has not stopped for it yet
  bool leading_ = false;          // a step is scheduled or open
  std::uint64_t steps_ = 0;
  TimePoint stalled_until_{};
};

}  // namespace wsync::simulation
