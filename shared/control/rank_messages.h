// Messages of the rank link between rank 0 of a trainer and its other ranks (messages.h): a Unix
// socket within a host, the control port of rank 0 between hosts.
//
// A rank on another host keeps its snapshot and serves it to sidecars as a part of the version
// (shared/weights/parts.h). When all ranks have reported a step, rank 0 says which bytes are whose
// part (PartWanted), and the ranks answer with their sums (PartSummed). PartsKept says what each
// rank has to keep and to serve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/word_sum.h"
#include "shared/control/engine_messages.h"
#include "shared/control/envelope.h"
#include "shared/control/sidecar_messages.h"

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
// Follows the RankHello of a rank on another host than rank 0: where it serves its parts.
struct RankServes {
  static constexpr MessageType kType = MessageType::kRankServes;
  std::string host;     // host name, for people
  std::string boot_id;  // as in Hello
  std::vector<TransportAddress> transports;
  // 32 random bytes: what the keys of those who receive from it are made of. Empty: none of its
  // kinds has keys. Never logged.
  Bytes secret;
};
// The rank has copied its shards of a step, so its weights may change. Descriptor: the sealed arena
// (memfd) with the shards; none if the snapshot failed, or if the rank serves them.
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
// Bytes of a shard that are one transfer bucket of the version.
struct PartWindow {
  std::uint32_t bucket = 0;    // in the plan of the transfer
  std::uint32_t tensor = 0;    // index in the RankShards of the rank
  std::uint64_t offset = 0;    // in the shard
  std::uint64_t bytes = 0;     // > 0
  std::uint64_t position = 0;  // of the first byte in the whole tensor
};
// Which bytes of a step the rank serves, if a version is made of it.
struct PartWanted {
  static constexpr MessageType kType = MessageType::kPartWanted;
  std::uint64_t question = 0;  // grows with each; the answer has the same number
  std::uint64_t step = 0;
  std::uint64_t bucket_count = 0;  // of the whole version
  std::vector<PartWindow> windows;
  std::vector<std::uint32_t> carried;  // shards that rank 0 serves: the answer has their bytes
};
// A shard that the rank does not serve.
struct CarriedShard {
  std::uint32_t tensor = 0;  // index in the RankShards of the rank
  Bytes bytes;
};
struct PartSummed {
  static constexpr MessageType kType = MessageType::kPartSummed;
  std::uint64_t question = 0;
  std::uint64_t step = 0;
  std::string failure;  // not empty: the rank cannot serve it, and the rest is void
  // Of the windows, cut at the leaves of the whole tensors, in their order.
  std::vector<WordSum> sums;
  std::vector<CarriedShard> carried;
};
// A part that rank 0 needs.
struct KeptPart {
  std::uint64_t step = 0;
  Version version;  // 0.0: it has no name yet, so it is kept and not served
  Fence fence;      // under which it is served
  Digest layout;    // of the version
};
// All parts that the rank has to keep, and serve if they have a version. It gives up all others of
// which rank 0 has asked.
struct PartsKept {
  static constexpr MessageType kType = MessageType::kPartsKept;
  std::vector<KeptPart> parts;
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
