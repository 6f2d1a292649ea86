#include "shared/transport/frame.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/limits.h"

namespace wsync::transport {

namespace {

std::uint64_t bytes_max(FrameType type) {
  switch (type) {
    case FrameType::kGet:
    case FrameType::kBucket:
    case FrameType::kChanges:
    case FrameType::kLeaves:
      return limits::kBucketBytesMax;
    case FrameType::kArena:
      return limits::kModelBytesMax;
    case FrameType::kFailure:
      return limits::kStreamTextBytes;
    case FrameType::kWaiting:
      return 0;
  }
  return 0;
}

// The last field has another meaning for each type.
std::uint64_t last_field(const Frame& frame) {
  if (frame.type == FrameType::kLeaves) return frame.offset;
  if (frame.type != FrameType::kGet) return frame.changes_max;
  return frame.changes_max | (frame.takes_leaves ? kTakesLeaves : 0U) |
         (frame.takes_changes_alone ? kTakesChangesAlone : 0U);
}

void read_last_field(ByteReader& reader, Frame& frame) {
  const auto value = reader.get<std::uint64_t>("largest changes");
  if (frame.type == FrameType::kGet) {
    frame.takes_leaves = (value & kTakesLeaves) != 0;
    frame.takes_changes_alone = (value & kTakesChangesAlone) != 0;
    frame.changes_max = value & ~(kTakesLeaves | kTakesChangesAlone);
  } else if (frame.type == FrameType::kLeaves) {
    frame.offset = value;
    if (value >= limits::kBucketBytesMax)
      reader.violate("offset", fmt::format("{}, expected less than {}, the size of a bucket", value,
                                           limits::kBucketBytesMax));
  } else if (value != 0) {
    reader.violate("largest changes", "only a request has them");
  }
}

}  // namespace

std::array<std::byte, kFrameBytes> encode_frame(const Frame& frame) {
  ByteWriter writer;
  writer.put(kFrameMagic);
  writer.put(kFrameProtocol);
  writer.put(frame.type);
  writer.put(frame.key.fence.epoch);
  writer.put(frame.key.fence.run_id[0]);
  writer.put(frame.key.fence.run_id[1]);
  writer.put(frame.key.version.epoch);
  writer.put(frame.type == FrameType::kFailure ? static_cast<std::uint32_t>(frame.code) : 0U);
  writer.put(frame.key.version.step);
  writer.put(frame.bucket);
  writer.put(frame.bytes);
  writer.put(frame.key.layout.low);
  writer.put(frame.key.layout.high);
  writer.put(frame.base.epoch);
  writer.put(std::uint32_t{0});
  writer.put(frame.base.step);
  writer.put(last_field(frame));
  WSYNC_CHECK(writer.size() == kFrameBytes, "a frame header has a fixed size");
  std::array<std::byte, kFrameBytes> bytes;
  std::copy_n(writer.buffer().begin(), kFrameBytes, bytes.begin());
  return bytes;
}

Result<Frame> decode_frame(std::span<const std::byte, kFrameBytes> bytes) {
  ByteReader reader(bytes);
  Frame frame;
  const auto magic = reader.get<std::uint32_t>("magic");
  if (magic != kFrameMagic)
    reader.violate("magic", fmt::format("{:#x}, expected {:#x}", magic, kFrameMagic));
  const auto protocol = reader.get<std::uint16_t>("protocol version");
  if (protocol != kFrameProtocol)
    reader.violate("protocol version", fmt::format("{}, expected {}", protocol, kFrameProtocol));
  frame.type = reader.get_enum(FrameType::kLeaves, "type");
  if (frame.type < FrameType::kGet) reader.violate("type", "value 0 is unknown");
  frame.key.fence.epoch = reader.get<std::uint64_t>("fence epoch");
  for (auto& word : frame.key.fence.run_id) word = reader.get<std::uint64_t>("fence run id");
  frame.key.version.epoch = reader.get<std::uint32_t>("version epoch");
  const auto code = reader.get<std::uint32_t>("error code");
  const bool is_failure = frame.type == FrameType::kFailure;
  if (code > (is_failure ? static_cast<std::uint32_t>(kLastErrorCode) : 0U))
    reader.violate("error code", fmt::format("value {} is unknown", code));
  if (is_failure && reader.ok()) frame.code = static_cast<ErrorCode>(code);
  frame.key.version.step = reader.get<std::uint64_t>("version step");
  frame.bucket = reader.get<std::uint64_t>("bucket");
  frame.bytes = reader.get<std::uint64_t>("bytes");
  const std::uint64_t max = bytes_max(frame.type);
  if (frame.bytes > max)
    reader.violate("bytes", fmt::format("{}, at most {} allowed", frame.bytes, max));
  frame.key.layout.low = reader.get<std::uint64_t>("layout digest");
  frame.key.layout.high = reader.get<std::uint64_t>("layout digest");
  frame.base.epoch = reader.get<std::uint32_t>("base epoch");
  if (const auto zero = reader.get<std::uint32_t>("base epoch"); zero != 0)
    reader.violate("base epoch", fmt::format("{} is behind it, expected 0", zero));
  frame.base.step = reader.get<std::uint64_t>("base step");
  read_last_field(reader, frame);
  const bool may_have_base = frame.type == FrameType::kGet || frame.type == FrameType::kArena ||
                             frame.type == FrameType::kLeaves;
  if (frame.type == FrameType::kChanges ? frame.base.none() : !may_have_base && !frame.base.none())
    reader.violate("base", "only a request for changes, changes, leaves and arenas have one");
  WSYNC_TRY(reader.finish("data frame"));
  return frame;
}

std::array<std::byte, kTrailerBytes> encode_trailer(const Digest& digest) {
  ByteWriter writer;
  writer.put(digest.low);
  writer.put(digest.high);
  std::array<std::byte, kTrailerBytes> bytes;
  std::copy_n(writer.buffer().begin(), kTrailerBytes, bytes.begin());
  return bytes;
}

Digest decode_trailer(std::span<const std::byte, kTrailerBytes> bytes) {
  ByteReader reader(bytes);
  Digest digest;
  digest.low = reader.get<std::uint64_t>("digest");
  digest.high = reader.get<std::uint64_t>("digest");
  return digest;
}

}  // namespace wsync::transport
