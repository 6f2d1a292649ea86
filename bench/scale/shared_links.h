// Work that shares links, under a virtual clock: a discrete-event simulation of flows.
//
// A flow first takes a fixed time (latencies), then does its work over all its links at the same
// time. Alone, it is as fast as its tightest link allows. If the demand on a link exceeds its
// capacity, one factor slows down all flows on it. The capacity that this leaves free on other
// links goes to the flows there (weighted max-min fairness, weighted by the speeds that flows have
// alone). Speeds are constant between two ends of flows, so the simulation jumps from end to end
// and is exact.
//
// It uses events because a max-plus recurrence needs the duration of each operation in advance, and
// here the duration depends on the other active operations. If nothing is shared the two methods
// agree. The tests compare the simulation with the closed formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace wsync::bench {

enum class LinkId : std::uint32_t {};
enum class FlowId : std::uint64_t {};

struct Demand {
  LinkId link{};
  double share = 1;  // units of the link per unit of work
};

struct Flow {
  double fixed_s = 0;  // before the work
  double work = 0;     // in units of the caller's choice: bytes, seconds, copies
  std::vector<Demand> demands;
};

// Use of a link over a whole simulation.
struct LinkUse {
  std::string name;
  double seconds = 0;  // of the link at full speed
};

// Thread: one.
class SharedLinks {
 public:
  // `capacity`: units per second, above 0.
  [[nodiscard]] LinkId add(std::string name, double capacity);
  // Starts a flow now. Work needs at least one demand, each with a share above 0.
  FlowId start(Flow flow);
  // Advances the clock to the next end and returns the flows that end there, in the order of their
  // starts. Empty if no flow is active.
  [[nodiscard]] std::vector<FlowId> advance();
  [[nodiscard]] double now_s() const noexcept { return now_s_; }
  [[nodiscard]] std::vector<LinkUse> use() const;

 private:
  struct Link {
    std::string name;
    double capacity = 1;
    double used_s = 0;
  };
  struct Running {
    FlowId id{};
    Flow flow;
    double fixed_left_s = 0;
    double work_left = 0;
    double alone = 0;  // units of work per second
    double speed = 0;
  };
  void set_speeds();

  std::vector<Link> links_;
  std::vector<Running> running_;
  double now_s_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace wsync::bench
