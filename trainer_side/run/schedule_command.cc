// `wsync schedule`: plans, checks, simulates and draws the training schedule.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "trainer_side/run/schedule_options.h"
#include "trainer_side/run/train_command.h"
#include "trainer_side/schedule/validate.h"

namespace wsync::cli {
namespace {

using schedule::OperationCosts;
using schedule::Order;
using schedule::Program;
using schedule::Schedule;
using schedule::ScheduleOptions;
using schedule::Simulation;

// ---- show ----

// Returns the slot table: a row for each slot, a column for each rank.
std::vector<std::vector<std::string>> grid_of(
    const Schedule& planned, const std::vector<std::vector<std::uint32_t>>& slots) {
  std::uint32_t count = 0;
  for (const std::vector<std::uint32_t>& rank : slots) count = std::max(count, rank.back() + 1);
  std::vector<std::vector<std::string>> grid(count, std::vector<std::string>(slots.size()));
  for (std::size_t rank = 0; rank < slots.size(); ++rank)
    for (std::size_t step = 0; step < slots[rank].size(); ++step)
      grid[slots[rank][step]][rank] = to_string(planned.ranks[rank][step]);
  return grid;
}

std::string grid_text(const std::vector<std::vector<std::string>>& grid) {
  std::vector<std::size_t> widths(grid.front().size());
  for (std::size_t rank = 0; rank < widths.size(); ++rank) {
    widths[rank] = fmt::format("PP{}", rank).size();
    for (const std::vector<std::string>& row : grid)
      widths[rank] = std::max(widths[rank], row[rank].size());
  }
  std::string text = "slot";
  for (std::size_t rank = 0; rank < widths.size(); ++rank)
    text += fmt::format("  {:<{}}", fmt::format("PP{}", rank), widths[rank]);
  for (std::size_t slot = 0; slot < grid.size(); ++slot) {
    text += fmt::format("\n{:>4}", slot);
    for (std::size_t rank = 0; rank < widths.size(); ++rank)
      text +=
          fmt::format("  {:<{}}", grid[slot][rank].empty() ? "-" : grid[slot][rank], widths[rank]);
    text.erase(text.find_last_not_of(' ') + 1);
  }
  return text;
}

// Each action takes one slot, as in the slot table. A W that follows its own I shares its slot.
Result<OperationCosts> slot_costs(const ScheduleOptions& options) {
  if (options.order == Order::kZeroBubbleH1) return schedule::costs_of_cells(1, 2, 1, {});
  return schedule::costs_of_cells(1, 1, 0, 1);
}
// Made-up costs for the picture, if none were measured. All lanes are visible with them.
OperationCosts lane_costs_to_look_at() {
  return {.attention = 3,
          .mlp = 3,
          .attention_gradient = 3,
          .mlp_gradient = 3,
          .weight_gradient = 4,
          .dispatch = 2,
          .combine = 2,
          .pp_transfer = 2,
          .offload = 4,
          .onload = 4};
}

Result<> draw_slots(const ScheduleArguments& arguments, const ScheduleOptions& options,
                    const Schedule& planned) {
  if (arguments.svg.empty() && arguments.trace.empty()) return {};
  const auto program = WSYNC_TRY(schedule::lower(planned, {.offload = arguments.offload}));
  const auto costs = WSYNC_TRY(slot_costs(options));
  const auto grid = WSYNC_TRY(schedule::simulate(program, costs));
  const auto lanes = WSYNC_TRY(schedule::simulate(program, lane_costs_to_look_at()));
  return write_pictures(arguments, options, program, grid, lanes,
                        fmt::format("{:g} slots; below, lanes with made-up costs", grid.makespan),
                        "slots");
}

struct ShowArguments {
  ScheduleArguments schedule;
  std::string format = "actions";
};

nlohmann::json actions_json(const Schedule& planned) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const std::vector<schedule::Action>& actions : planned.ranks) {
    nlohmann::json list = nlohmann::json::array();
    for (const schedule::Action& action : actions) list.push_back(to_string(action));
    ranks.push_back(std::move(list));
  }
  return ranks;
}

