// `wsync engine`: one rank of the reference engine as a process.
#include "inference_side/reference_engine/engine_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "inference_side/reference_engine/engine_trace.h"
#include "inference_side/reference_engine/http/completion_server.h"
#include "inference_side/reference_engine/reference_engine.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/config/units.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"
#include "shared/observe/http/access_token.h"

namespace wsync::cli {
namespace {

using engine::reference::EngineEvent;
using engine::reference::ReferenceEngine;
using engine::reference::ReferenceEngineOptions;

constexpr std::chrono::hours kTimeMax{1};  // of an option

struct EngineOptions {
  ReferenceEngineOptions engine;
  std::string weights;  // empty: load without a sidecar; no loading with one
  std::string model;
  engine::http::CompletionServerOptions http;
  std::string http_token;  // file; empty: none
  engine::reference::GenerationOptions generation;
  std::string cache_policy = "flush";
  std::string cache_size = "64MiB";
  std::string device = "host";
  std::optional<std::uint32_t> gpu;
  bool adopt = false;
  bool whole = false;
  std::uint32_t step_interval_us = 2'000;
  std::uint32_t stats_ms = 1'000;
  std::string trace;  // empty: none
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

std::string url_of(const std::string& host, std::uint16_t port) {
  const bool version6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", version6 ? "[" + host + "]" : host, port);
}

// Events that are too frequent for an operator's log: one for each bucket and each layer of each
// version.
bool for_people(const EngineEvent& event) {
  return event.name != "bucket" && event.name != "layer";
}

Result<Outcome> outcome_of(const ReferenceEngine& engine, bool attached) {
  const engine::reference::ServingStats stats = engine.stats();
  nlohmann::json versions = nlohmann::json::object();
  for (const auto& [version, steps] : stats.by_version) versions[version.to_string()] = steps;
  Outcome outcome;
  outcome.result = {{"steps", stats.steps},
                    {"versions", std::move(versions)},
                    {"torn", stats.torn},
                    {"aborted", stats.aborted},
                    {"broken", stats.broken},
                    {"attached", attached},
                    {"layers_compared", stats.layers_compared},
                    {"bytes", engine.model().bytes()}};
  outcome.text = fmt::format("{} steps, {} torn, {} aborted; the group broke {} times", stats.steps,
                             stats.torn, stats.aborted, stats.broken);
  if (stats.torn != 0) outcome.exit_code = kExitFailed;
  return outcome;
}

// Resolves the settings that depend on several options.
Result<> settle(EngineOptions& options) {
  if (options.adopt && options.whole)
    return fail(ErrorCode::kInvalidInput,
                "--adopt and --whole exclude each other: give only one of them");
  if (options.model.empty() == options.engine.checkpoint.empty())
    return fail(ErrorCode::kInvalidInput,
                "give either --model DIR (an engine that generates) or --checkpoint DIR (an engine "
                "that only reads its weights)");
  if (options.weights.empty())
    options.weights = options.engine.sidecar_socket.empty() ? "load" : "none";
  if (options.device == "host" && options.gpu)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--gpu {} needs --device cuda: the weights are in host memory otherwise",
                    *options.gpu));
  if (options.device == "cuda" && !options.model.empty())
    return fail(ErrorCode::kInvalidInput,
                "--model generates on the CPU, so its weights must be in host memory; use --device "
                "cuda only with --checkpoint");
  if (options.device == "cuda") options.engine.gpu = options.gpu.value_or(0);
  if (options.adopt) options.engine.take = control::TakeMode::kAdopt;
  if (options.whole) options.engine.take = control::TakeMode::kWhole;
  options.engine.load_weights = options.weights == "load";
  options.engine.step_interval = std::chrono::microseconds(options.step_interval_us);
  if (options.model.empty()) return {};
  options.engine.checkpoint = options.model;
  const auto cache = config::parse_size(options.cache_size);
  if (!cache) return fail(cache.error().with_context("--cache"));
  options.generation.cache_bytes = *cache;
  options.generation.on_switch = options.cache_policy == "keep"
                                     ? engine::generation::CachePolicy::kKeep
                                     : engine::generation::CachePolicy::kFlush;
  options.engine.generation = options.generation;
  if (!options.http_token.empty()) {
    auto token = http::AccessToken::read(options.http_token);
    if (!token) return fail(token.error().with_context("--http-token"));
    options.http.token = std::move(*token);
  }
  options.http.has_tokenizer =
      std::filesystem::exists(std::filesystem::path(options.model) / "tokenizer.json");
  return {};
}

Result<Outcome> run_engine(EngineOptions options, bool as_json) {
  WSYNC_TRY(settle(options));
  auto loop = WSYNC_TRY(Loop::create());
  if (!options.trace.empty()) WSYNC_TRY(check_trace_file(options.trace));
  const std::string name =
      fmt::format("engine {} rank {}", options.engine.replica, options.engine.rank);
  EngineTrace trace;
  const auto sink = [as_json, &trace](const EngineEvent& event) {
    trace.heard(event, now());
    if (as_json)
      print_line(stdout, to_line(event_json(event)));
    else if (for_people(event))
      print_line(stdout, event_text(event));
  };
  auto engine = ReferenceEngine::create(std::move(options.engine), sink);
  if (!engine) return fail(std::move(engine).error());
  std::unique_ptr<engine::http::CompletionServer> server;
  if (auto* service = (*engine)->service(); service != nullptr) {
    server = WSYNC_TRY(engine::http::CompletionServer::create(options.http, *service));
  }
  const auto signals = WSYNC_TRY(Signals::create(*loop, [&](int) { loop->stop(); }));
  Timer stats(*loop, [&] { (*engine)->report_stats(); });
  if (options.stats_ms > 0) stats.start_repeating(std::chrono::milliseconds(options.stats_ms));

  (*engine)->start();
  if (server) {
    server->start();
    sink({.name = "listening", .fields = {{"url", url_of(options.http.host, server->port())}}});
  }
  loop->run();
  const bool attached = (*engine)->link_status().attached;
  // stop() ends the requests with the engine's abort, which also ends their HTTP connections.
  (*engine)->stop();
  if (server) server->stop();
  (*engine)->report_stats();
  if (!options.trace.empty()) WSYNC_TRY(trace.write(options.trace, name, now()));
  return outcome_of(**engine, attached);
}

void add_generation(CLI::App& command, EngineOptions& options) {
  const std::string group = "With --model";
  command
      .add_option("--host", options.http.host,
                  "Address that rank 0 listens on (default: 127.0.0.1)")
      ->group(group);
  command
      .add_option("--http-token", options.http_token,
                  "File with the token that clients must show, as OpenAI's API key; needed for a "
                  "host that others reach (default: none)")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--port", options.http.port,
                  "Port of that address; 0: the kernel chooses one (default: 8000)")
      ->group(group);
  command
      .add_option("--served-model-name", options.generation.name,
                  "Name of the model in requests (default: the folder's)")
      ->type_name("NAME")
      ->group(group);
  command
      .add_option("--cache", options.cache_size,
                  "Memory for keys and values on each rank (default: 64MiB)")
      ->type_name("SIZE")
      ->group(group);
  command
      .add_option("--cache-policy", options.cache_policy,
                  "Cached keys and values when the weights change: flush: compute them again; "
                  "keep: use them unchanged (default: flush)")
      ->check(CLI::IsMember({"flush", "keep"}))
      ->group(group);
  command
      .add_option("--max-sequences", options.generation.max_sequences,
                  "Maximum number of sequences computed at once (default: 64)")
      ->check(CLI::Range(1, 1024))
      ->group(group);
  command
      .add_option("--max-step-tokens", options.generation.max_step_tokens,
                  "Maximum number of tokens in one step (default: 512)")
      ->check(CLI::Range(1, 65536))
      ->group(group);
  command
      .add_option("--max-positions", options.generation.max_positions,
                  "Maximum number of tokens of a prompt and its output together (default: from "
                  "config.json)")
      ->check(CLI::Range(1, 1 << 24))
      ->group(group);
}

