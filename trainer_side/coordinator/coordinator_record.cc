#include "trainer_side/coordinator/coordinator_record.h"

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/control/record_parts.h"

namespace wsync::coordinator {
namespace {

constexpr std::uint32_t kMagic = 0x44524343;  // "CCRD"
constexpr std::uint16_t kFormat = 1;
constexpr std::string_view kWhat = "the coordinator's record";
constexpr std::size_t kNameBytesMin = 4;  // the length field of an empty name

static_assert(kCoordinatorRecordBytesMax >
              limits::kSidecarCount * (kNameBytesMin + limits::kPeerNameBytes) +
                  limits::kWithdrawnCount * control::kRecordVersionBytes + 4 * limits::kKiB);

}  // namespace

Bytes encode(const CoordinatorRecord& record) {
  ByteWriter out;
  out.put(kMagic);
  out.put(kFormat);
  control::put(out, record.fence);
  out.put(record.number);
  control::put(out, record.origin);
  out.put(record.kind);
  control::put(out, record.target);
  control::put(out, record.content);
  control::put(out, record.withdrawn);
  out.put(static_cast<std::uint32_t>(record.members.size()));
  for (const std::string& name : record.members) out.put_string(name);
  return control::seal_record(std::move(out));
}

Result<CoordinatorRecord> decode_coordinator_record(std::span<const std::byte> bytes) {
  const auto body = WSYNC_TRY(control::open_record(bytes, kWhat));
  ByteReader in(body);
  if (in.get<std::uint32_t>("magic") != kMagic) in.violate("magic", "is not that of a record");
  if (in.get<std::uint16_t>("format") != kFormat)
    in.violate("format", "is of another version of wsync");
  CoordinatorRecord record;
  record.fence = control::get_fence(in);
  if (record.fence.epoch > limits::kEpochMax)
    in.violate("fence epoch",
               fmt::format("{}, at most {} allowed", record.fence.epoch, limits::kEpochMax));
  record.number = in.get<std::uint64_t>("decision");
  record.origin = control::get_decision(in);
  record.kind = in.get_enum(control::kLastDecisionKind, "kind");
  record.target = control::get_version(in);
  record.content = control::get_digest(in);
  record.withdrawn = control::get_versions(in);
  const std::uint32_t count = in.get_count(limits::kSidecarCount, kNameBytesMin, "members");
  for (std::uint32_t i = 0; i < count; ++i)
    record.members.push_back(in.get_string(limits::kPeerNameBytes, "member"));
  WSYNC_TRY(in.finish(kWhat));
  return record;
}

}  // namespace wsync::coordinator
