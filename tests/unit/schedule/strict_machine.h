// A strict machine: each lane runs its operations one after the other, a receive holds the lane
// until its message is there. `queue` messages wait between two ranks in each direction of each
// kind; with 0 a send ends only when the receive has begun. Of several replicas, those of a rank
// meet in each dispatch and combine. Latencies are random, and a lane may be much slower than the
// others. Activations are counted meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "trainer_side/schedule/lowering.h"

namespace wsync::schedule {

class StrictMachine {
 public:
  StrictMachine(const Program& program, std::uint32_t queue, std::uint64_t seed,
                std::uint32_t replicas = 1)
      : program_(program), queue_(queue), replicas_(replicas), random_(seed) {
    for (std::uint32_t i = 0; i < replicas; ++i)
      for (const RankProgram& rank : program.ranks) {
        ranks_.emplace_back();
        ranks_.back().done.resize(rank.operations.size());
        ranks_.back().places.resize(program.shape.cells(), Place::kNowhere);
      }
    for (double& latency : latencies_) latency = std::array{0.05, 1.0, 1.0, 20.0}[random_() % 4];
  }

  // Runs to the end or to where nothing moves; true when all is done.
  bool run() {
    begin_all();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      finish(event.rank, event.lane);
      begin_all();
    }
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
      for (std::size_t lane = 0; lane < kLaneCount; ++lane)
        if (!is_over(rank, lane)) return false;
    return true;
  }

  // Chunk activations of one rank at one time, those that are being copied too.
  [[nodiscard]] std::uint32_t max_on_device() const {
    std::uint32_t max = 0;
    for (const RankState& rank : ranks_) max = std::max(max, rank.max_on_device);
    return max;
  }
  // The first operation whose activations were not on the device; "" if there was none.
  [[nodiscard]] const std::string& misplaced() const { return misplaced_; }

 private:
  enum class Begun : std::uint8_t { kNot, kWaiting, kRunning };
  enum class Place : std::uint8_t { kNowhere, kDevice, kLeaves, kHost, kArrives };
  struct RankState {
    std::array<std::size_t, kLaneCount> next{};
    std::array<Begun, kLaneCount> begun{};
    std::vector<bool> done;
    std::vector<Place> places;  // of each cell's activations
    std::uint32_t on_device = 0, max_on_device = 0;
  };
  struct Event {
    double at = 0;
    std::uint32_t rank = 0;
    std::size_t lane = 0;
    bool operator<(const Event& other) const { return at > other.at; }
  };
  // From rank, to rank, is gradient: in the order of sending.
  using Channel = std::tuple<std::uint32_t, std::uint32_t, bool>;
  struct ChannelState {
    std::uint32_t waiting = 0;    // messages in the queue
    std::uint32_t receivers = 0;  // receives that have begun and have no message yet
  };

  // A rank here is one of a replica: its pipeline rank is `rank` modulo their number.
  [[nodiscard]] std::uint32_t pipeline_ranks() const { return program_.shape.pp; }
  [[nodiscard]] const RankProgram& program_of(std::uint32_t rank) const {
    return program_.ranks[rank % pipeline_ranks()];
  }
  [[nodiscard]] bool is_over(std::uint32_t rank, std::size_t lane) const {
    return ranks_[rank].next[lane] == program_of(rank).lanes[lane].size();
  }
  [[nodiscard]] std::uint32_t index_at(std::uint32_t rank, std::size_t lane) const {
    return program_of(rank).lanes[lane][ranks_[rank].next[lane]];
  }
  [[nodiscard]] const Operation& at(std::uint32_t rank, std::size_t lane) const {
    return program_of(rank).operations[index_at(rank, lane)];
  }
  [[nodiscard]] Channel channel_of(std::uint32_t rank, const Operation& operation) const {
    const bool is_gradient = operation.kind == OperationKind::kSendGradient ||
                             operation.kind == OperationKind::kReceiveGradient;
    const std::uint32_t peer = rank - rank % pipeline_ranks() + operation.peer;
    return is_send(operation.kind) ? Channel{rank, peer, is_gradient}
                                   : Channel{peer, rank, is_gradient};
  }
  static bool is_exchange(OperationKind kind) {
    return lane_of(kind) == Lane::kCommunication && !is_send(kind) && !is_receive(kind);
  }

