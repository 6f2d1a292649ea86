// The executable `wsync`: its tree of commands, and the way from arguments to an exit code.
#pragma once

#include "deploy/cli/context.h"

namespace wsync::cli {

// Adds every command to `app`. Both outlive the call of any of them.
void build_app(CLI::App& app, Context& context);
// Parses, runs one command, prints; returns the exit code. Throws nothing.
[[nodiscard]] int run_app(int argc, const char* const* argv);

}  // namespace wsync::cli
