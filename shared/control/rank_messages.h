// Messages of the rank link, a Unix socket between rank 0 of a trainer and its other ranks on one
// host (messages.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/control/engine_messages.h"
#include "shared/control/envelope.h"

namespace wsync::control {

// First message of a rank on every connection. Rank 0 answers only a refusal (Error).
struct RankHello {
  static constexpr MessageType kType = MessageType::kRankHello;
  std::uint32_t rank = 1;
  std::uint32_t world_size = 2;
  std::uint32_t pid = 0;
  std::uint32_t incarnation = 0;  // replacements of this rank's process; the highest is current
};
// The part of the model that the rank holds; valid until the next RankShards. `ranges` of a tensor:
// the part that this rank holds; no ranges = all of it.
struct RankShards {
  static constexpr MessageType kType = MessageType::kRankShards;
  std::vector<EngineTensor> tensors;
};
// The rank has copied its shards of a step, so its weights may change. Descriptor: the sealed arena
// (memfd) with the shards; none if the snapshot failed.
struct Snapshotted {
  static constexpr MessageType kType = MessageType::kSnapshotted;
  std::uint64_t step = 0;
  Digest content_digest;  // of the shards, each as a tensor of its own
  std::string failure;    // not empty: the rank could not take its snapshot
};
enum class PublishState : std::uint8_t {
  kPending,      // the weights are still being read
  kSnapshotted,  // the caller may overwrite its weights
  kStaged,       // on the inference side, verified
  kCommitted,    // active on every replica that counts
  kSuperseded,   // replaced by a newer version before it was decided
  kFailed,
};
// The progress of the version of a step.
struct PublishStatus {
  static constexpr MessageType kType = MessageType::kPublishStatus;
  std::uint64_t step = 0;
  PublishState state = PublishState::kPending;
  Version version;  // 0.0 = no version yet
  Digest content_digest;
  std::uint64_t bytes = 0;        // of the whole model
  std::uint64_t snapshot_ns = 0;  // on rank 0, including the gather
  std::uint64_t staged_ns = 0;
  std::uint64_t paused_ns = 0;                // longest pause of any replica
  std::uint32_t replicas = 0;                 // committed replicas
  ErrorCode code = ErrorCode::kInvalidInput;  // only if failed
  std::string reason;                         // only if failed or superseded
  std::vector<Problem> problems;              // the first one, if the layout was refused
};

}  // namespace wsync::control
