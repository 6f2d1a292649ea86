// One publish of a TrainerAgent, from its job to its end. For the agent's own files.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>

#include "trainer_side/publish/trainer_agent.h"

namespace wsync::publish {

struct TrainerAgent::Active {
  std::uint64_t request = 0;
  PublishJob job;
  TimePoint begun{};
  TimePoint deadline{};
  PublishProgress progress;
  std::atomic<std::uint64_t> snapshot_bytes{0};
  std::atomic<std::uint64_t> model_bytes{0};  // 0 = not known yet
  bool cancelled = false;                     // while its snapshot is taken
  bool told_why = false;                      // that it waits for sidecars
  std::stop_source stop;
  std::unique_ptr<WeightSource> source;
  std::shared_ptr<const Snapshot> snapshot;
  std::uint64_t snapshot_ns = 0;
  Version version;  // once the snapshot has been taken
};

}  // namespace wsync::publish
