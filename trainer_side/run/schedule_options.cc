#include "trainer_side/run/schedule_options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/text_file.h"
#include "trainer_side/schedule/picture.h"

namespace wsync::cli {
namespace {

using schedule::OperationCosts;
using schedule::Order;

// Length of one unit of cost in a Chrome trace.
constexpr double kTraceUnitNs = 1e6;

struct CostOption {
  const char* name;
  std::optional<double> CostArguments::* value;
  double OperationCosts::* cost;
  const char* text;
};
constexpr std::array kLaneCosts{
    CostOption{"--attn-forward", &CostArguments::attention_forward, &OperationCosts::attention,
               "Attention, forward"},
    CostOption{"--mlp-forward", &CostArguments::mlp_forward, &OperationCosts::mlp,
               "MLP (experts), forward"},
    CostOption{"--attn-backward", &CostArguments::attention_backward,
               &OperationCosts::attention_gradient, "Attention, input gradient"},
    CostOption{"--mlp-backward", &CostArguments::mlp_backward, &OperationCosts::mlp_gradient,
               "MLP, input gradient"},
    CostOption{"--dispatch", &CostArguments::dispatch, &OperationCosts::dispatch,
               "Expert-parallel dispatch, each way"},
    CostOption{"--combine", &CostArguments::combine, &OperationCosts::combine,
               "Expert-parallel combine, each way"},
    CostOption{"--pp-transfer", &CostArguments::pp_transfer, &OperationCosts::pp_transfer,
               "Pipeline-parallel send or receive"},
};

tl::unexpected<Error> refused(std::string why) {
  return fail(ErrorCode::kInvalidInput, std::move(why));
}

Result<> check_cost(const char* name, const std::optional<double>& value) {
  if (!value || (std::isfinite(*value) && *value >= 0)) return {};
  return refused(fmt::format("{}: expected a time of 0 or more, found {}", name, *value));
}

Result<OperationCosts> lane_costs(const CostArguments& arguments) {
  OperationCosts costs;
  for (const CostOption& option : kLaneCosts) {
    WSYNC_TRY(check_cost(option.name, arguments.*option.value));
    costs.*option.cost = (arguments.*option.value).value_or(0);
  }
  costs.weight_gradient = arguments.weight_gradient.value_or(0);
  if (costs.attention + costs.mlp <= 0 || costs.attention_gradient + costs.mlp_gradient <= 0)
    return refused(
        "costs of lanes need --attn-forward or --mlp-forward, and --attn-backward or "
        "--mlp-backward, above 0");
  // A copy that fits into the time of every turn.
  costs.offload = costs.onload = std::min(costs.forward(), costs.backward(true)) / 4;
  return costs;
}

// Adds --NAME and --no-NAME. Without either, the value stays empty.
void add_switch(CLI::App& command, const std::string& name, std::optional<bool>& value,
                const std::string& text) {
  CLI::Option* on = command.add_flag_callback("--" + name, [&value] { value = true; }, text);
  CLI::Option* off = command.add_flag_callback(
      "--no-" + name, [&value] { value = false; }, "Turns --" + name + " off");
  off->excludes(on);
}

}  // namespace

void add_schedule_options(CLI::App& command, ScheduleArguments& arguments) {
  command.add_option("--order", arguments.order,
                     "interleaved, 1f1b, zb-h1 or gpipe (default: interleaved)");
  command.add_option("--pp", arguments.pp, "Pipeline ranks (default: 4)");
  command.add_option("--vpp", arguments.vpp,
                     "Chunks of a rank (default: 2; 1 for an order other than interleaved)");
  command.add_option("--microbatches", arguments.microbatches,
                     "Micro-batches of a step (default: twice the ranks)");
  command.add_option("--group", arguments.group,
                     "Micro-batches that pass all chunks together (default: the ranks)");
  command.add_option("--extra-warmup", arguments.extra_warmup,
                     "Extra forwards in each warm-up, 0 or 1 (default: 1 with overlap)");
  add_switch(
      command, "overlap", arguments.overlap,
      "Pairs: a forward overlapped with the backward of another micro-batch (default: on for "
      "interleaved)");
  add_switch(
      command, "delay-wgrad", arguments.delay_wgrad,
      "I and W instead of B: the input gradient is sent before the weight gradient is computed");
  command.add_flag("--offload", arguments.offload,
                   "Activations go to the host: at most four chunk activations on a device");
}

void add_picture_options(CLI::App& command, ScheduleArguments& arguments) {
  command.add_option("--svg", arguments.svg, "Draw the grid and the lanes of three turns")
      ->type_name("FILE");
  command
      .add_option("--trace", arguments.trace,
                  "Write every operation as a Chrome trace (ui.perfetto.dev); a unit is 1 ms")
      ->type_name("FILE");
}

Result<schedule::ScheduleOptions> to_options(const ScheduleArguments& arguments,
                                             bool delay_wgrad_default) {
  const Result<Order> order = schedule::order_of(arguments.order);
  if (!order) return fail(order.error().with_context("--order"));
  const bool interleaved = *order == Order::kInterleaved;
  return schedule::ScheduleOptions{
      .order = *order,
      .shape = {.pp = arguments.pp,
                .vpp = arguments.vpp.value_or(interleaved ? 2 : 1),
                .microbatches = arguments.microbatches.value_or(2 * arguments.pp)},
      .group = arguments.group,
      .overlap = arguments.overlap.value_or(interleaved),
      .extra_warmup = arguments.extra_warmup,
      .delay_wgrad = arguments.delay_wgrad.value_or(delay_wgrad_default)};
}

nlohmann::json describe(const schedule::ScheduleOptions& options) {
  return {{"order", schedule::order_name(options.order)},
          {"pp", options.shape.pp},
          {"vpp", options.shape.vpp},
          {"microbatches", options.shape.microbatches},
          {"overlap", options.overlap},
          {"delay_wgrad", options.delay_wgrad || options.order == Order::kZeroBubbleH1},
          {"warmup", schedule::warmup_counts(options)}};
}

std::string microbatches_text(std::uint32_t count) {
  return fmt::format("{} micro-batch{}", count, count == 1 ? "" : "es");
}

bool CostArguments::by_lane() const {
  for (const CostOption& option : kLaneCosts)
    if (this->*option.value) return true;
  return false;
}

void add_cost_options(CLI::App& command, CostArguments& arguments) {
  command.add_option("--forward", arguments.forward, "A whole forward of a chunk (default: 1)");
  command.add_option("--backward", arguments.backward, "A whole backward of a chunk (default: 2)");
  command.add_option("--pair", arguments.pair,
                     "A forward overlapped with a backward (default: their sum)");
  for (const CostOption& option : kLaneCosts)
    command.add_option(option.name, arguments.*option.value, option.text);
  command.add_option("--wgrad", arguments.weight_gradient, "Weight gradient");
  command.add_option("--offload-copy", arguments.offload, "Activations of a chunk to the host");
  command.add_option("--onload-copy", arguments.onload, "Activations of a chunk from the host");
}

Result<OperationCosts> to_costs(const CostArguments& arguments, bool splits_wgrad) {
  for (const auto& [name, value] :
       {std::pair{"--forward", &arguments.forward}, std::pair{"--backward", &arguments.backward},
        std::pair{"--pair", &arguments.pair}, std::pair{"--wgrad", &arguments.weight_gradient},
        std::pair{"--offload-copy", &arguments.offload},
        std::pair{"--onload-copy", &arguments.onload}})
    WSYNC_TRY(check_cost(name, *value));
  const bool by_cell = arguments.forward || arguments.backward || arguments.pair;
  if (by_cell && arguments.by_lane())
    return refused(
        "costs are given either for cells (--forward, --backward, --pair) or for lanes "
        "(--attn-forward and so on), not for both");
  const double backward = arguments.backward.value_or(2);
  Result<OperationCosts> costs =
      arguments.by_lane() ? lane_costs(arguments)
                          : schedule::costs_of_cells(
                                arguments.forward.value_or(1), backward,
                                arguments.weight_gradient.value_or(splits_wgrad ? backward / 2 : 0),
                                arguments.pair);
  if (!costs) return costs;
  if (arguments.offload) costs->offload = *arguments.offload;
  if (arguments.onload) costs->onload = *arguments.onload;
  return costs;
}

Result<> write_pictures(const ScheduleArguments& arguments,
                        const schedule::ScheduleOptions& options, const schedule::Program& program,
                        const schedule::Simulation& grid, const schedule::Simulation& lanes,
                        std::string subtitle, std::string_view unit) {
  const schedule::TimedProgram grid_times{program, grid.operations};
  const schedule::TimedProgram lane_times{program, lanes.operations};
  if (!arguments.svg.empty()) {
    const std::string text = schedule::schedule_svg(
        grid_times, lane_times,
        {.title = fmt::format(
             "{}{}: {} on {} with {} each", schedule::order_name(options.order),
             options.overlap ? " with overlap" : "", microbatches_text(options.shape.microbatches),
             counted(options.shape.pp, "rank"), counted(options.shape.vpp, "chunk")),
         .subtitle = std::move(subtitle),
         .unit = std::string(unit)});
    WSYNC_TRY(trace::write_text_file(arguments.svg, text));
  }
  if (!arguments.trace.empty()) {
    std::vector<trace::ProcessTrace> processes;
    for (std::vector<trace::Span>& spans : schedule::schedule_spans(grid_times, kTraceUnitNs)) {
      const auto rank = static_cast<std::uint32_t>(processes.size());
      processes.push_back(
          {.name = fmt::format("PP{}", rank), .pid = rank + 1, .spans = std::move(spans)});
    }
    WSYNC_TRY(trace::write_chrome_trace(arguments.trace, processes));
  }
  return {};
}

}  // namespace wsync::cli
