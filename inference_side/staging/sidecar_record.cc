#include "inference_side/staging/sidecar_record.h"

#include "shared/control/record_parts.h"

namespace wsync::staging {
namespace {

constexpr std::uint32_t kRecordMagic = 0x44524357;  // "WCRD"
constexpr std::uint16_t kRecordVersion = 2;
constexpr std::string_view kWhat = "the sidecar's record";

}  // namespace

Bytes encode(const SidecarRecord& record) {
  ByteWriter out;
  out.put(kRecordMagic);
  out.put(kRecordVersion);
  control::put(out, record.fence);
  control::put(out, record.decision);
  control::put(out, record.origin);
  out.put(record.kind);
  control::put(out, record.target);
  control::put(out, record.content);
  control::put(out, record.withdrawn);
  return control::seal_record(std::move(out));
}

Result<SidecarRecord> decode_record(std::span<const std::byte> bytes) {
  const auto body = WSYNC_TRY(control::open_record(bytes, kWhat));
  ByteReader in(body);
  if (in.get<std::uint32_t>("magic") != kRecordMagic)
    in.violate("magic", "is not that of a record");
  if (in.get<std::uint16_t>("format") != kRecordVersion)
    in.violate("format", "is of another version of wsync");
  SidecarRecord record;
  record.fence = control::get_fence(in);
  record.decision = control::get_decision(in);
  record.origin = control::get_decision(in);
  record.kind = in.get_enum(control::kLastDecisionKind, "kind");
  record.target = control::get_version(in);
  record.content = control::get_digest(in);
  record.withdrawn = control::get_versions(in);
  WSYNC_TRY(in.finish(kWhat));
  return record;
}

}  // namespace wsync::staging
