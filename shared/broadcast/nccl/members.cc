#include "shared/broadcast/nccl/members.h"

#include "shared/base/format.h"
#include "shared/broadcast/nccl_library.h"

namespace wsync::collective::nccl {
namespace {

std::string cuda_text(std::uint32_t version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Kernels run on every driver of their CUDA major version, and on newer drivers.
Result<> check_driver(const Member& member) {
  if (member.driver_cuda / 1000 >= member.build_cuda / 1000) return {};
  return fail(
      ErrorCode::kRefused,
      fmt::format("{}: its driver supports CUDA {}, but wsync on that host was built with CUDA {}: "
                  "install a driver of CUDA {}.0 or newer, or a wsync built with CUDA {}",
                  who(member), cuda_text(member.driver_cuda), cuda_text(member.build_cuda),
                  member.build_cuda / 1000, member.driver_cuda / 1000));
}

Result<> check_pair(const Member& a, const Member& b) {
  if (!a.rank || !b.rank || a.gpu != b.gpu) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("{} and {} both use {}: NCCL needs one GPU for each rank; give each rank "
                          "a GPU of its own, or {}",
                          who(a), who(b), a.gpu, kShareGpuAdvice));
}

}  // namespace

std::string who(const Member& member) {
  if (!member.rank) return fmt::format("a process on host {}", member.host);
  return fmt::format("rank {} on host {}", static_cast<std::uint32_t>(*member.rank), member.host);
}

Result<> check_members(std::span<const Member> members, bool ranks_share_gpus) {
  for (const Member& member : members) WSYNC_TRY(check_driver(member));
  if (ranks_share_gpus) return {};
  for (std::size_t b = 1; b < members.size(); ++b)
    for (std::size_t a = 0; a < b; ++a) WSYNC_TRY(check_pair(members[a], members[b]));
  return {};
}

}  // namespace wsync::collective::nccl
