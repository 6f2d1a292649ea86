// `wsync bench` runs measurements with a baseline.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/sync/bench_engine.h"
#include "inference_side/reference_engine/engine_trace.h"
#include "shared/command/outcome.h"

namespace wsync::cli {
namespace {

// The engine process of `bench sync`. It is hidden because it has no other use.
void add_bench_engine(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "engine",
       .description = "Engine of `wsync bench sync`: also copies the floor, when it receives this "
                      "command on standard input",
       .examples = {"wsync bench engine --sidecar SOCKET --checkpoint DIR --replica r0"}});
  command->group("");
  auto options = std::make_shared<bench::BenchEngineOptions>();
  command->add_option("--sidecar", options->sidecar_socket, "The sidecar's engine socket")
      ->required();
  command->add_option("--checkpoint", options->checkpoint, "Names and shapes of the model")
      ->required();
  command->add_option("--replica", options->replica, "Name of the replica")->required();
  command->add_flag("--adopt", options->adopt,
                    "Map versions and use them in place (as `wsync engine --adopt`)");
  command->add_option("--gpu", options->gpu, "Keep the weights on this GPU");
  command->add_option("--device-index", options->device, "Index of the sidecar's device");
  const auto keep_spans = std::make_shared<bool>(false);
  command->add_flag("--keep-spans", *keep_spans, "Keep spans, as `wsync engine --trace` does");
  command->callback([&context, options, keep_spans] {
    context.run("bench engine", [&]() -> Result<Outcome> {
      EngineTrace trace;
      if (*keep_spans)
        options->on_event = [&trace](const engine::reference::EngineEvent& event) {
          trace.heard(event, now());
        };
      WSYNC_TRY(bench::run_bench_engine(*options));
      return Outcome{};
    });
  });
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("bench",
                                         "Run benchmarks, each with a baseline. Several suites on "
                                         "one command line are one run with one result");
  command->require_subcommand(1, 0);
  command->footer(
      "Examples:\n  wsync bench list\n  wsync bench baseline sync --quick --output now.json\n"
      "  wsync bench compare before.json now.json\n  wsync bench report now.json --output "
      "report.html");
  const auto run = std::make_shared<BenchRun>();
  add_bench_baseline(*command, context, *run);
  add_bench_sync(*command, context, *run);
  add_bench_whole(*command, context, *run);
  add_bench_delta(*command, context, *run);
  add_bench_gpu(*command, context, *run);
  add_bench_overhead(*command, context, *run);
  add_bench_pipeline(*command, context, *run);
  add_bench_scale(*command, context, *run);
  add_bench_schedule(*command, context, *run);
  add_bench_control(*command, context, *run);
  add_bench_transport(*command, context, *run);
  add_bench_codecs(*command, context, *run);
  add_bench_peers(*command, context, *run);
  add_bench_list(*command, context, *run);
  add_bench_compare(*command, context, *run);
  add_bench_report(*command, context, *run);
  add_bench_engine(*command, context);
  add_bench_copier(*command, context);
  add_bench_publisher(*command, context);
  // Runs after the callbacks of the suites in the command line, which only add their suites to the
  // run.
  command->callback([&context, run] { run->run(context); });
}

ProgramSpec bench_program() {
  return {.description = "wsync-bench measures wsync and a baseline in the same run",
          .add_commands = add_bench,
          .only_command = "bench",
          .others = {}};
}

}  // namespace wsync::cli
