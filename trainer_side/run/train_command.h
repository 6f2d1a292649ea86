// The commands of `wsync-train`.
#pragma once

#include "shared/command/context.h"
#include "shared/command/program.h"

namespace wsync::cli {

void add_train(CLI::App& app, Context& context);
void add_schedule(CLI::App& app, Context& context);
[[nodiscard]] ProgramSpec training_program();

}  // namespace wsync::cli
