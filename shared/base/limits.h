// Every limit of wsync as a named constant, with the relations between them proven at compile time.
// Units are in the names: _bytes, _ms, _count.
#pragma once

#include <cstdint>

namespace wsync::limits {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// --- weights ---
inline constexpr std::uint64_t kSafetensorsHeaderBytes =
    100'000'000;                                          // the reference reader's own limit
inline constexpr std::uint64_t kJsonDepth = 32;           // of values that a lenient reader ignores
inline constexpr std::uint64_t kTensorCount = 1U << 20U;  // Kimi-K2 has 138,240
inline constexpr std::uint64_t kTensorNameBytes = 1024;
inline constexpr std::uint64_t kTensorRank = 8;
inline constexpr std::uint64_t kCheckpointFileCount = 100'000;
inline constexpr std::uint64_t kIndexFileBytes = 256 * kMiB;
inline constexpr std::uint64_t kLeafBytes = 1 * kMiB;   // unit of the content digest
inline constexpr std::uint64_t kPieceAlignBytes = 256;  // of a tensor in an arena, and of a piece
// A tensor of at least the second begins at a multiple of the first in an arena: engines copy out
// of whole pages 8 % faster, and padding is a sixteenth at most.
inline constexpr std::uint64_t kPageAlignBytes = 4 * kKiB;
inline constexpr std::uint64_t kPageAlignedTensorBytes = 64 * kKiB;
inline constexpr std::uint64_t kBucketBytesMin = 1 * kMiB;
inline constexpr std::uint64_t kBucketBytesMax = 8 * kGiB;
inline constexpr std::uint64_t kBucketBytesDefault = 64 * kMiB;
inline constexpr std::uint64_t kModelBytesMax = 1ULL << 44U;  // 16 TiB

inline constexpr std::uint64_t kStepMax = (1ULL << 63U) - 1;  // of a version: there is a next one

// --- control ---
inline constexpr std::uint64_t kEpochMax = (1ULL << 32U) - 2;  // of a fence, and so of a version
inline constexpr std::uint64_t kMessageBytes = 512 * kMiB;  // one control message, layouts included
inline constexpr std::uint64_t kStringBytes = 64 * kKiB;    // one string field
inline constexpr std::uint64_t kReplicaNameBytes = 128;
inline constexpr std::uint64_t kPeerNameBytes = 256;   // names of sidecars, hosts, roles
inline constexpr std::uint64_t kAddressBytes = 1024;   // one endpoint or socket path
inline constexpr std::uint64_t kPathBytes = 4096;      // one file path, as PATH_MAX
inline constexpr std::uint64_t kSentenceBytes = 4096;  // one reason or failure, shortened to this
inline constexpr std::uint64_t kSidecarCount = 1024;
inline constexpr std::uint64_t kPortPeerCount = 2 * kSidecarCount;  // sidecars and commands
inline constexpr std::uint64_t kPortQueueCount = 256;    // messages queued for one peer of a port
inline constexpr std::uint64_t kReplicaCount = 4096;     // in one fleet
inline constexpr std::uint64_t kReplicaRankCount = 256;  // ranks of one replica
inline constexpr std::uint64_t kTrainerRankCount = 4096;
inline constexpr std::uint64_t kFleetRankCount = 1U << 16U;
inline constexpr std::uint64_t kDeviceCount = 64;      // of one sidecar
inline constexpr std::uint64_t kIpcBufferCount = 2;    // of one device
inline constexpr std::uint64_t kGpuUuidBytes = 64;     // "GPU-" and 36 characters, with room
inline constexpr std::uint64_t kCopyThreadCount = 64;  // of one rank
inline constexpr std::uint64_t kWithdrawnCount = 4096;
inline constexpr std::uint64_t kIncidentCount = 16;               // that a status tells of
inline constexpr std::uint64_t kStagedCount = 64;                 // versions that one sidecar holds
inline constexpr std::uint64_t kProblemCount = 2 * kTensorCount;  // all missing and all extra
inline constexpr std::uint64_t kCopyGroupCount = 1U << 24U;       // checksums of one load plan
inline constexpr std::uint64_t kFdsPerFrame = 64;
inline constexpr std::uint64_t kSendQueueBytes = 640 * kMiB;  // unsent, of one stream connection
inline constexpr std::uint64_t kRangesPerTensor = 8;

// --- time ---
inline constexpr std::int64_t kHeartbeatIntervalMs = 200;
inline constexpr std::int64_t kHeartbeatDeadlineMs = 2'000;
inline constexpr std::int64_t kHelloDeadlineMs = 5'000;
inline constexpr std::int64_t kHelloRetryMs = 500;  // of a sidecar that nobody has welcomed
inline constexpr std::int64_t kAnnounceDeadlineMs = 10'000;
inline constexpr std::int64_t kStageDeadlineMs = 600'000;
inline constexpr std::int64_t kPauseDeadlineMs = 10'000;
inline constexpr std::int64_t kLoadDeadlineMs = 120'000;
inline constexpr std::int64_t kCommitDeadlineMs = 10'000;
inline constexpr std::int64_t kSwitchDeadlineMs = 180'000;
inline constexpr std::int64_t kReportMarginMs = 5'000;  // of a sidecar, beyond its own deadlines
inline constexpr std::int64_t kRankReturnDeadlineMs = 5'000;  // a rank lost inside a switch
inline constexpr std::int64_t kSwitchRetryMs = 1'000;         // after a switch that failed
inline constexpr std::int64_t kSwitchRetryMaxMs =
    60'000;                                              // after loads that failed again and again
inline constexpr std::int64_t kMaxStalenessMs = 60'000;  // behind longer: not ready
inline constexpr std::int64_t kStepDeadlineMs = 5'000;   // one wait inside a step of a replica
inline constexpr std::int64_t kForwardDeadlineMs = 30'000;  // what its ranks compute in one
inline constexpr std::int64_t kStepReconnectMaxMs = 500;
inline constexpr std::int64_t kGroupWholeDeadlineMs = 2'000;  // a resume waits for its followers
inline constexpr std::int64_t kReconnectMinMs = 50;
inline constexpr std::int64_t kReconnectMaxMs = 2'000;
inline constexpr std::int64_t kPublishDeadlineMs = 900'000;
inline constexpr std::int64_t kGatherDeadlineMs = 60'000;  // all ranks of a trainer for one step
inline constexpr std::int64_t kRankReconnectMaxMs = 500;   // of a trainer's rank to its rank 0
inline constexpr std::uint64_t kRankReportCount = 8;       // steps of one rank that wait for rank 0
inline constexpr std::uint64_t kPublishesRemembered = 1024;  // that have ended, by a trainer

// --- data streams ---
inline constexpr std::uint64_t kStreamCountDefault = 4;  // TCP connections of one transfer
inline constexpr std::uint64_t kStreamCountMax = 64;
inline constexpr std::uint64_t kStreamRequestsAhead = 2;    // buckets asked for on one connection
inline constexpr std::uint64_t kStreamRequestsPending = 8;  // a source closes a peer that asks more
inline constexpr std::uint64_t kStreamConnectionCount = 512;  // of one source
inline constexpr std::uint64_t kStreamSliceBytes =
    1 * kMiB;  // digested, then written while in cache
inline constexpr std::uint64_t kStreamTextBytes = 4 * kKiB;  // reason of a failure
inline constexpr std::int64_t kStreamWaitingMs = 500;  // sign of life while a bucket is missing
inline constexpr std::int64_t kStreamStallMs = 5'000;  // silence or a full pipe for longer: lost
inline constexpr std::int64_t kStreamOfferWaitMs = 5'000;  // for a version that is not offered yet

// --- device, pipeline, trace ---
inline constexpr std::uint64_t kTraceSpans = 1U << 20U;        // kept of one process
inline constexpr std::uint64_t kTraceRingSpans = 1U << 15U;    // kept by an agent, always
inline constexpr std::uint64_t kTraceTextBytes = 512;          // one name, lane or text in a span
inline constexpr std::uint64_t kTraceArgs = 32;                // of one span
inline constexpr std::uint64_t kTraceAnswerBytes = 64 * kMiB;  // spans of a fleet in one message
inline constexpr std::uint64_t kTraceFileBytes = 512 * kMiB;   // one that is read
inline constexpr std::uint64_t kTraceFileEvents = 8U << 20U;
inline constexpr std::uint64_t kTraceFileDepth = 32;     // nested lists and objects in it
inline constexpr std::uint64_t kTraceFlows = 1U << 18U;  // arrows drawn into one trace
inline constexpr std::int64_t kBucketAckDeadlineMs = 30'000;
inline constexpr std::int64_t kGroupJoinDeadlineMs = 30'000;
inline constexpr std::uint64_t kDeviceMemoryPercent = 90;  // of the free memory, for three buffers
inline constexpr std::uint64_t kHostBufferBytesDefault = 4 * kMiB;   // stays in the cache
inline constexpr std::uint64_t kGpuBufferBytesDefault = 512 * kMiB;  // at most, unless it is named

// --- training schedule ---
inline constexpr std::uint64_t kPipelineRankCount = 1024;
inline constexpr std::uint64_t kVirtualChunkCount = 64;  // of one rank
inline constexpr std::uint64_t kPipelineStageCount = 4096;
inline constexpr std::uint64_t kMicrobatchCount = 65'536;
inline constexpr std::uint64_t kScheduleCellCount = 1U << 20U;  // stages times micro-batches
inline constexpr std::uint64_t kScheduleViolationCount = 1000;  // told of one schedule
inline constexpr std::uint64_t kActionTextBytes = 64 * kMiB;    // a schedule that is read

// --- reference model ---
inline constexpr std::uint64_t kModelDimension = 1U << 24U;  // vocabulary, sizes of layers, counts

// --- memory ---
inline constexpr std::uint64_t kVersionsHeldDefault = 2;  // serving (or previous) and incoming
inline constexpr std::uint32_t kVersionsHeldMin = 2;      // one is served while the next arrives
inline constexpr std::uint64_t kSidecarOverheadBytes = 64 * kMiB;

// --- config ---
inline constexpr std::uint64_t kConfigBytes = 256 * kKiB;
inline constexpr std::uint64_t kConfigDepth = 8;
inline constexpr std::uint64_t kConfigPathBytes = 1024;
inline constexpr std::int64_t kConfigDurationMs = 24LL * 3600 * 1000;
inline constexpr std::uint32_t kConfigVersionsHeld = 16;
inline constexpr std::uint32_t kConfigArenas = 16;
inline constexpr std::uint32_t kConfigArenasMin = 2;  // the target's, and the next one's
inline constexpr std::uint32_t kArenasOfSharingHost = 3;

static_assert(kLeafBytes % kPieceAlignBytes == 0);
static_assert(kBucketBytesMin >= kLeafBytes, "a bucket holds at least one leaf");
static_assert(kPageAlignBytes % kPieceAlignBytes == 0);
static_assert(2 * kTraceAnswerBytes <= kMessageBytes, "an answer fits in a message");
static_assert(kTensorCount * (kTensorNameBytes / 4) <= kMessageBytes,
              "a layout of typical names fits in a message");
static_assert(kCopyGroupCount * 8 <= kMessageBytes / 2, "the checksums of a plan fit in a message");
static_assert(kSendQueueBytes > kMessageBytes + kMiB, "the largest message can be queued");
static_assert(kSentenceBytes <= kStringBytes && kPathBytes <= kStringBytes);
static_assert(kMessageBytes < (1ULL << 32U), "lengths are u32 on the wire");
static_assert(kHeartbeatDeadlineMs >= 5 * kHeartbeatIntervalMs,
              "a few lost heartbeats are not a lost peer");
static_assert(kStepDeadlineMs < kPauseDeadlineMs, "a silent rank breaks its group inside a pause");
static_assert(kGroupWholeDeadlineMs < kCommitDeadlineMs &&
              kStepReconnectMaxMs < kGroupWholeDeadlineMs);
static_assert(kStreamRequestsAhead <= kStreamRequestsPending);
static_assert(kStreamStallMs >= 5 * kStreamWaitingMs,
              "a few late signs of life are not a lost source");
static_assert(kSwitchDeadlineMs >= kPauseDeadlineMs + kLoadDeadlineMs + kCommitDeadlineMs);
static_assert(kBucketAckDeadlineMs < kLoadDeadlineMs,
              "one silent engine is dropped before the load of all fails");
static_assert(kPublishDeadlineMs >=
              kAnnounceDeadlineMs + kStageDeadlineMs + kSwitchDeadlineMs + kReportMarginMs);

}  // namespace wsync::limits
