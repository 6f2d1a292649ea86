// What every command shares: common options, how an outcome is printed, exit codes.
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
  bool log_level_given = false;  // on the command line, so that it rules over a config file's
  bool log_format_given = false;
};

class Context {
 public:
  CommonOptions options;
  std::vector<std::string> arguments;  // of this process, its command first

  // Sets up logging for `role` ("sidecar host0"), runs a command's body and prints what came of it:
  // the outcome on standard output, an error as one sentence on standard error; with --json one
  // object on standard output in both cases. Sets the exit code.
  void run(std::string_view command, const std::function<Result<Outcome>()>& body);
  // Logging of an agent: what its config says, unless the command line says otherwise. `role` is
  // printed with every line.
  void configure_log(std::string_view role, const config::LogConfig& config);
  [[nodiscard]] int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_ = kExitOk;
};

// The object that --json prints for an error.
[[nodiscard]] nlohmann::json error_json(std::string_view command, const Error& error);

struct CommandText {
  std::string name;
  std::string description;                           // one line
  std::initializer_list<std::string_view> examples;  // shown by --help
};
// Adds a command below `parent` with the common options; the caller adds its own options and a
// callback that calls context.run(). `context` outlives the app.
CLI::App* add_command(CLI::App& parent, Context& context, const CommandText& text);

// Writes the text, with a line end if it has none, and flushes. Nothing for an empty text.
void print_line(std::FILE* stream, std::string_view text);
// The object on one line.
[[nodiscard]] std::string to_line(const nlohmann::json& object);
// Bytes for people: "256.0 MiB".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);

}  // namespace wsync::cli