Result<Outcome> show(const ShowArguments& arguments) {
  const auto options = WSYNC_TRY(to_options(arguments.schedule, false));
  const auto planned = WSYNC_TRY(schedule::make_schedule(options));
  const auto slots = WSYNC_TRY(schedule::unit_slots(planned));
  WSYNC_TRY(draw_slots(arguments.schedule, options, planned));
  const std::vector<std::vector<std::string>> grid = grid_of(planned, slots);
  Outcome outcome;
  outcome.text = arguments.format == "grid" ? grid_text(grid) : schedule::write_actions(planned);
  outcome.result = describe(options);
  outcome.result["slots"] = grid.size();
  outcome.result["actions"] = actions_json(planned);
  nlohmann::json rows = nlohmann::json::array();
  for (const std::vector<std::string>& row : grid) {
    nlohmann::json cells = nlohmann::json::array();
    for (const std::string& cell : row)
      cells.push_back(cell.empty() ? nlohmann::json(nullptr) : nlohmann::json(cell));
    rows.push_back(std::move(cells));
  }
  outcome.result["grid"] = std::move(rows);
  return outcome;
}

void add_show(CLI::App& parent, Context& context) {
  CLI::App* command =
      add_command(parent, context,
                  {.name = "show",
                   .description = "What each rank does, in order",
                   .examples = {"wsync schedule show --pp 4 --vpp 2 --microbatches 8",
                                "wsync schedule show --pp 16 --microbatches 64 --format grid",
                                "wsync schedule show --order zb-h1 --svg schedule.svg"}});
  auto arguments = std::make_shared<ShowArguments>();
  add_schedule_options(*command, arguments->schedule);
  command
      ->add_option("--format", arguments->format,
                   "actions: a line for each rank, 0F3 the forward of micro-batch 3 on stage 0, B "
                   "the backward, I and W its input and weight gradients, (..;..) an overlapped "
                   "pair; grid: a row for each slot (default: actions)")
      ->check(CLI::IsMember({"actions", "grid"}));
  add_picture_options(*command, arguments->schedule);
  command->callback(
      [&context, arguments] { context.run("schedule show", [&] { return show(*arguments); }); });
}

// ---- check ----

Result<std::string> read_text(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno(path, errno);
  text << file.rdbuf();
  if (file.bad() || std::filesystem::is_directory(path))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: this is not a file that can be read", path));
  return text.str();
}

Result<Outcome> check(const std::string& path) {
  const auto text = WSYNC_TRY(read_text(path));
  const Result<Schedule> read = schedule::read_actions(text);
  if (!read) return fail(read.error().with_context(path));
  Outcome outcome;
  nlohmann::json violations = nlohmann::json::array();
  for (const schedule::Violation& violation : schedule::find_violations(*read)) {
    violations.push_back(
        {{"rank", violation.rank}, {"step", violation.step}, {"detail", violation.sentence}});
    outcome.complaint += fmt::format("wsync schedule check: {}\n", violation.sentence);
  }
  outcome.result = {{"pp", read->shape.pp},
                    {"vpp", read->shape.vpp},
                    {"microbatches", read->shape.microbatches},
                    {"violations", violations}};
  if (!violations.empty()) outcome.exit_code = kExitFailed;
  outcome.text = violations.empty() ? fmt::format("{}: a valid schedule of {}, {} each, {}", path,
                                                  counted(read->shape.pp, "rank"),
                                                  counted(read->shape.vpp, "chunk"),
                                                  microbatches_text(read->shape.microbatches))
                                    : "";
  return outcome;
}

void add_check(CLI::App& parent, Context& context) {
  CLI::App* command =
      add_command(parent, context,
                  {.name = "check",
                   .description = "Check whether a schedule is valid",
                   .examples = {"wsync schedule show > mine; wsync schedule check mine",
                                "wsync schedule show | wsync schedule check -"}});
  auto path = std::make_shared<std::string>();
  command->add_option("FILE", *path, "Actions as `show` prints them; - reads standard input")
      ->required();
  command->callback(
      [&context, path] { context.run("schedule check", [&] { return check(*path); }); });
}

// ---- simulate ----

struct SimulateArguments {
  ScheduleArguments schedule;
  CostArguments costs;
};

