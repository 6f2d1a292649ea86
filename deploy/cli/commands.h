// Each command has one function, in its own file, that adds the command to the app. To add a
// command: write deploy/cli/<name>.cc with add_<name>(), declare the function here, call it in
// commands.cc, and list the file in CMakeLists.txt.
#pragma once

#include "shared/command/context.h"
#include "shared/command/program.h"

namespace wsync::cli {

// The commands of `wsync`: those of the service, and the names of commands that other programs
// implement.
[[nodiscard]] ProgramSpec service_program();

void add_bundle(CLI::App& app, Context& context);
void add_cancel(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);
void add_demo(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_forget(CLI::App& app, Context& context);
void add_inspect(CLI::App& app, Context& context);
void add_keys(CLI::App& app, Context& context);
void add_make_checkpoint(CLI::App& app, Context& context);
void add_patch(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_push(CLI::App& app, Context& context);
void add_rollback(CLI::App& app, Context& context);
void add_promote(CLI::App& app, Context& context);
void add_coordinator(CLI::App& app, Context& context);
void add_sidecar(CLI::App& app, Context& context);
void add_status(CLI::App& app, Context& context);
void add_top(CLI::App& app, Context& context);
void add_trace(CLI::App& app, Context& context);
void add_trainer(CLI::App& app, Context& context);
void add_verify(CLI::App& app, Context& context);

}  // namespace wsync::cli
