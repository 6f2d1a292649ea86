// Options that `wsync schedule show`, `simulate` and `compare` share: sizes, order and costs, as
// given on the command line and as the schedule needs them.
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
  std::optional<std::uint32_t> vpp;           // default: 2 for interleaved, otherwise 1
  std::optional<std::uint32_t> microbatches;  // default: 2 * pp
  std::optional<std::uint32_t> group;
  std::optional<std::uint32_t> extra_warmup;
  std::optional<bool> overlap;  // default: on for interleaved
  std::optional<bool> delay_wgrad;
  bool offload = false;
  std::string svg;
  std::string trace;
};
// Adds the options for sizes and order. `arguments` must outlive the command.
void add_schedule_options(CLI::App& command, ScheduleArguments& arguments);
// Adds --svg and --trace.
void add_picture_options(CLI::App& command, ScheduleArguments& arguments);
// `delay_wgrad_default` is used if the command line has neither form of the switch.
[[nodiscard]] Result<schedule::ScheduleOptions> to_options(const ScheduleArguments& arguments,
                                                           bool delay_wgrad_default);
// Returns the fields that identify the schedule.
[[nodiscard]] nlohmann::json describe(const schedule::ScheduleOptions& options);

// Returns for example "1 micro-batch" or "8 micro-batches".
[[nodiscard]] std::string microbatches_text(std::uint32_t count);

struct CostArguments {
  std::optional<double> forward, backward, pair;  // costs of whole cells
  // Costs of the operations of each lane.
  std::optional<double> attention_forward, mlp_forward, attention_backward, mlp_backward;
  std::optional<double> weight_gradient, dispatch, combine, pp_transfer;
  std::optional<double> offload, onload;
  // Returns whether the given costs are those of lanes, not of cells.
  [[nodiscard]] bool by_lane() const;
};
void add_cost_options(CLI::App& command, CostArguments& arguments);
// `splits_wgrad`: the schedule has separate weight gradients. If costs of cells are given without
// --wgrad, a weight gradient is half of a backward. Returns kInvalidInput with the option.
[[nodiscard]] Result<schedule::OperationCosts> to_costs(const CostArguments& arguments,
                                                        bool splits_wgrad);

// Writes the requested pictures. `unit` is the unit of the grid's times.
[[nodiscard]] Result<> write_pictures(const ScheduleArguments& arguments,
                                      const schedule::ScheduleOptions& options,
                                      const schedule::Program& program,
                                      const schedule::Simulation& grid,
                                      const schedule::Simulation& lanes, std::string subtitle,
                                      std::string_view unit);

}  // namespace wsync::cli