struct Simulated {
  Program program;
  Simulation simulation;
};
Result<Simulated> run_simulation(const Schedule& planned, const OperationCosts& costs,
                                 bool offload) {
  auto program = WSYNC_TRY(schedule::lower(planned, {.offload = offload}));
  auto simulation = WSYNC_TRY(schedule::simulate(program, costs));
  return Simulated{std::move(program), std::move(simulation)};
}

template <class Value>
nlohmann::json per_rank(const Simulation& simulation, Value schedule::RankReport::* value) {
  nlohmann::json list = nlohmann::json::array();
  for (const schedule::RankReport& rank : simulation.ranks) list.push_back(rank.*value);
  return list;
}

// Returns the time on the critical path for each kind of operation.
nlohmann::json critical_json(const Simulation& simulation) {
  nlohmann::json times = nlohmann::json::object();
  for (const schedule::CriticalStep& step : simulation.critical_path) {
    const std::string name(schedule::operation_name(step.kind));
    times[name] = times.value(name, 0.0) + step.time.end - step.time.begin;
  }
  return times;
}

bool can_offload(const ScheduleOptions& options) { return options.order != Order::kZeroBubbleH1; }

std::string simulation_text(const ScheduleOptions& options, const Simulation& simulation,
                            const Simulation* offloaded) {
  std::string text =
      fmt::format("makespan      {:g}\nideal         {:g}\nbubble        {:.2f} % of the ideal\n",
                  simulation.makespan, simulation.ideal, 100 * simulation.bubble_ratio);
  if (simulation.pair) text += fmt::format("pair          {:g}\n", *simulation.pair);
  text += fmt::format("exposed       {:g} of communication, on the rank that has the most\n",
                      simulation.exposed());
  text += "critical path ";
  const nlohmann::json times = critical_json(simulation);
  for (const auto& [name, time] : times.items())
    text += fmt::format(" {} {:g};", name, time.get<double>());
  text.back() = '\n';
  text += "rank  warm-up  activations";
  if (offloaded != nullptr) text += "  with offload: device  host";
  text += "  busy\n";
  const std::vector<std::uint32_t> warmup = schedule::warmup_counts(options);
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    text += fmt::format("{:<4}  {:>7}  {:>11}", fmt::format("PP{}", rank), warmup[rank],
                        simulation.ranks[rank].peak_activations);
    if (offloaded != nullptr)
      text += fmt::format("  {:>20}  {:>4}", offloaded->ranks[rank].device_activations,
                          offloaded->ranks[rank].host_activations);
    text += fmt::format("  {:>3.0f} %\n",
                        100 * simulation.ranks[rank].computation / simulation.makespan);
  }
  return text;
}

Result<Outcome> simulate(const SimulateArguments& arguments) {
  const auto options = WSYNC_TRY(to_options(arguments.schedule, arguments.costs.by_lane()));
  const auto planned = WSYNC_TRY(schedule::make_schedule(options));
  const bool splits = options.delay_wgrad || options.order == Order::kZeroBubbleH1;
  const auto costs = WSYNC_TRY(to_costs(arguments.costs, splits));
  const auto run = WSYNC_TRY(run_simulation(planned, costs, arguments.schedule.offload));
  const Simulation& simulation = run.simulation;
  std::optional<Simulated> offloaded;
  if (can_offload(options)) {
    offloaded = WSYNC_TRY(run_simulation(planned, costs, true));
  }
  WSYNC_TRY(write_pictures(arguments.schedule, options, run.program, simulation, simulation,
                           fmt::format("{:g} units of cost in all; {:g} without any bubble",
                                       simulation.makespan, simulation.ideal),
                           "units of cost"));
  Outcome outcome;
  outcome.text = simulation_text(options, simulation, offloaded ? &offloaded->simulation : nullptr);
  outcome.result = describe(options);
  outcome.result.update(
      {{"offload", arguments.schedule.offload},
       {"makespan", simulation.makespan},
       {"ideal", simulation.ideal},
       {"bubble_ratio", simulation.bubble_ratio},
       {"pair", simulation.pair ? nlohmann::json(*simulation.pair) : nlohmann::json(nullptr)},
       {"exposed", simulation.exposed()},
       {"exposed_per_rank", per_rank(simulation, &schedule::RankReport::exposed)},
       {"computation_per_rank", per_rank(simulation, &schedule::RankReport::computation)},
       {"peak_activations", per_rank(simulation, &schedule::RankReport::peak_activations)},
       {"critical_path", critical_json(simulation)}});
  if (offloaded) {
    outcome.result["device_activations"] =
        per_rank(offloaded->simulation, &schedule::RankReport::device_activations);
    outcome.result["host_activations"] =
        per_rank(offloaded->simulation, &schedule::RankReport::host_activations);
  }
  return outcome;
}