  void begin_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
        for (std::size_t lane = 0; lane < kLaneCount; ++lane) moved |= begin(rank, lane);
    }
  }

  bool begin(std::uint32_t rank, std::size_t lane) {
    if (is_over(rank, lane)) return false;
    Begun& begun = ranks_[rank].begun[lane];
    if (begun == Begun::kRunning) return false;
    const Operation& operation = at(rank, lane);
    for (const std::uint32_t other : operation.after)
      if (!ranks_[rank].done[other]) return false;
    if (replicas_ > 1 && is_exchange(operation.kind)) return meet(rank, lane);
    if (is_receive(operation.kind)) {
      ChannelState& channel = channels_[channel_of(rank, operation)];
      const bool waited = begun == Begun::kWaiting;
      if (!waited) ++channel.receivers;
      begun = Begun::kWaiting;
      if (channel.waiting == 0) return !waited;
      --channel.waiting;
      --channel.receivers;
    } else if (is_send(operation.kind)) {
      ChannelState& channel = channels_[channel_of(rank, operation)];
      if (channel.waiting >= queue_ + channel.receivers) return false;
      ++channel.waiting;
    }
    start(rank, lane);
    return true;
  }

  // The replicas of a pipeline rank begin an exchange together.
  bool meet(std::uint32_t rank, std::size_t lane) {
    const bool waited = ranks_[rank].begun[lane] == Begun::kWaiting;
    ranks_[rank].begun[lane] = Begun::kWaiting;
    const std::uint32_t first = rank % pipeline_ranks();
    for (std::uint32_t other = first; other < ranks_.size(); other += pipeline_ranks())
      if (ranks_[other].begun[lane] != Begun::kWaiting ||
          ranks_[other].next[lane] != ranks_[rank].next[lane])
        return !waited;
    for (std::uint32_t other = first; other < ranks_.size(); other += pipeline_ranks())
      start(other, lane);
    return true;
  }

  void start(std::uint32_t rank, std::size_t lane) {
    RankState& state = ranks_[rank];
    const Operation& operation = at(rank, lane);
    Place& place = place_of(rank, operation.cell);
    switch (operation.kind) {
      case OperationKind::kAttention:
        if (operation.layer == 0) {
          ++state.on_device;
          expect(place, Place::kNowhere, operation);
          place = Place::kDevice;
        }
        break;
      case OperationKind::kOffload:
        expect(place, Place::kDevice, operation);
        place = Place::kLeaves;
        break;
      case OperationKind::kOnload:
        ++state.on_device;
        expect(place, Place::kHost, operation);
        place = Place::kArrives;
        break;
      default:
        if (!is_send(operation.kind) && !is_receive(operation.kind))
          expect(place, Place::kDevice, operation);
    }
    state.max_on_device = std::max(state.max_on_device, state.on_device);
    state.begun[lane] = Begun::kRunning;
    const double latency = latencies_[lane] * std::exponential_distribution<double>(1)(random_);
    events_.push({now_ + latency, rank, lane});
  }

  void finish(std::uint32_t rank, std::size_t lane) {
    RankState& state = ranks_[rank];
    const Operation& operation = at(rank, lane);
    Place& place = place_of(rank, operation.cell);
    if (operation.kind == OperationKind::kOffload) {
      --state.on_device;
      place = Place::kHost;
    } else if (operation.kind == OperationKind::kOnload) {
      place = Place::kDevice;
    } else if (operation.kind == OperationKind::kWeightGradient) {
      --state.on_device;
      place = Place::kNowhere;
    }
    state.done[index_at(rank, lane)] = true;
    ++state.next[lane];
    state.begun[lane] = Begun::kNot;
  }

  Place& place_of(std::uint32_t rank, const Cell& cell) {
    const Shape& shape = program_.shape;
    return ranks_[rank]
        .places[std::size_t{shape.chunk_of(cell.stage)} * shape.microbatches + cell.microbatch];
  }
  void expect(Place found, Place expected, const Operation& operation) {
    if (found != expected && misplaced_.empty())
      misplaced_ = std::string(operation_name(operation.kind)) + " " + to_string(operation.cell);
  }

  const Program& program_;
  std::uint32_t queue_;
  std::uint32_t replicas_;
  std::mt19937_64 random_;
  std::array<double, kLaneCount> latencies_{};  // mean, of each lane
  double now_ = 0;
  std::vector<RankState> ranks_;  // replica after replica
  std::map<Channel, ChannelState> channels_;
  std::priority_queue<Event> events_;
  std::string misplaced_;
};

}  // namespace wsync::schedule
