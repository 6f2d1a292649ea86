#include "trainer_side/coordinator/version_names.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync::coordinator {

std::string used_step_text(std::uint64_t step, const Version& last) {
  return fmt::format(
      "step {} was used or passed under epoch {} (last: {}); a version never names two different "
      "byte strings: publish a step above {}, or let wsync choose the next free one",
      step, last.epoch, last.step, last.step);
}

Result<> check_given_step(std::uint64_t step) {
  if (step <= kGivenStepMax) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("step {} is above the limit of {}, which leaves room for later versions: "
                          "give a smaller step, or let wsync choose the next free one",
                          step, kGivenStepMax));
}

void VersionNames::note_seen(const Version& version) noexcept {
  seen_step_ = std::max(seen_step_, version.step);
}

void VersionNames::note_used(std::uint64_t step) noexcept {
  used_step_ = step;
  seen_step_ = std::max(seen_step_, used_step_);
}

Result<Version> VersionNames::next(std::uint32_t epoch, std::uint64_t step) const {
  const std::uint64_t last = std::max(seen_step_, used_step_);
  if (step > limits::kStepMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("step {}: a step is 1 to {}", step, limits::kStepMax));
  if (step == 0 && last >= limits::kStepMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("no step is free above {}, the highest that is known: give a step of 1 "
                            "to {}",
                            last, kGivenStepMax));
  if (step == 0) return Version{epoch, last + 1};
  // A step below one of another epoch may be used, because the epoch makes the name different.
  if (step <= used_step_)
    return fail(ErrorCode::kInvalidInput,
                used_step_text(step, {.epoch = epoch, .step = used_step_}));
  return Version{epoch, step};
}

}  // namespace wsync::coordinator
