#include "inference_side/reload/stage_choice.h"

#include <algorithm>

#include "shared/base/format.h"

namespace wsync::reload {

std::string_view stages_name(Stages stages) noexcept {
  switch (stages) {
    case Stages::kAuto:
      return "auto";
    case Stages::kTwo:
      return "2";
    case Stages::kThree:
      return "3";
  }
  return "unknown";
}

Result<Stages> parse_stages(std::string_view text) {
  for (const auto stages : {Stages::kAuto, Stages::kTwo, Stages::kThree})
    if (text == stages_name(stages)) return stages;
  return fail(ErrorCode::kInvalidInput,
              fmt::format("stages '{}' is unknown, expected auto, 2 or 3", text));
}

StageChoice::StageChoice(Stages wanted, std::uint32_t devices) noexcept
    : wanted_(wanted), devices_(devices) {
  if (wanted != Stages::kAuto) settled_ = wanted;
  // With one device there is no remaining broadcast during which an H2D copy could run, so both
  // forms are the same.
  else if (devices == 1)
    settled_ = Stages::kTwo;
}

bool StageChoice::overlap() const noexcept {
  if (settled_) return *settled_ == Stages::kThree;
  return timings_.h2d_alone.known() && timings_.broadcast_alone.known();
}

void StageChoice::h2d_took(std::chrono::nanoseconds t, bool together) noexcept {
  if (settled_) return;
  (together ? timings_.h2d_together : timings_.h2d_alone).add(t);
  settle();
}

void StageChoice::broadcast_took(std::chrono::nanoseconds t, bool together) noexcept {
  if (settled_) return;
  (together ? timings_.broadcast_together : timings_.broadcast_alone).add(t);
  settle();
}

// h and b: times of an H2D copy and a broadcast alone; h' and b': times when both kinds run
// together; N devices. In two stages a round takes h + N*b. In three stages the broadcasts take
// N*b' one after the other, and each H2D buffer is busy for h' + b'; the round takes the longer of
// the two.
void StageChoice::settle() noexcept {
  const StageTimings& t = timings_;
  if (!t.h2d_alone.known() || !t.broadcast_alone.known() || !t.h2d_together.known() ||
      !t.broadcast_together.known())
    return;
  const auto two = t.h2d_alone.mean() + devices_ * t.broadcast_alone.mean();
  const auto three = std::max(devices_ * t.broadcast_together.mean(),
                              t.h2d_together.mean() + t.broadcast_together.mean());
  settled_ = three < two ? Stages::kThree : Stages::kTwo;
}

}  // namespace wsync::reload
