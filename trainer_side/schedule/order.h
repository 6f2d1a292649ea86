// The orders in which pipeline ranks run their cells, all as the same list of actions.
//
// Sources: interleaved 1F1B is Megatron-LM's (Narayanan et al. 2021, arXiv 2104.04473, section
// 2.2); with one extra warm-up micro-batch and expert-parallel communication overlapped it is that
// of the Kimi K2 report (arXiv 2507.20534, section 2.4.2, figure 7); ZB-H1 is that of Qi et al.
// 2023 (arXiv 2401.10241, section 2.1); GPipe is arXiv 1811.06965.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/schedule/action.h"

namespace wsync::schedule {

enum class Order : std::uint8_t {
  kInterleaved,  // with `overlap`, the schedule that wsync is made for
  kOneForwardOneBackward,
  kZeroBubbleH1,
  kGPipe,
};
[[nodiscard]] std::string_view order_name(Order order) noexcept;  // "interleaved", "1f1b", ...
// kInvalidInput names the orders there are.
[[nodiscard]] Result<Order> order_of(std::string_view name);

struct ScheduleOptions {
  Order order = Order::kInterleaved;
  Shape shape;
  // N: micro-batches that go through all chunks before the next ones begin; absent = pp.
  std::optional<std::uint32_t> group = {};
  // Interleaved only: a forward and the backward of another micro-batch are one action.
  bool overlap = false;
  // e: forwards in each rank's warm-up beyond those of interleaved 1F1B; absent = 1 with overlap,
  // 0 without. With overlap and 0 the last rank would pair a forward with its own backward.
  std::optional<std::uint32_t> extra_warmup = {};
  bool delay_wgrad = false;  // I and W in the place of B; ZB-H1 has them always
};

// kInvalidInput says which sizes do not go together and why. What it returns is right by
// validate.h, but for overlap with extra_warmup 0.
[[nodiscard]] Result<Schedule> make_schedule(const ScheduleOptions& options);

// w(r) of each rank: forwards before those that alternate with, or are paired with, backwards.
// The options must be ones that make_schedule takes.
[[nodiscard]] std::vector<std::uint32_t> warmup_counts(const ScheduleOptions& options);

}  // namespace wsync::schedule
