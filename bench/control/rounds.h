// Update rounds of the coordinator's state machine alone, without sockets, clocks or weights.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::bench {

// A coordinator with sidecars of one replica each. The sidecars accept every command. Thread: one.
class RoundDriver {
 public:
  // Creates the coordinator and lets the sidecars join. kInternal if the coordinator does not
  // become ready.
  [[nodiscard]] static Result<RoundDriver> create(unsigned sidecars);

  // Runs one round from the publish request to its end, and returns the time that the coordinator
  // spends in step(). The sidecars' answers are made outside of the measured time. They arrive in a
  // shuffled order, which is the same in every round. kInternal unless the round has committed on
  // every replica.
  [[nodiscard]] Result<std::chrono::nanoseconds> run_round();

 private:
  explicit RoundDriver(coordinator::CoordinatorOptions options)
      : coordinator_(std::move(options)) {}
  void give(const std::vector<coordinator::CoordinatorEvent>& events);
  // Makes one event from every sidecar, each for the round of its own Announce.
  [[nodiscard]] std::vector<coordinator::CoordinatorEvent> from_all(
      const control::Message& message);
  [[nodiscard]] std::vector<coordinator::CoordinatorEvent> switched(std::uint64_t number,
                                                                    const Version& version);
  // kInternal unless the version was announced to every sidecar. Stores the round of each one.
  [[nodiscard]] Result<> read_announces();
  // Returns the number of the decision. kInternal if there was none.
  [[nodiscard]] Result<std::uint64_t> decided() const;
  // kInternal unless the round has succeeded on every replica.
  [[nodiscard]] Result<> check_done() const;

  coordinator::Coordinator coordinator_;
  std::vector<std::string> names_;                         // sidecars in the order of their answers
  std::vector<coordinator::CoordinatorCommand> commands_;  // commands of the current round
  std::map<std::string, std::uint64_t> rounds_;            // round of each sidecar's Announce
  std::chrono::nanoseconds taken_{};
  std::uint64_t request_ = 0;
};

}  // namespace wsync::bench
