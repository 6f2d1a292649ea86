// `wsync engine`: one rank of the reference engine as a process.
#include <algorithm>
#include <chrono>

#include "deploy/cli/commands.h"
#include "inference_side/engine/reference/reference_engine.h"
#include "shared/base/format.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"

namespace wsync::cli {
namespace {

using engine::reference::EngineEvent;
using engine::reference::ReferenceEngine;
using engine::reference::ReferenceEngineOptions;

struct EngineOptions {
  ReferenceEngineOptions engine;
  std::string weights = "none";
  bool adopt = false;
  bool whole = false;
  std::uint32_t step_interval_us = 2'000;
  std::uint32_t stats_ms = 1'000;
};

nlohmann::json event_json(const EngineEvent& event) {
  nlohmann::json line = {{"event", event.name}};
  for (const auto& [key, value] : event.fields)
    std::visit([&, name = &key](const auto& v) { line[*name] = v; }, value);
  return line;
}

std::string event_text(const EngineEvent& event) {
  std::string line = event.name;
  for (const auto& [key, value] : event.fields)
    std::visit(
        [&, name = &key](const auto& v) {
          const std::string text = fmt::format("{}", v);
          if (!text.empty()) line += fmt::format(" {}={}", *name, text);
        },
        value);
  return line;
}

// Too many for people: each bucket and each layer of each version.
bool for_people(const EngineEvent& event) {
  return event.name != "bucket" && event.name != "layer";
}

Result<Outcome> outcome_of(const ReferenceEngine& engine, bool attached) {
  const engine::reference::ServingStats stats = engine.stats();
  nlohmann::json versions = nlohmann::json::object();
  for (const auto& [version, steps] : stats.by_version) versions[version.to_string()] = steps;
  Outcome outcome;
  outcome.result = {
      {"steps", stats.steps},           {"versions", std::move(versions)}, {"torn", stats.torn},
      {"aborted", stats.aborted},       {"broken", stats.broken},          {"attached", attached},
      {"bytes", engine.model().bytes()}};
  outcome.text = fmt::format("{} steps, {} torn, {} aborted; the group broke {} times", stats.steps,
                             stats.torn, stats.aborted, stats.broken);
  if (stats.torn != 0) outcome.exit_code = kExitFailed;
  return outcome;
}

Result<Outcome> run_engine(EngineOptions options, bool as_json) {
  if (options.adopt && options.whole)
    return fail(ErrorCode::kInvalidInput, "--adopt and --whole exclude each other: name one");
  if (options.adopt) options.engine.take = control::TakeMode::kAdopt;
  if (options.whole) options.engine.take = control::TakeMode::kWhole;
  options.engine.load_weights = options.weights == "load";
  options.engine.step_interval = std::chrono::microseconds(options.step_interval_us);

  auto loop = Loop::create();
  if (!loop) return fail(std::move(loop).error());
  const auto sink = [as_json](const EngineEvent& event) {
    if (as_json)
      print_line(stdout, to_line(event_json(event)));
    else if (for_people(event))
      print_line(stdout, event_text(event));
  };
  auto engine = ReferenceEngine::create(std::move(options.engine), sink);
  if (!engine) return fail(std::move(engine).error());
  auto signals = Signals::create(**loop, [&](int) { (*loop)->stop(); });
  if (!signals) return fail(std::move(signals).error());
  Timer stats(**loop, [&] { (*engine)->report_stats(); });
  if (options.stats_ms > 0) stats.start_repeating(std::chrono::milliseconds(options.stats_ms));

  (*engine)->start();
  (*loop)->run();
  const bool attached = (*engine)->link_status().attached;
  (*engine)->stop();
  (*engine)->report_stats();
  return outcome_of(**engine, attached);
}

}  // namespace

void add_engine(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "engine",
       .description = "Run one rank of the reference engine: holds a model, serves steps, takes "
                      "new versions from a sidecar",
       .examples = {
           "wsync engine --sidecar /run/wsync/host0.engines --checkpoint /models/qwen",
           "wsync engine --sidecar S --checkpoint DIR --replica r0 --rank 1 --world-size 2",
           "wsync engine --sidecar S --checkpoint DIR --adopt --json"}});
  auto options = std::make_shared<EngineOptions>();
  options->engine.replica = "r0";
  command->add_option("--sidecar", options->engine.sidecar_socket, "The sidecar's engine socket")
      ->required()
      ->type_name("SOCKET");
  command
      ->add_option("--checkpoint", options->engine.checkpoint,
                   "Names, dtypes and shapes of the model are taken from here")
      ->required()
      ->type_name("DIR");
  command->add_option("--replica", options->engine.replica, "Name of the replica (default: r0)");
  command->add_option("--rank", options->engine.rank,
                      "Rank in the replica; 0 leads its steps (default: 0)");
  command->add_option("--world-size", options->engine.world_size,
                      "Ranks of the replica: each holds its share of the model (default: 1)");
  command->add_option("--device", options->engine.device,
                      "Index of the sidecar's device (default: 0)");
  command
      ->add_option("--run-dir", options->engine.run_directory,
                   "Where the ranks of the replica meet (default: the socket's directory)")
      ->type_name("DIR");
  command
      ->add_option("--weights", options->weights,
                   "none: wait for the first version; load: serve the checkpoint's own weights "
                   "until then (default: none)")
      ->check(CLI::IsMember({"none", "load"}));
  command->add_flag("--adopt", options->adopt, "Map versions and use them in place");
  command->add_flag("--whole", options->whole, "Take whole tensors, a layer at a time");
  command->add_option("--step-interval-us", options->step_interval_us,
                      "Microseconds between two steps, at least (default: 2000)");
  command->add_option("--stats-ms", options->stats_ms,
                      "Print statistics every so often; 0: only at the end (default: 1000)");
  command->callback([&context, options] {
    context.run("engine", [&] { return run_engine(*options, context.options.json); });
  });
}

}  // namespace wsync::cli
