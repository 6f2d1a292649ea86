// The engine processes of one replica, as far as the protocol can tell: ranks with memory, a leader
// that opens steps by headers, a link of each rank to its sidecar, crashes. Every step checks the
// bytes that it reads.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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

// A Load as it comes to one rank.
struct LoadOrder {
  std::uint64_t request = 0;
  Version version;
  Digest bytes;                 // of the staged copy
  bool spoiled = false;         // the rank finds a wrong checksum
  std::uint64_t buckets = 0;    // that come by bucket_ready(); 0: the rank copies all by itself
  bool brings_buffers = false;  // with handles of device buffers, which the rank maps
};

class EngineGroup {
 public:
  EngineGroup(Schedule& schedule, std::string name, std::uint32_t ranks, GroupHooks hooks);

  struct Rank {
    bool up = false;
    bool attached = false;
    control::RankState state = control::RankState::kLoading;
    Version active;
    Version loaded;
    Digest memory;  // what its bytes are; zero = no version's
    bool in_step = false;
    Version step_version;
    std::deque<Version> headers;      // of a follower, not yet followed; 0.0 = stop
    std::uint64_t life = 0;           // of the process
    std::uint64_t link = 0;           // of its connection
    std::uint64_t load = 0;           // of the copy that is going on
    std::optional<LoadOrder> taking;  // a load whose buckets are coming
    std::uint64_t taken = 0;          // of its buckets
    std::uint64_t mapped_link = 0;    // link whose device buffers it has mapped; 0: none
    TimePoint link_free{};            // messages keep their order
  };

  // What the sidecar sends; it arrives after a while, in order, unless the link breaks.
  void pause(std::uint32_t rank, std::uint64_t request);
  void load(std::uint32_t rank, const LoadOrder& order);
  void bucket_ready(std::uint32_t rank, std::uint64_t request, std::uint64_t bucket);
  void cancel_load(std::uint32_t rank, const Version& version);
  void commit(std::uint32_t rank, std::uint64_t request, Version version);
  void resume(std::uint32_t rank, std::uint64_t request);

  void start(std::uint32_t rank);  // a fresh process
  void crash(std::uint32_t rank);
  void sidecar_lost();
  void attach_all();
  // The sidecar has ended the rank's connection. The rank finds out later, and attaches again.
  void drop_link(std::uint32_t rank);
  // The rank's welcome has brought device buffers: it has them mapped while its link lasts.
  void map_buffers(std::uint32_t rank) { ranks_[rank].mapped_link = ranks_[rank].link; }
  // The leader's running step takes this much longer (an engine that hangs).
  void stall(std::chrono::nanoseconds time) { stalled_until_ = schedule_.now() + time; }

  [[nodiscard]] const std::vector<Rank>& ranks() const noexcept { return ranks_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  void deliver(std::uint32_t rank, std::function<void()> action);
  void say(std::uint32_t rank, control::Message message, std::uint64_t request);
  void attach(std::uint32_t rank);
  void end_load(std::uint32_t rank, const std::string& failure);
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
  std::uint64_t group_ = 0;            // generation; headers of another one are void
  std::vector<std::uint64_t> pauses_;  // requests that the leader has not answered
  bool leading_ = false;               // a step is scheduled or open
  std::uint64_t steps_ = 0;
  TimePoint stalled_until_{};
};

}  // namespace wsync::simulation
