#include "inference_side/staging/sidecar_record.h"

#include "shared/base/limits.h"

namespace wsync::staging {
namespace {

constexpr std::uint32_t kRecordMagic = 0x44524357;  // "WCRD"
constexpr std::uint16_t kRecordVersion = 1;
constexpr std::size_t kDigestBytes = 16;
constexpr std::size_t kVersionBytes = 12;

void put(ByteWriter& out, const control::Fence& fence) {
  out.put(fence.epoch);
  out.put(fence.run_id[0]);
  out.put(fence.run_id[1]);
}
void put(ByteWriter& out, const Version& version) {
  out.put(version.epoch);
  out.put(version.step);
}
control::Fence get_fence(ByteReader& in) {
  control::Fence fence;
  fence.epoch = in.get<std::uint64_t>("fence epoch");
  fence.run_id[0] = in.get<std::uint64_t>("fence run id");
  fence.run_id[1] = in.get<std::uint64_t>("fence run id");
  return fence;
}
Version get_version(ByteReader& in) {
  Version version;
  version.epoch = in.get<std::uint32_t>("version epoch");
  version.step = in.get<std::uint64_t>("version step");
  return version;
}

}  // namespace

Bytes encode(const SidecarRecord& record) {
  ByteWriter out;
  out.put(kRecordMagic);
  out.put(kRecordVersion);
  put(out, record.fence);
  put(out, record.decision.fence);
  out.put(record.decision.number);
  out.put(record.kind);
  put(out, record.target);
  out.put(record.content.low);
  out.put(record.content.high);
  out.put(static_cast<std::uint32_t>(record.withdrawn.size()));
  for (const Version& version : record.withdrawn) put(out, version);
  const Digest digest = digest_of(out.buffer());
  out.put(digest.low);
  out.put(digest.high);
  return std::move(out).take();
}

Result<SidecarRecord> decode_record(std::span<const std::byte> bytes) {
  if (bytes.size() < kDigestBytes)
    return fail(ErrorCode::kInvalidInput, "the sidecar's record is too short to be one");
  const auto body = bytes.first(bytes.size() - kDigestBytes);
  ByteReader end(bytes.last(kDigestBytes));
  Digest digest;
  digest.low = end.get<std::uint64_t>("digest");
  digest.high = end.get<std::uint64_t>("digest");
  if (digest != digest_of(body))
    return fail(ErrorCode::kInvalidInput, "the sidecar's record does not match its digest");
  ByteReader in(body);
  if (in.get<std::uint32_t>("magic") != kRecordMagic) in.violate("magic", "is not a record's");
  if (in.get<std::uint16_t>("format") != kRecordVersion)
    in.violate("format", "is of another version of wsync");
  SidecarRecord record;
  record.fence = get_fence(in);
  record.decision.fence = get_fence(in);
  record.decision.number = in.get<std::uint64_t>("decision");
  record.kind = in.get_enum(control::DecisionKind::kRollback, "kind");
  record.target = get_version(in);
  record.content.low = in.get<std::uint64_t>("content");
  record.content.high = in.get<std::uint64_t>("content");
  const std::uint32_t count = in.get_count(limits::kWithdrawnCount, kVersionBytes, "withdrawn");
  for (std::uint32_t i = 0; i < count; ++i) record.withdrawn.push_back(get_version(in));
  WSYNC_TRY(in.finish("the sidecar's record"));
  return record;
}

}  // namespace wsync::staging
