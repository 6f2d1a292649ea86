// Work that shares links, under a virtual clock: a discrete-event simulation of flows.
//
// A flow first takes a fixed time (latencies), then does its work over all its links at once. Alone
// it runs as fast as the tightest of them allows. Where a link is asked for more than it has, all
// flows on it are slowed down by one factor, and what that leaves free on other links goes to the
// flows there (weighted max-min fairness; the weights are the speeds alone). Between two ends of
// flows speeds are constant, so the simulation jumps from end to end and is exact.
//
// Why events and not recurrences: a max-plus recurrence needs each operation's time beforehand, and
// here it depends on what else runs. Where nothing is shared the two agree; the tests hold the
// simulation to the closed forms.
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
  double share = 1;  // units of the link that one unit of work takes
};

struct Flow {
  double fixed_s = 0;  // before the work
  double work = 0;     // in units of the caller's choice: bytes, seconds, copies
  std::vector<Demand> demands;
};

// What a link was used for, over a whole simulation.
struct LinkUse {
  std::string name;
  double seconds = 0;  // of the link at full speed
};

// Thread: one.
class SharedLinks {
 public:
  // `capacity`: units a second, above 0.
  [[nodiscard]] LinkId add(std::string name, double capacity);
  // Begins now. Work needs one demand at least, each of a share above 0.
  FlowId start(Flow flow);
  // Goes to the next end and returns the flows that end there, in the order of their starts; empty
  // when nothing runs.
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
    double alone = 0;  // units of work a second
    double speed = 0;
  };
  void set_speeds();

  std::vector<Link> links_;
  std::vector<Running> running_;
  double now_s_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace wsync::bench
