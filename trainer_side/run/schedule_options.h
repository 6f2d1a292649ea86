// What `wsync schedule show`, `simulate` and `compare` have in common: the sizes, the order and the
// costs, as typed, and as the schedule takes them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "shared/base/error.h"
#include "trainer_side/schedule/order.h"
#include "trainer_side/schedule/simulate.h"

namespace CLI {
class App;
}

namespace wsync::cli {

struct ScheduleArguments {
  std::string order = "interleaved";
  std::uint32_t pp = 4;
  std::optional<std::uint32_t> vpp;           // 2 for interleaved, else 1
  std::optional<std::uint32_t> microbatches;  // twice pp
  std::optional<std::uint32_t> group;
  std::optional<std::uint32_t> extra_warmup;
  std::optional<bool> overlap;  // on for interleaved
  std::optional<bool> delay_wgrad;
  bool offload = false;
  std::string svg;
  std::string trace;
};
// Adds the options of sizes and order; `arguments` outlives the command.
void add_schedule_options(CLI::App& command, ScheduleArguments& arguments);
// Adds --svg and --trace.
void add_picture_options(CLI::App& command, ScheduleArguments& arguments);
// `delay_wgrad_default`: where the command line says nothing.
[[nodiscard]] Result<schedule::ScheduleOptions> to_options(const ScheduleArguments& arguments,
                                                           bool delay_wgrad_default);
// The fields that say which schedule it is.
[[nodiscard]] nlohmann::json describe(const schedule::ScheduleOptions& options);

// "1 micro-batch", "8 micro-batches".
[[nodiscard]] std::string microbatches_text(std::uint32_t count);

struct CostArguments {
  std::optional<double> forward, backward, pair;  // of whole cells
  // Of each lane's operations.
  std::optional<double> attention_forward, mlp_forward, attention_backward, mlp_backward;
  std::optional<double> weight_gradient, dispatch, combine, pp_transfer;
  std::optional<double> offload, onload;
  // Costs of lanes were given, not of cells.
  [[nodiscard]] bool by_lane() const;
};
void add_cost_options(CLI::App& command, CostArguments& arguments);
// `splits_wgrad`: the schedule has weight gradients of their own. Those are half of a backward
// where costs of cells are given without --wgrad. kInvalidInput names the option.
[[nodiscard]] Result<schedule::OperationCosts> to_costs(const CostArguments& arguments,
                                                        bool splits_wgrad);

// Writes the pictures that were asked for; `unit` is that of the grid's times.
[[nodiscard]] Result<> write_pictures(const ScheduleArguments& arguments,
                                      const schedule::ScheduleOptions& options,
                                      const schedule::Program& program,
                                      const schedule::Simulation& grid,
                                      const schedule::Simulation& lanes, std::string subtitle,
                                      std::string_view unit);

}  // namespace wsync::cli
