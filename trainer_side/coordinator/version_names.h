// VersionNames: chooses the step that names the next snapshot. A name never stands for two
// different contents, not even after a restart of the trainer. Thread: confined to one thread.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::coordinator {

// The highest step that a caller may give. The versions after it get the next free steps, up to
// limits::kStepMax, so a fleet always takes a newer version.
inline constexpr std::uint64_t kGivenStepMax = (std::uint64_t{1} << 62U) - 1;
// Returns kInvalidInput if a step that a caller gives is above kGivenStepMax.
[[nodiscard]] Result<> check_given_step(std::uint64_t step);

// Why a step is not free: `last` is the highest one that was used.
[[nodiscard]] std::string used_step_text(std::uint64_t step, const Version& last);

class VersionNames {
 public:
  // Records a version that this fleet knows, of any epoch.
  void note_seen(const Version& version) noexcept;
  // A snapshot has this step under the current epoch.
  void note_used(std::uint64_t step) noexcept;
  // Whether no snapshot under the current epoch has a greater step, and one has this step.
  [[nodiscard]] bool is_last(std::uint64_t step) const noexcept { return step == used_step_; }
  // The highest step of any version, and under the current epoch.
  [[nodiscard]] std::uint64_t seen_step() const noexcept { return seen_step_; }
  [[nodiscard]] std::uint64_t used_step() const noexcept { return used_step_; }
  // Another epoch has been claimed. None of its steps is used yet.
  void begin_epoch() noexcept { used_step_ = 0; }
  // The next name under `epoch`: one step above all known steps, or `step` if it is not 0. Returns
  // kInvalidInput if that step was used or is above limits::kStepMax. A step of a caller must have
  // passed check_given_step(); one that wsync has chosen may be above its limit.
  [[nodiscard]] Result<Version> next(std::uint32_t epoch, std::uint64_t step) const;

 private:
  std::uint64_t seen_step_ = 0;  // highest step of any version
  std::uint64_t used_step_ = 0;  // highest step under this epoch
};

}  // namespace wsync::coordinator
