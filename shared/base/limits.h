// Limits of the messages between processes. shared/control/codec.cc checks how they relate to the
// limits of other folders.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

inline constexpr std::uint64_t kEpochMax = (1ULL << 32U) - 2;  // of a fence and of a version
inline constexpr std::uint64_t kMessageBytes = 512 * kMiB;  // one control message, layouts included
inline constexpr std::uint64_t kStringBytes = 64 * kKiB;    // one string field
inline constexpr std::uint64_t kReplicaNameBytes = 128;
inline constexpr std::uint64_t kPeerNameBytes = 256;   // names of sidecars, hosts, roles
inline constexpr std::uint64_t kAddressBytes = 1024;   // one endpoint or socket path
inline constexpr std::uint64_t kPathBytes = 4096;      // one file path, as PATH_MAX
inline constexpr std::uint64_t kSentenceBytes = 4096;  // one reason or failure, shortened to this
inline constexpr std::uint64_t kTransportKindBytes = 32;  // name of a kind of transport
inline constexpr std::uint64_t kTransportCount = 16;      // kinds that one process names
inline constexpr std::uint64_t kSidecarCount = 2048;
inline constexpr std::uint64_t kPortPeerCount = 2 * kSidecarCount;  // sidecars and commands
inline constexpr std::uint64_t kPortQueueCount = 256;    // messages queued for one peer of a port
inline constexpr std::uint64_t kReplicaCount = 16'384;   // in one fleet
inline constexpr std::uint64_t kReplicaRankCount = 256;  // ranks of one replica
inline constexpr std::uint64_t kTrainerRankCount = 4096;
inline constexpr std::uint64_t kHeldPartCount = 256;  // steps of which a rank keeps its part
inline constexpr std::uint64_t kFleetRankCount = 1U << 18U;
inline constexpr std::uint64_t kDeviceCount = 64;      // of one sidecar
inline constexpr std::uint64_t kGpuUuidBytes = 64;     // "GPU-" and 36 characters, with spare room
inline constexpr std::uint64_t kCopyThreadCount = 64;  // of one rank
inline constexpr std::uint64_t kWithdrawnCount = 4096;
inline constexpr std::uint64_t kIncidentCount = 16;          // reported in one status
inline constexpr std::uint64_t kStagedCount = 64;            // versions that one sidecar holds
inline constexpr std::uint64_t kCopyGroupCount = 1U << 24U;  // of one load plan
inline constexpr std::uint64_t kFdsPerFrame = 64;
inline constexpr std::uint64_t kSendQueueBytes = 640 * kMiB;  // unsent, per stream connection
inline constexpr std::uint64_t kRangesPerTensor = 8;
inline constexpr std::uint64_t kRankReportCount = 8;  // steps of one rank that wait for rank 0
inline constexpr std::uint64_t kPublishesRemembered = 1024;  // ended ones, per trainer

static_assert(kSendQueueBytes > kMessageBytes + kMiB, "the largest message can be queued");
static_assert(kSentenceBytes <= kStringBytes && kPathBytes <= kStringBytes);
static_assert(kMessageBytes < (1ULL << 32U), "lengths are u32 on the wire");

}  // namespace wsync::limits
