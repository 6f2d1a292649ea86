// What a PublishQueue of the simulation asks of its coordinator.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "tests/simulation/world.h"

namespace wsync::simulation {

class World::Facts final : public publish::CoordinatorFacts {
 public:
  Facts(World& world, std::size_t c) : world_(world), c_(c) {}
  [[nodiscard]] std::optional<Error> why_stopped() const override {
    const auto& stopped = machine().stopped();
    if (!stopped) return std::nullopt;
    return Error(stopped->code, "this coordinator has stopped: " + stopped->reason);
  }
  [[nodiscard]] std::optional<std::string> why_not_ready() const override {
    if (machine().phase() >= coordinator::CoordinatorPhase::kReady) return std::nullopt;
    return std::string("no sidecar has joined");
  }
  [[nodiscard]] std::optional<std::string> why_too_few_engines() const override {
    for (const auto& [name, member] : machine().roster().members())
      if (member.joined && coordinator::whole_replicas(member) > 0) return std::nullopt;
    return std::string("no engine is attached");
  }
  // Coordinators that share no record can both claim one epoch, and a coordinator does not know the
  // names of requests that a lost trainer could not make any more. The digests then distinguish the
  // bytes, which other tests cover. Here one name stands for one content.
  [[nodiscard]] Result<Version> next_version(std::uint64_t step) const override {
    const std::string trainer = world_.address_of(c_);
    Result<Version> version = machine().next_version(step);
    while (version && world_.named_by_.emplace(*version, trainer).first->second != trainer)
      version = machine().next_version(version->step + 1);
    return version;
  }
  [[nodiscard]] bool has_update(const Version& version) const override {
    return machine().has_update(version);
  }
  [[nodiscard]] bool may_stream() const override { return machine().may_stream(); }

 private:
  [[nodiscard]] const coordinator::Coordinator& machine() const {
    return *world_.coordinators_[c_].machine;
  }
  World& world_;
  std::size_t c_;
};

}  // namespace wsync::simulation
