// The command-line front end of each wsync program. It parses the arguments, answers a wrong one
// with one sentence and a suggestion, and runs one command.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shared/command/context.h"

namespace wsync::cli {

// A command of another program. It is listed with the program's own commands and executed by that
// program.
struct OtherProgram {
  std::string command;      // "bench"
  std::string program;      // "wsync-bench"
  std::string description;  // one line
};

struct ProgramSpec {
  std::string description;  // one line
  // Adds the commands of this program.
  std::function<void(CLI::App& app, Context& context)> add_commands;
  // The command that is assumed if the arguments begin with no command name: with "engine",
  // `wsync-engine --sidecar S` means `wsync engine --sidecar S`. Empty: a command name is required.
  std::string only_command;
  std::vector<OtherProgram> others;
};

// Adds the commands of a program to an app named `wsync`. `context` must outlive the app.
void build_app(const ProgramSpec& program, CLI::App& app, Context& context);

// Runs the command given by the arguments and returns the exit code. A command of another program
// replaces this process (exec).
[[nodiscard]] int run_program(const ProgramSpec& program, int argc, const char* const* argv);

// The words that may follow the commands typed so far, for shell completion: "" at the top level, "
// bench sync" below it.
struct CompletionPlace {
  struct Word {
    std::string name;
    std::string description;  // one line, without quotes, backslashes and other shell characters
  };
  std::string path;
  std::vector<Word> words;
};
[[nodiscard]] std::vector<CompletionPlace> completion_places(const CLI::App& app);

// A hidden command of every program except `wsync`. `wsync completion` calls it to collect its
// words.
inline constexpr const char* kCompletionCommand = "completion-places";

}  // namespace wsync::cli