void add_simulate(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "simulate",
       .description = "Time and memory of a step under given costs",
       .examples = {"wsync schedule simulate --pp 4 --microbatches 8 --forward 1 --backward 2",
                    "wsync schedule simulate --pair 2.4 --svg step.svg --trace step.json",
                    "wsync schedule simulate --attn-forward 3 --mlp-forward 5 --attn-backward 4 "
                    "--mlp-backward 7 --wgrad 6 --dispatch 3 --combine 3 --pp-transfer 2"}});
  auto arguments = std::make_shared<SimulateArguments>();
  add_schedule_options(*command, arguments->schedule);
  add_cost_options(*command, arguments->costs);
  add_picture_options(*command, arguments->schedule);
  command->callback([&context, arguments] {
    context.run("schedule simulate", [&] { return simulate(*arguments); });
  });
}

// ---- compare ----

struct ComparedOrder {
  std::string name;
  std::string source;  // "simulated", or the source of the formula
  double bubble = 0;
  double ideal = 0;
  std::uint32_t activations = 0;  // chunks on the rank with the highest number
  std::uint32_t parameters = 1;   // copies of the parameters
  std::optional<double> exposed;
};

// Combines all chunks of a rank into one stage.
OperationCosts as_one_stage(OperationCosts costs, std::uint32_t chunks) {
  for (double OperationCosts::* cost :
       {&OperationCosts::attention, &OperationCosts::mlp, &OperationCosts::attention_gradient,
        &OperationCosts::mlp_gradient, &OperationCosts::weight_gradient, &OperationCosts::dispatch,
        &OperationCosts::combine, &OperationCosts::offload, &OperationCosts::onload})
    costs.*cost *= chunks;
  return costs;
}

Result<ComparedOrder> compare_one(std::string name, ScheduleOptions options,
                                  const OperationCosts& chunk_costs, std::uint32_t chunks) {
  const OperationCosts costs =
      options.shape.vpp == 1 ? as_one_stage(chunk_costs, chunks) : chunk_costs;
  const Result<Schedule> planned = schedule::make_schedule(options);
  if (!planned) return fail(planned.error().with_context(name));
  const auto run = WSYNC_TRY(run_simulation(*planned, costs, false));
  ComparedOrder row{.name = std::move(name),
                    .source = "simulated",
                    .bubble = run.simulation.makespan - run.simulation.ideal,
                    .ideal = run.simulation.ideal,
                    .exposed = run.simulation.exposed()};
  for (const schedule::RankReport& rank : run.simulation.ranks)
    row.activations = std::max(row.activations, rank.peak_activations);
  row.activations *= chunks / options.shape.vpp;
  return row;
}

// DualPipe. Formulas: DeepSeek-V3 report (arXiv 2412.19437), table 2. Bubble: (PP/2 - 1)(F&B + B -
// 3W); two copies of the parameters; activations of PP + 1 micro-batches.
ComparedOrder dual_pipe(const schedule::Shape& shape, const OperationCosts& chunk_costs) {
  const OperationCosts costs = as_one_stage(chunk_costs, shape.vpp);
  return {.name = "dualpipe",
          .source = "DeepSeek-V3 report, table 2",
          .bubble = (shape.pp / 2.0 - 1) *
                    (costs.pair(true) + costs.backward(true) - 3 * costs.weight_gradient),
          .ideal = shape.microbatches * costs.pair(true),
          .activations = (shape.pp + 1) * shape.vpp,
          .parameters = 2,
          .exposed = std::nullopt};
}

