// What the ranks of a run tell each other beside its steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/process_group/process_group.h"

namespace wsync::cli {

// While rank 0 writes a state the others wait for it, however slow its disk.
inline constexpr std::chrono::minutes kSaveDeadline{30};

// Each rank its own.
struct Flags {
  std::uint8_t stop = 0;           // this rank was asked to end the run
  std::uint8_t publish_again = 0;  // rank 0: the step before the next one
  std::uint8_t save_again = 0;     // rank 0: as above
  std::uint8_t save_failed = 0;
  std::uint8_t is_new = 0;     // this process has not been at any step of the run
  std::uint8_t has_begun = 0;  // steps of the run have ended
  std::uint16_t padding = 0;
  std::uint64_t saved = 0;      // rank 0: the newest step of the run that is on the disk
  std::uint64_t published = 0;  // steps up to it engines may have
  std::uint64_t given = 0;      // bytes, to other ranks in a recovery
  Digest text;                  // that is trained on
};
static_assert(std::is_trivially_copyable_v<Flags>);
[[nodiscard]] bool any(const std::vector<Flags>& flags, std::uint8_t Flags::* flag);

// Waits for all ranks; what each of them has told, on all alike. kRefused names a rank that
// trains on another text than rank 0. Other errors as ProcessGroup::exchange().
[[nodiscard]] Result<std::vector<Flags>> share_flags(collective::ProcessGroup& group,
                                                     const Flags& own,
                                                     std::chrono::milliseconds deadline);
// Errors as ProcessGroup::exchange().
[[nodiscard]] Result<> wait_for_all(collective::ProcessGroup& group,
                                    std::chrono::milliseconds deadline);

}  // namespace wsync::cli