// Adds an option that takes a time such as 500ms.
CLI::Option* add_time(CLI::App& command, const std::string& name, const std::string& description,
                      std::function<void(std::chrono::milliseconds)> set) {
  return command
      .add_option_function<std::string>(
          name,
          [set = std::move(set)](const std::string& text) { set(*config::parse_duration(text)); },
          description)
      ->type_name("TIME")
      ->check([](const std::string& text) {
        const auto time = config::parse_duration(text);
        if (!time) return time.error().message();
        return *time <= kTimeMax ? std::string()
                                 : fmt::format("expected at most 1h, found '{}'", text);
      });
}

void add_output(CLI::App& command, EngineOptions& options) {
  add_time(command, "--stats",
           "Time between two prints of statistics; 0: print them only at the end (default: 1s)",
           [&options](std::chrono::milliseconds time) {
             options.stats_ms = static_cast<std::uint32_t>(time.count());
           });
  // The older form of the same option.
  command.add_option("--stats-ms", options.stats_ms)->group("");
  command
      .add_option("--trace", options.trace,
                  "Write pauses, loads and buckets as a Chrome trace (ui.perfetto.dev) at the end")
      ->type_name("FILE");
}

}  // namespace

void add_engine(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "engine",
       .description =
           "Run one rank of the reference engine: generates over HTTP (--model), or only "
           "reads its weights (--checkpoint); takes new versions from a sidecar",
       .examples = {
           "wsync engine --model /models/tiny",
           "wsync engine --model /models/tiny --sidecar /run/wsync/host0.engines --port 8001",
           "wsync engine --sidecar /run/wsync/host0.engines --checkpoint /models/qwen",
           "wsync engine --sidecar S --checkpoint DIR --replica r0 --rank 1 --world-size 2",
           "wsync engine --sidecar S --checkpoint DIR --adopt --json",
           "wsync engine --sidecar S --checkpoint DIR --device cuda --gpu 1 --device-index 1"}});
  auto options = std::make_shared<EngineOptions>();
  options->engine.replica = "r0";
  command
      ->add_option("--sidecar", options->engine.sidecar_socket,
                   "The sidecar's engine socket; without one the checkpoint's weights are served")
      ->type_name("SOCKET");
  CLI::Option* model =
      command
          ->add_option("--model", options->model,
                       "Generate with this model: config.json of the Qwen3-MoE architecture, and "
                       "weights in bfloat16")
          ->type_name("DIR");
  command
      ->add_option("--checkpoint", options->engine.checkpoint,
                   "Only read weights: names, dtypes and shapes of the model are taken from here")
      ->type_name("DIR");
  command->add_option("--replica", options->engine.replica, "Name of the replica (default: r0)");
  command->add_option("--rank", options->engine.rank,
                      "Rank in the replica; 0 leads its steps (default: 0)");
  command->add_option("--world-size", options->engine.world_size,
                      "Ranks of the replica: each holds its share of the model (default: 1)");
  command
      ->add_option("--device-index", options->engine.device,
                   "Index of the sidecar's device (default: 0)")
      ->check(CLI::Range(std::uint64_t{0}, limits::kDeviceCount - 1));
  command
      ->add_option("--device", options->device,
                   "With --checkpoint: where the weights are: in host memory (host), or on the GPU "
                   "of the sidecar's device (cuda) (default: host)")
      ->check(CLI::IsMember({"host", "cuda"}));
  command
      ->add_option("--gpu", options->gpu,
                   "With --device cuda: which GPU, as CUDA_VISIBLE_DEVICES numbers them "
                   "(default: 0)")
      ->check(CLI::Range(0U, 65535U));
  command
      ->add_option("--run-dir", options->engine.run_directory,
                   "Directory in which the ranks of the replica connect to each other (default: "
                   "the socket's directory)")
      ->type_name("DIR");
  command
      ->add_option("--weights", options->weights,
                   "none: wait for the first version; load: serve the checkpoint's own weights "
                   "until then (default: none with a sidecar, load without)")
      ->check(CLI::IsMember({"none", "load"}));
  command->add_flag("--adopt", options->adopt, "Map versions and use them in place");
  command->add_flag("--whole", options->whole, "Load whole tensors, one layer at a time");
  add_time(*command, "--step-interval",
           "With --checkpoint: minimum time between two steps (default: 2ms)",
           [options](std::chrono::milliseconds time) {
             options->step_interval_us = static_cast<std::uint32_t>(time.count()) * 1'000U;
           })
      ->excludes(model);
  // The older form of the same option, which also takes less than a millisecond.
  command->add_option("--step-interval-us", options->step_interval_us)->excludes(model)->group("");
  add_output(*command, *options);
  add_generation(*command, *options);
  command->callback([&context, options] {
    context.run("engine", [&] { return run_engine(*options, context.options.json); });
  });
}

ProgramSpec engine_program() {
  return {.description = "wsync-engine is the reference engine of wsync",
          .add_commands = add_engine,
          .only_command = "engine",
          .others = {}};
}

}  // namespace wsync::cli
