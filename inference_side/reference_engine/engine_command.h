// The command of `wsync-engine`.
#pragma once

#include "shared/command/context.h"
#include "shared/command/program.h"

namespace wsync::cli {

void add_engine(CLI::App& app, Context& context);
[[nodiscard]] ProgramSpec engine_program();

}  // namespace wsync::cli
