// Shared by all commands: common options, the output of outcomes, and exit codes.
#pragma once

#include <cstdio>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/command/exit_code.h"
#include "shared/config/log_config.h"

namespace CLI {
class App;
}
namespace wsync::config {
struct LogConfig;
}

namespace wsync::cli {

struct Outcome;  // outcome.h

// Options that every command takes.
struct CommonOptions {
  bool json = false;
  std::string log_level = "info";
  std::string log_format = "human";
  bool log_level_given = false;  // set on the command line, so it overrides a config file
  bool log_format_given = false;
};

class Context {
 public:
  CommonOptions options;
  std::vector<std::string> arguments;  // of this process, including the program name

  // Sets up logging for `role` ("sidecar host0"), runs the body of a command, prints its result and
  // sets the exit code. The outcome goes to standard output; an error goes to standard error as one
  // sentence. With --json, one object goes to standard output in both cases.
  void run(std::string_view command, const std::function<Result<Outcome>()>& body);
  // Sets up the logging of an agent from its config; options on the command line take precedence.
  // `role` is printed with every line.
  void configure_log(std::string_view role, const config::LogConfig& config);
  [[nodiscard]] int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_ = kExitOk;
};

// Returns the object that --json prints for an error.
[[nodiscard]] nlohmann::json error_json(std::string_view command, const Error& error);

struct CommandText {
  std::string name;
  std::string description;                           // one line
  std::initializer_list<std::string_view> examples;  // shown by --help
};
// Adds a command with the common options below `parent`. The caller adds its own options and a
// callback that calls context.run(). `context` must outlive the app.
CLI::App* add_command(CLI::App& parent, Context& context, const CommandText& text);

// Writes the text, adds a newline if there is none, and flushes. Does nothing for an empty text.
void print_line(std::FILE* stream, std::string_view text);
// Returns the object as one line of JSON.
[[nodiscard]] std::string to_line(const nlohmann::json& object);
// Formats bytes for people: "256.0 MiB".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);

}  // namespace wsync::cli
