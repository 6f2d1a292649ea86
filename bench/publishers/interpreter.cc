#include "bench/publishers/interpreter.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"
#include "shared/control/envelope.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr std::chrono::minutes kCheckLimit{2};  // torch may be read from a slow disk
constexpr int kRefused = 2;                     // exit code of publish.py

Result<std::string> program_of(const std::string& given) {
  if (given.find('/') == std::string::npos) {
    if (auto found = cli::find_program(given)) return *std::move(found);
    return fail(ErrorCode::kNotFound,
                fmt::format("--python: {} is not in PATH; give the path of an interpreter", given));
  }
  const std::string path = std::filesystem::absolute(given).string();
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return fail(ErrorCode::kNotFound, fmt::format("--python: {} does not exist", path));
  if (std::filesystem::is_directory(path, error) || ::access(path.c_str(), X_OK) != 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("--python: {} is not a program; give an interpreter, such as {}/bin/python",
                    path, path));
  return path;
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) last = std::move(line);
  return last;
}

}  // namespace

Result<Interpreter> find_interpreter(const InterpreterOptions& options,
                                     const Interrupt& interrupt) {
  const auto program = WSYNC_TRY(program_of(options.python));
  const std::string log = options.directory + "/interpreter.log";
  auto child = WSYNC_TRY(
      Child::start({.command = {program, options.script, "check", "--version", options.version,
                                "--protocol", std::to_string(control::kProtocolVersion),
                                "--tensors", fmt::format("{}", fmt::join(options.kinds, ","))},
                    .environment = {},
                    .log_file = log}));
  const auto end = WSYNC_TRY(child.wait(interrupt, now() + kCheckLimit));
  const std::string said = last_line(log);
  if (end.exit_code == kRefused && !said.empty())
    return fail(ErrorCode::kNotFound, "--python: " + said);
  const json answer = json::parse(end.output, nullptr, false);
  if (end.exit_code != 0 || !answer.is_object() || !answer.contains("kinds"))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--python: {} did not run {} as an interpreter of Python does: exit "
                            "code {}{}",
                            program, options.script, end.exit_code,
                            said.empty() ? "" : ", last words: " + said));
  return Interpreter{.executable = program,
                     .script = options.script,
                     .python = answer.at("python"),
                     .wsync = answer.at("wsync"),
                     .numpy = answer.at("numpy"),
                     .torch = answer.at("torch").is_null() ? "" : answer.at("torch"),
                     .kinds = answer.at("kinds")};
}

}  // namespace wsync::bench