struct CompareArguments {
  ScheduleArguments schedule;
  CostArguments costs;
};

Result<Outcome> compare(const CompareArguments& arguments) {
  const auto wanted = WSYNC_TRY(to_options(arguments.schedule, true));
  const auto costs = WSYNC_TRY(to_costs(arguments.costs, true));
  const schedule::Shape shape = wanted.shape;
  const schedule::Shape one_chunk{shape.pp, 1, shape.microbatches};
  const std::vector<std::pair<std::string, ScheduleOptions>> orders{
      {"interleaved with overlap",
       {.shape = shape, .group = wanted.group, .overlap = true, .delay_wgrad = true}},
      {"interleaved", {.shape = shape, .group = wanted.group}},
      {"1f1b", {.order = Order::kOneForwardOneBackward, .shape = one_chunk}},
      {"zb-h1", {.order = Order::kZeroBubbleH1, .shape = one_chunk}},
      {"gpipe", {.order = Order::kGPipe, .shape = one_chunk}}};
  std::vector<ComparedOrder> rows;
  for (const auto& [name, options] : orders) {
    auto row = WSYNC_TRY(compare_one(name, options, costs, shape.vpp));
    rows.push_back(std::move(row));
  }
  if (shape.pp % 2 == 0) rows.push_back(dual_pipe(shape, costs));
  Outcome outcome;
  outcome.text =
      fmt::format("{:<24}  {:>9}  {:>9}  {:>8}  {:>11}  {:>10}  {:>9}  {}\n", "order", "step",
                  "bubble", "of ideal", "activations", "parameters", "exposed", "from");
  nlohmann::json list = nlohmann::json::array();
  for (const ComparedOrder& row : rows) {
    outcome.text += fmt::format(
        "{:<24}  {:>9.6g}  {:>9.6g}  {:>6.2f} %  {:>11}  {:>9}x  {:>9}  {}\n", row.name,
        row.ideal + row.bubble, row.bubble, 100 * row.bubble / row.ideal, row.activations,
        row.parameters, row.exposed ? fmt::format("{:.6g}", *row.exposed) : "-", row.source);
    list.push_back({{"order", row.name},
                    {"makespan", row.ideal + row.bubble},
                    {"bubble", row.bubble},
                    {"bubble_ratio", row.bubble / row.ideal},
                    {"peak_activations", row.activations},
                    {"parameter_copies", row.parameters},
                    {"source", row.source}});
    if (row.exposed) list.back()["exposed"] = *row.exposed;
  }
  outcome.result = {{"pp", shape.pp},
                    {"vpp", shape.vpp},
                    {"microbatches", shape.microbatches},
                    {"orders", std::move(list)}};
  return outcome;
}

void add_compare(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "compare",
       .description =
           "Bubble, memory and exposed communication of all orders; a cost is that of one chunk, "
           "and an order with one chunk per rank runs all chunks of a rank as one",
       .examples = {"wsync schedule compare --pp 8 --vpp 2 --microbatches 32",
                    "wsync schedule compare --attn-forward 3 --mlp-forward 5 --attn-backward 4 "
                    "--mlp-backward 7 --wgrad 6 --dispatch 3 --combine 3 --pp-transfer 2"}});
  auto arguments = std::make_shared<CompareArguments>();
  command->add_option("--pp", arguments->schedule.pp, "Pipeline ranks (default: 4)");
  command->add_option("--vpp", arguments->schedule.vpp,
                      "Chunks of a rank, where an order has several (default: 2)");
  command->add_option("--microbatches", arguments->schedule.microbatches,
                      "Micro-batches of a step (default: twice the ranks)");
  command->add_option("--group", arguments->schedule.group,
                      "Micro-batches that pass all chunks together (default: the ranks)");
  add_cost_options(*command, arguments->costs);
  command->callback([&context, arguments] {
    context.run("schedule compare", [&] { return compare(*arguments); });
  });
}

}  // namespace

void add_schedule(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("schedule", "The training schedule: planned, checked, timed and drawn");
  command->require_subcommand(1);
  add_show(*command, context);
  add_check(*command, context);
  add_simulate(*command, context);
  add_compare(*command, context);
}

}  // namespace wsync::cli
