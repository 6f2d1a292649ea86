// Update rounds of the coordinator's state machine alone: no socket, no clock, no byte of weights.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::bench {

// A coordinator with sidecars of one replica each that do as they are told. Thread: one.
class RoundDriver {
 public:
  // The sidecars have joined. kInternal when the coordinator does not become ready.
  [[nodiscard]] static Result<RoundDriver> create(unsigned sidecars);

  // One round, from the request to publish to its end: the time that the coordinator spends in
  // step(). What sidecars answer is made outside of it; they answer in an order of their own, the
  // same in every round. kInternal unless the round has committed on every replica.
  [[nodiscard]] Result<std::chrono::nanoseconds> run_round();

 private:
  explicit RoundDriver(publish::CoordinatorOptions options) : coordinator_(std::move(options)) {}
  void give(const std::vector<publish::CoordinatorEvent>& events);
  // From every sidecar, each under the round of its own Announce.
  [[nodiscard]] std::vector<publish::CoordinatorEvent> from_all(const control::Message& message);
  [[nodiscard]] std::vector<publish::CoordinatorEvent> switched(std::uint64_t number,
                                                                const Version& version);
  // kInternal unless every sidecar was announced the version; keeps the rounds.
  [[nodiscard]] Result<> read_announces();
  // The number of the decision; kInternal when there was none.
  [[nodiscard]] Result<std::uint64_t> decided() const;
  // kInternal unless the round has ended well on every replica.
  [[nodiscard]] Result<> check_done() const;

  publish::Coordinator coordinator_;
  std::vector<std::string> names_;  // of sidecars, in the order in which they answer
  std::vector<publish::CoordinatorCommand> commands_;  // of the round so far
  std::map<std::string, std::uint64_t> rounds_;        // of each sidecar's Announce
  std::chrono::nanoseconds taken_{};
  std::uint64_t request_ = 0;
};

}  // namespace wsync::bench
