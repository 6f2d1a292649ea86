#include "shared/control/record_parts.h"

#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::control {
namespace {

constexpr std::size_t kDigestBytes = 16;

}  // namespace

void put(ByteWriter& out, const Fence& fence) {
  out.put(fence.epoch);
  out.put(fence.run_id[0]);
  out.put(fence.run_id[1]);
  out.put(fence.fleet.high);
  out.put(fence.fleet.low);
}
void put(ByteWriter& out, const Decision& decision) {
  put(out, decision.fence);
  out.put(decision.number);
}
void put(ByteWriter& out, const Version& version) {
  out.put(version.epoch);
  out.put(version.step);
}
void put(ByteWriter& out, const Digest& digest) {
  out.put(digest.low);
  out.put(digest.high);
}
void put(ByteWriter& out, std::span<const Version> versions) {
  out.put(static_cast<std::uint32_t>(versions.size()));
  for (const Version& version : versions) put(out, version);
}

Fence get_fence(ByteReader& in) {
  Fence fence;
  fence.epoch = in.get<std::uint64_t>("fence epoch");
  for (std::uint64_t& word : fence.run_id) word = in.get<std::uint64_t>("fence run id");
  fence.fleet.high = in.get<std::uint64_t>("fleet id");
  fence.fleet.low = in.get<std::uint64_t>("fleet id");
  return fence;
}
Decision get_decision(ByteReader& in) {
  Decision decision;
  decision.fence = get_fence(in);
  decision.number = in.get<std::uint64_t>("decision number");
  return decision;
}
Version get_version(ByteReader& in) {
  Version version;
  version.epoch = in.get<std::uint32_t>("version epoch");
  version.step = in.get<std::uint64_t>("version step");
  return version;
}
Digest get_digest(ByteReader& in) {
  Digest digest;
  digest.low = in.get<std::uint64_t>("digest");
  digest.high = in.get<std::uint64_t>("digest");
  return digest;
}
std::vector<Version> get_versions(ByteReader& in) {
  const std::uint32_t count =
      in.get_count(limits::kWithdrawnCount, kRecordVersionBytes, "versions");
  std::vector<Version> versions;
  versions.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) versions.push_back(get_version(in));
  return versions;
}

Bytes seal_record(ByteWriter&& body) {
  put(body, digest_of(body.buffer()));
  return std::move(body).take();
}

Result<std::span<const std::byte>> open_record(std::span<const std::byte> bytes,
                                               std::string_view what) {
  if (bytes.size() < kDigestBytes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{} has {} bytes, which is too short for a record", what, bytes.size()));
  const auto body = bytes.first(bytes.size() - kDigestBytes);
  ByteReader end(bytes.last(kDigestBytes));
  const Digest digest = get_digest(end);
  if (const Digest found = digest_of(body); digest != found)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{} does not match its digest: the stored digest is {}, the digest of its bytes is {}",
            what, digest.to_string(), found.to_string()));
  return body;
}

}  // namespace wsync::control
