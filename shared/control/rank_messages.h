// The rank link: a Unix socket between rank 0 of a trainer and its other ranks on one host
// (messages.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/control/engine_messages.h"
#include "shared/control/envelope.h"

namespace wsync::control {

// First message of a rank on every connection; answered only when it is refused (Error).
struct RankHello {
  static constexpr MessageType kType = MessageType::kRankHello;
  std::uint32_t rank = 1;
  std::uint32_t world_size = 2;
  std::uint32_t pid = 0;
  std::uint32_t incarnation = 0;  // how often this rank's process was replaced: the highest rules
};
// What the rank has of the model; rules until another one comes. `ranges` of a tensor: what of it
// this rank has, none = all of it.
struct RankShards {
  static constexpr MessageType kType = MessageType::kRankShards;
  std::vector<EngineTensor> tensors;
};
// The rank's shards of a step are copied: its weights may change. Descriptor with it: the arena
// that holds them (memfd), sealed; none with a failure.
struct Snapshotted {
  static constexpr MessageType kType = MessageType::kSnapshotted;
  std::uint64_t step = 0;
  Digest content_digest;  // of the shards, each a tensor of its own
  std::string failure;    // not empty: the rank could not take its snapshot
};
enum class PublishState : std::uint8_t {
  kPending,      // the weights are still being read
  kSnapshotted,  // the caller may overwrite its weights
  kStaged,       // on the inference side, verified
  kCommitted,    // served by every replica that counts
  kSuperseded,   // a newer version took its place before it was decided
  kFailed,
};
// How far the version of a step has come.
struct PublishStatus {
  static constexpr MessageType kType = MessageType::kPublishStatus;
  std::uint64_t step = 0;
  PublishState state = PublishState::kPending;
  Version version;  // 0.0 = it has none
  Digest content_digest;
  std::uint64_t bytes = 0;        // of the whole model
  std::uint64_t snapshot_ns = 0;  // of rank 0, the gathering included
  std::uint64_t staged_ns = 0;
  std::uint64_t paused_ns = 0;  // of the replica that was paused longest
  std::uint32_t replicas = 0;   // that have committed
  std::uint8_t code = 0;        // ErrorCode; failed only
  std::string reason;           // failed and superseded only
};

}  // namespace wsync::control
