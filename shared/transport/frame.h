// The frames that the data transports share. Every frame has a header of kFrameBytes. Its type
// decides what follows:
//
//   get       sink -> source   nothing. "Send this bucket of this version."
//   bucket    source -> sink   `bytes` of payload, then the bucket_digest() of the sums of its
//                              leaves (16 bytes)
//   leaves    source -> sink   the next leaves of the bucket for a sink that takes them one by one:
//                              `bytes` of payload, then the same digest of their sums. The last
//                              ones end the bucket. They go up to the begin of the next leaf, or
//                              to the end of the bucket
//   changes   source -> sink   the same bucket for a sink that holds the base which it has named:
//                              `bytes` of leaf changes (shared/weights/patch), then the same digest
//   arena     source -> sink   nothing; comes with the arena's descriptor (Unix socket only), and
//                              for a sink that has named a base perhaps with that of a patch
//   changes   source -> sink   over a Unix socket: nothing; comes with the descriptor of sealed
//                              memory, which has such frames of all buckets
//   waiting   source -> sink   nothing. "Alive; the requested bucket has not arrived here yet."
//   failure   source -> sink   `bytes` of text, at most limits::kStreamTextBytes: the reason
//
//   offset  0  magic u32 | protocol version u16 | type u16
//           8  fence epoch u64 | fence run id 2 x u64
//          32  version epoch u32 | error code u32 (failure; else 0)
//          40  version step u64
//          48  bucket u64
//          56  bytes u64 (get: size of the bucket that the sink expects)
//          64  layout digest, low u64, high u64
//          80  base: epoch u32 | 0 u32 | step u64. get: a version of the same layout that the sink
//              holds, or 0.0; changes, arena: the one of the request; leaves: the same, if more has
//              changed from it than the sink wants; else 0.0
//          96  changes_max u64. get: the largest changes that the sink wants, of the bucket, or
//              over a Unix socket of all buckets. Its two highest bits: the sink takes leaves one
//              by one, and it takes changes alone. An older source takes that for a high limit, so
//              it may send larger changes. leaves: offset of the first byte in the bucket; else 0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/transport/stream.h"

namespace wsync::transport {

inline constexpr std::uint32_t kFrameMagic = 0x54425357;  // "WSBT"
inline constexpr std::uint16_t kFrameProtocol = 3;
inline constexpr std::size_t kFrameBytes = 104;
inline constexpr std::size_t kTrailerBytes = 16;
// Bits of changes_max.
inline constexpr std::uint64_t kTakesLeaves = 1ULL << 63U;
inline constexpr std::uint64_t kTakesChangesAlone = 1ULL << 62U;

enum class FrameType : std::uint16_t {
  kGet = 1,
  kBucket,
  kWaiting,
  kFailure,
  kArena,
  kChanges,
  kLeaves
};

struct Frame {
  FrameType type = FrameType::kGet;
  StreamKey key;
  ErrorCode code = ErrorCode::kInternal;  // failure only
  std::uint64_t bucket = 0;
  std::uint64_t bytes = 0;
  Version base;                   // get, changes, arena and leaves only
  std::uint64_t changes_max = 0;  // get only; below kTakesChangesAlone
  bool takes_leaves = false;      // get only
  // get only: the sink has no memory for the bucket. An older one does not say so.
  bool takes_changes_alone = false;
  std::uint64_t offset = 0;  // leaves only
};

[[nodiscard]] std::array<std::byte, kFrameBytes> encode_frame(const Frame& frame);
// kInvalidInput naming the wrong field: magic, protocol version, type, code or size.
[[nodiscard]] Result<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes);

[[nodiscard]] std::array<std::byte, kTrailerBytes> encode_trailer(const Digest& digest);
[[nodiscard]] Digest decode_trailer(std::span<const std::byte, kTrailerBytes> bytes);

}  // namespace wsync::transport
