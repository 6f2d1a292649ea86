#include "trainer_side/run/together.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/process_group/collectives.h"

namespace wsync::cli {
namespace {

collective::Team everyone_of(collective::ProcessGroup& group) {
  std::vector<std::uint32_t> everyone(group.size());
  std::iota(everyone.begin(), everyone.end(), 0U);
  return {&group, std::move(everyone)};
}

}  // namespace

bool any(const std::vector<Flags>& flags, std::uint8_t Flags::* flag) {
  return std::any_of(flags.begin(), flags.end(), [&](const Flags& one) { return one.*flag != 0; });
}

Result<std::vector<Flags>> share_flags(collective::ProcessGroup& group, const Flags& own,
                                       std::chrono::milliseconds deadline) {
  std::vector<Flags> flags(group.size());
  flags[group.rank()] = own;
  std::vector<std::span<std::byte>> parts;
  for (Flags& one : flags) parts.push_back(std::as_writable_bytes(std::span(&one, 1)));
  WSYNC_TRY(collective::all_gather(everyone_of(group), parts, now() + deadline));
  for (std::uint32_t rank = 0; rank < flags.size(); ++rank)
    if (flags[rank].text != flags.front().text)
      return fail(ErrorCode::kRefused,
                  fmt::format("rank {} reads another text than rank 0: its digest is {}, expected "
                              "{}; data.files must not change during a run",
                              rank, flags[rank].text.to_string(), flags.front().text.to_string()));
  return flags;
}

Result<> wait_for_all(collective::ProcessGroup& group, std::chrono::milliseconds deadline) {
  return collective::barrier(everyone_of(group), now() + deadline);
}

}  // namespace wsync::cli
