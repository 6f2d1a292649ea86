// A program of wsync as its commands make it: the line is parsed, a wrong one gets one sentence
// with what could have been meant, and one command runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shared/command/context.h"

namespace wsync::cli {

// A command that another program has: listed with the own ones, and run by that program.
struct OtherProgram {
  std::string command;      // "bench"
  std::string program;      // "wsync-bench"
  std::string description;  // one line
};

struct ProgramSpec {
  std::string description;  // one line
  // Adds the commands that this program has.
  std::function<void(CLI::App& app, Context& context)> add_commands;
  // The command of a line that begins with none of them: "engine" makes `wsync-engine --sidecar S`
  // what `wsync engine --sidecar S` is. Empty: the line must name one.
  std::string only_command;
  std::vector<OtherProgram> others;
};

// The commands of a program below an app of the name `wsync`. `context` outlives the app.
void build_app(const ProgramSpec& program, CLI::App& app, Context& context);

// Runs the command of a line and returns the exit code. A command of another program takes this
// process's place.
[[nodiscard]] int run_program(const ProgramSpec& program, int argc, const char* const* argv);

// What may follow the commands typed so far, for a shell's completion: "" at the top, " bench sync"
// below.
struct CompletionPlace {
  struct Word {
    std::string name;
    std::string description;  // one line without quotes, backslashes and what else shells read
  };
  std::string path;
  std::vector<Word> words;
};
[[nodiscard]] std::vector<CompletionPlace> completion_places(const CLI::App& app);

// A hidden command of every program but `wsync`, by which `wsync completion` learns its words.
inline constexpr const char* kCompletionCommand = "completion-places";

}  // namespace wsync::cli
