#include "deploy/cli/commands.h"

#include <CLI/CLI.hpp>

namespace wsync::cli {

ProgramSpec service_program() {
  return {.description = "wsync keeps the weights of inference engines equal to those of a trainer",
          .add_commands =
              [](CLI::App& app, Context& context) {
                add_demo(app, context);
                add_inspect(app, context);
                add_plan(app, context);
                add_trainer(app, context);
                add_sidecar(app, context);
                add_coordinator(app, context);
                add_push(app, context);
                add_cancel(app, context);
                add_status(app, context);
                add_top(app, context);
                add_verify(app, context);
                add_rollback(app, context);
                add_promote(app, context);
                add_forget(app, context);
                add_trace(app, context);
                add_keys(app, context);
                add_doctor(app, context);
                add_bundle(app, context);
                add_patch(app, context);
                add_make_checkpoint(app, context);
                add_completion(app, context);
              },
          .only_command = "",
          .others = {
              {.command = "engine",
               .program = "wsync-engine",
               .description = "Run a rank of the reference engine"},
              {.command = "train",
               .program = "wsync-train",
               .description = "Train a mixture-of-experts model, and publish its steps"},
              {.command = "schedule",
               .program = "wsync-train",
               .description = "Show, check, simulate and compare training schedules"},
              {.command = "bench",
               .program = "wsync-bench",
               .description = "Benchmarks, each with a baseline"},
          }};
}

}  // namespace wsync::cli
