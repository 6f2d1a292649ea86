// Two-stage or three-stage form: as configured, or by measurement. Three stages run the next
// round's H2D copies under the remaining broadcasts; where both share one fabric they slow each
// other down and two stages are faster.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/kinds.h"

namespace wsync::reload {

[[nodiscard]] std::string_view stages_name(Stages stages) noexcept;
// "auto", "2" or "3"; anything else is kInvalidInput naming the choices.
[[nodiscard]] Result<Stages> parse_stages(std::string_view text);

// The mean of the measured times.
class MeanTime {
 public:
  void add(std::chrono::nanoseconds t) noexcept {
    total_ += t;
    ++count_;
  }
  [[nodiscard]] bool known() const noexcept { return count_ > 0; }
  [[nodiscard]] std::chrono::nanoseconds mean() const noexcept {
    return count_ == 0 ? std::chrono::nanoseconds{0} : total_ / count_;
  }

 private:
  std::chrono::nanoseconds total_{0};
  std::int64_t count_ = 0;
};

// Times of one bucket: of each operation alone, and while the other kind runs.
struct StageTimings {
  MeanTime h2d_alone;
  MeanTime broadcast_alone;
  MeanTime h2d_together;
  MeanTime broadcast_together;
};

// Decides, round after round, whether H2D may run under broadcasts. With `auto` the first round is
// run in two stages (each operation alone), the next in three (both together); then the form with
// the shorter round is kept. It is a value: copy it from one update to the next, so that the
// measurement is made once.
class StageChoice {
 public:
  // devices >= 1. A round has one H2D copy on each device, all at once, and then `devices`
  // broadcasts one after the other.
  StageChoice(Stages wanted, std::uint32_t devices) noexcept;

  // Whether the next round's H2D may start under the broadcasts of the round that begins now.
  [[nodiscard]] bool overlap() const noexcept;
  // Durations of whole buckets; `together`: an operation of the other kind ran meanwhile.
  void h2d_took(std::chrono::nanoseconds t, bool together) noexcept;
  void broadcast_took(std::chrono::nanoseconds t, bool together) noexcept;

  // The form in use: kTwo or kThree; no value while `auto` still measures.
  [[nodiscard]] std::optional<Stages> decided() const noexcept { return settled_; }
  [[nodiscard]] Stages wanted() const noexcept { return wanted_; }
  [[nodiscard]] const StageTimings& timings() const noexcept { return timings_; }

 private:
  void settle() noexcept;

  Stages wanted_;
  std::uint32_t devices_;
  std::optional<Stages> settled_;
  StageTimings timings_;
};

}  // namespace wsync::reload
