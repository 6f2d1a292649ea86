// Chooses the two-stage or the three-stage form, as configured or by measurement. Three stages run
// the H2D copies of the next round during the remaining broadcasts. If both share one fabric, they
// slow each other down and two stages are faster.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/kinds.h"

namespace wsync::reload {

[[nodiscard]] std::string_view stages_name(Stages stages) noexcept;
// Parses "auto", "2" or "3". Returns kInvalidInput, with the choices, for anything else.
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

// Times of one bucket: each operation alone, and together with the other kind.
struct StageTimings {
  MeanTime h2d_alone;
  MeanTime broadcast_alone;
  MeanTime h2d_together;
  MeanTime broadcast_together;
};

// Decides for each round whether H2D copies may run during broadcasts. With `auto` the first round
// uses two stages (each operation alone) and the next three (both together); then the form with the
// shorter round is kept. It is a value: copy it from one update to the next, so that the
// measurement is made only once.
class StageChoice {
 public:
  // `devices` must be at least 1. A round has one H2D copy on each device, all at once, and then
  // `devices` broadcasts, one after the other.
  StageChoice(Stages wanted, std::uint32_t devices) noexcept;

  // Whether the H2D copies of the next round may start during the broadcasts of the round that
  // begins now.
  [[nodiscard]] bool overlap() const noexcept;
  // Durations of whole buckets. `together`: an operation of the other kind ran at the same time.
  void h2d_took(std::chrono::nanoseconds t, bool together) noexcept;
  void broadcast_took(std::chrono::nanoseconds t, bool together) noexcept;

  // The form in use: kTwo or kThree; std::nullopt while `auto` still measures.
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
