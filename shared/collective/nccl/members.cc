#include "shared/collective/nccl/members.h"

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/collective/nccl/library.h"

namespace wsync::collective::nccl {
namespace {

constexpr std::uint32_t kMagic = 0x4c43574eU;  // "NWCL" on the wire
constexpr std::uint32_t kFormat = 1;
// Two empty strings and what is fixed.
constexpr std::size_t kLeastMemberBytes = 4 + 1 + 4 + 4 + 3 * 4;

std::string cuda_text(std::uint32_t version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Kernels run under every driver of their CUDA major version, and under later ones.
Result<> check_driver(const Member& member) {
  if (member.driver_cuda / 1000 >= member.build_cuda / 1000) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("{}: its driver can do CUDA {}, and wsync there was built with CUDA {}: "
                          "install a driver of CUDA {}.0 or newer, or a wsync built with CUDA {}",
                          who(member), cuda_text(member.driver_cuda), cuda_text(member.build_cuda),
                          member.build_cuda / 1000, member.driver_cuda / 1000));
}

Result<> check_pair(const Member& a, const Member& b) {
  if (a.nccl != b.nccl)
    return fail(ErrorCode::kRefused,
                fmt::format("{} has NCCL {}, {} has NCCL {}: all ranks of a group need the same "
                            "version; install one of them on both",
                            who(a), version_text(a.nccl), who(b), version_text(b.nccl)));
  if (!a.rank || !b.rank) return {};
  if (*a.rank == *b.rank)
    return fail(ErrorCode::kRefused, fmt::format("{} and {} want the same rank", who(a), who(b)));
  if (a.gpu != b.gpu) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("{} and {} both have {}: NCCL takes one rank for each GPU; give each a "
                          "GPU of its own, or use the local collective",
                          who(a), who(b), a.gpu));
}

Member get_member(ByteReader& reader, std::uint32_t size) {
  Member member;
  member.host = reader.get_string(limits::kPeerNameBytes, "member.host");
  const bool ranked = reader.get_bool("member.has_rank");
  const auto rank = reader.get<std::uint32_t>("member.rank");
  if (ranked && rank >= size)
    reader.violate("member.rank", fmt::format("{} in a group of {}", rank, size));
  if (!ranked && rank != 0) reader.violate("member.rank", "given for a member that has none");
  if (ranked) member.rank = Rank{rank};
  member.gpu = reader.get_string(limits::kGpuUuidBytes, "member.gpu");
  if (ranked == member.gpu.empty())
    reader.violate("member.gpu", ranked ? "missing" : "given for a member without a rank");
  member.nccl = reader.get<std::uint32_t>("member.nccl");
  member.driver_cuda = reader.get<std::uint32_t>("member.driver_cuda");
  member.build_cuda = reader.get<std::uint32_t>("member.build_cuda");
  return member;
}

}  // namespace

std::string who(const Member& member) {
  if (!member.rank) return fmt::format("a process on host {}", member.host);
  return fmt::format("rank {} on host {}", static_cast<std::uint32_t>(*member.rank), member.host);
}

Result<> check_members(std::span<const Member> members) {
  for (const Member& member : members) WSYNC_TRY(check_driver(member));
  for (std::size_t b = 1; b < members.size(); ++b)
    for (std::size_t a = 0; a < b; ++a) WSYNC_TRY(check_pair(members[a], members[b]));
  return {};
}

Bytes encode(const GroupId& id) {
  ByteWriter writer;
  writer.put(kMagic);
  writer.put(kFormat);
  writer.put(id.size);
  writer.put_raw(id.unique);
  writer.put(static_cast<std::uint32_t>(id.members.size()));
  for (const Member& member : id.members) {
    writer.put_string(member.host);
    writer.put(static_cast<std::uint8_t>(member.rank.has_value()));
    writer.put(member.rank.value_or(Rank{}));
    writer.put_string(member.gpu);
    writer.put(member.nccl);
    writer.put(member.driver_cuda);
    writer.put(member.build_cuda);
  }
  return std::move(writer).take();
}

Result<GroupId> decode_group_id(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  GroupId id;
  if (reader.get<std::uint32_t>("magic") != kMagic)
    reader.violate("magic", "this is not the id of an NCCL group");
  if (const auto format = reader.get<std::uint32_t>("format"); format != kFormat)
    reader.violate("format", fmt::format("{}, expected {}: the id comes from another release of "
                                         "wsync",
                                         format, kFormat));
  id.size = reader.get<std::uint32_t>("size");
  if (id.size < 1 || id.size > limits::kDeviceCount)
    reader.violate("size", fmt::format("{}, expected 1 to {}", id.size, limits::kDeviceCount));
  const Bytes unique = reader.get_raw(kUniqueIdBytes, "unique id");
  if (unique.size() == kUniqueIdBytes) std::copy(unique.begin(), unique.end(), id.unique.begin());
  const auto count = reader.get_count(limits::kDeviceCount + 1, kLeastMemberBytes, "members");
  if (reader.ok() && count == 0) reader.violate("members", "the maker is missing");
  for (std::uint32_t m = 0; m < count && reader.ok(); ++m)
    id.members.push_back(get_member(reader, id.size));
  if (reader.ok() && id.members.front().rank)
    reader.violate("members", "the first one is the maker, which has no rank");
  WSYNC_TRY(reader.finish("the id of a group"));
  return id;
}

}  // namespace wsync::collective::nccl
