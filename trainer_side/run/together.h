// Exchanges between the ranks of a run outside of its steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/process_group/process_group.h"

namespace wsync::cli {

// Deadline while rank 0 writes a state: the other ranks wait for it, and its disk may be slow.
inline constexpr std::chrono::minutes kSaveDeadline{30};

// The values that each rank sends.
struct Flags {
  std::uint8_t stop = 0;           // this rank was asked to end the run
  std::uint8_t publish_again = 0;  // rank 0: publish the last completed step again
  std::uint8_t save_again = 0;     // rank 0: save the last completed step again
  std::uint8_t save_failed = 0;
  std::uint8_t is_new = 0;     // this process has not been at any step of the run
  std::uint8_t has_begun = 0;  // steps of the run have ended
  std::uint16_t padding = 0;
  std::uint64_t saved = 0;      // rank 0: newest step of the run that is on disk
  std::uint64_t published = 0;  // engines may have the steps up to this one
  std::uint64_t given = 0;      // bytes sent to other ranks in a recovery
  Digest text;                  // digest of the training text
};
static_assert(std::is_trivially_copyable_v<Flags>);
[[nodiscard]] bool any(const std::vector<Flags>& flags, std::uint8_t Flags::* flag);

// Waits for all ranks and returns the values of each; the result is the same on all ranks. Returns
// kRefused with the rank if one trains on another text than rank 0. Other errors as
// ProcessGroup::exchange().
[[nodiscard]] Result<std::vector<Flags>> share_flags(collective::ProcessGroup& group,
                                                     const Flags& own,
                                                     std::chrono::milliseconds deadline);
// Errors as ProcessGroup::exchange().
[[nodiscard]] Result<> wait_for_all(collective::ProcessGroup& group,
                                    std::chrono::milliseconds deadline);

}  // namespace wsync::cli
