// Generates the list of actions of each pipeline rank for the supported schedules.
//
// Sources: interleaved 1F1B is from Megatron-LM (Narayanan et al. 2021, arXiv 2104.04473, section
// 2.2). With one extra warm-up micro-batch and overlapped expert-parallel communication it is the
// schedule of the Kimi K2 report (arXiv 2507.20534, section 2.4.2, figure 7). ZB-H1 is from Qi et
// al. 2023 (arXiv 2401.10241, section 2.1). GPipe is from arXiv 1811.06965.
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
  kInterleaved,  // with `overlap`: the main schedule of wsync
  kOneForwardOneBackward,
  kZeroBubbleH1,
  kGPipe,
};
[[nodiscard]] std::string_view order_name(Order order) noexcept;  // "interleaved", "1f1b", ...
// Returns kInvalidInput, which lists the known names, if `name` is unknown.
[[nodiscard]] Result<Order> order_of(std::string_view name);

struct ScheduleOptions {
  Order order = Order::kInterleaved;
  Shape shape;
  // N: the number of micro-batches that pass through all chunks before the next group begins.
  // Absent: pp.
  std::optional<std::uint32_t> group = {};
  // Interleaved only: combines a forward and the backward of another micro-batch into one action.
  bool overlap = false;
  // e: forwards in the warm-up of each rank beyond those of interleaved 1F1B. Absent: 1 with
  // overlap, 0 without. With overlap and e = 0, the last rank would pair a forward with its own
  // backward.
  std::optional<std::uint32_t> extra_warmup = {};
  bool delay_wgrad = false;  // I and W instead of B; always so in ZB-H1
};

// Returns kInvalidInput, which names the incompatible sizes and the reason. The schedule satisfies
// validate.h, except with overlap and extra_warmup 0.
[[nodiscard]] Result<Schedule> make_schedule(const ScheduleOptions& options);

// Returns w(r) for each rank: the number of forwards before the first backward or pair. The options
// must be valid for make_schedule.
[[nodiscard]] std::vector<std::uint32_t> warmup_counts(const ScheduleOptions& options);

}  // namespace wsync::schedule
