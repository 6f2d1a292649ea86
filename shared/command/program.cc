#include "shared/command/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/train_config.h"
#include "shared/config/trainer_config.h"
#include "shared/config/units.h"

namespace wsync::cli {
namespace {

// Returns the known names that could replace the word `found`: options of the chosen command, or
// commands.
std::vector<std::string> names_of(const CLI::App& app, bool options) {
  std::vector<std::string> names;
  if (options) {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* command : app.get_subcommands({}))
      if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

const CLI::App* chosen_command(const CLI::App& app) {
  const CLI::App* chosen = &app;
  // Selects the last command: if several occur on the line, the words that follow belong to the
  // last one.
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().back();
  return chosen;
}

// Returns the command below which a word that is not an option could be a command name: the chosen
// command if it has subcommands, or its parent if that accepts several commands on one line.
const CLI::App* place_of_commands(const CLI::App& app) {
  const CLI::App* chosen = chosen_command(app);
  if (!chosen->get_subcommands({}).empty()) return chosen;
  const CLI::App* parent = chosen->get_parent();
  return parent != nullptr && parent->get_require_subcommand_max() != 1 ? parent : nullptr;
}

// Returns the first word at that place that is not a command there, or an empty string.
std::string unknown_command(const CLI::App& place, const std::vector<std::string>& arguments) {
  const std::vector<std::string> names = names_of(place, false);
  const auto is_known = [&](const std::string& word) {
    return word.starts_with('-') || word == place.get_name() ||
           std::find(names.begin(), names.end(), word) != names.end();
  };
  const auto found = std::find_if_not(arguments.begin(), arguments.end(), is_known);
  return found == arguments.end() ? std::string() : *found;
}

// Returns which other commands have this option, or an empty string. A misspelt word is no option
// of any command.
std::string whose_option(const CLI::App& app, const std::string& option) {
  std::string owners;
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::vector<std::string> names = names_of(*command, true);
    if (std::find(names.begin(), names.end(), option) != names.end())
      owners += (owners.empty() ? "" : ", ") + command->get_name();
  }
  if (owners.empty()) return {};
  const std::string_view instead =
      option == "--set" ? "; this command reads configuration keys from the environment: WSYNC_KEY"
                        : "";
  return fmt::format("; {} is an option of {}{}", option, owners, instead);
}

// The configuration keys that --set of the command takes, in the names of its file.
std::vector<std::string> keys_of(const CLI::App& command) {
  if (command.get_name() == "sidecar") return config::sidecar_keys();
  if (command.get_name() == "train") return config::train_keys();
  if (command.get_name() != "trainer") return {};
  std::vector<std::string> keys = config::trainer_keys();
  std::ranges::move(config::train_keys(), std::back_inserter(keys));
  return keys;
}

// Returns "; name is a configuration key: --set name=host0" if the argument at `index` is an option
// that has the name of a key, or an empty string.
std::string key_instead(const CLI::App& command, const std::vector<std::string>& arguments,
                        std::size_t index) {
  const std::string& argument = arguments[index];
  const std::size_t equals = argument.find('=');
  std::string key = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  std::ranges::replace(key, '-', '_');
  const std::vector<std::string> keys = keys_of(command);
  if (std::ranges::find(keys, key) == keys.end()) return {};
  std::string value = "VALUE";
  if (equals != std::string::npos)
    value = argument.substr(equals + 1);
  else if (index + 1 < arguments.size() && !arguments[index + 1].starts_with('-'))
    value = arguments[index + 1];
  return fmt::format("; {} is a configuration key: --set {}={}", key, key, value);
}

// Returns "; did you mean --set?" for the first argument that is not a known name, or an empty
// string.
std::string suggestion(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* chosen = chosen_command(app);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool option = argument.starts_with("--");
    const CLI::App* place = option ? chosen : place_of_commands(app);
    if (place == nullptr) continue;
    const std::vector<std::string> names = names_of(*place, option);
    const std::string word = argument.substr(0, argument.find('='));
    if (!option && word == place->get_name()) continue;
    if (std::find(names.begin(), names.end(), word) != names.end()) continue;
    if (std::string key = option ? key_instead(*place, arguments, i) : ""; !key.empty()) return key;
    if (const std::string other = option ? whose_option(app, word) : ""; !other.empty())
      return other;
    const std::string nearest = config::nearest_name(word, names);
    if (!nearest.empty()) return fmt::format("; did you mean {}?", nearest);
  }
  return {};
}

// Returns the full name of the chosen command, such as "wsync bench sync".
std::string path_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : path_of(*parent) + " " + app.get_name();
}

int report_bad_arguments(const CLI::App& app, const CLI::ParseError& error,
                         const std::vector<std::string>& arguments) {
  const CLI::App* chosen = chosen_command(app);
  std::string message = error.what();
  while (!message.empty() && (message.back() == '\n' || message.back() == '.')) message.pop_back();
  if (chosen == &app && !arguments.empty() && !arguments.front().starts_with('-'))
    message = fmt::format("no command '{}'", arguments.front());
  const CLI::App* place = place_of_commands(app);
  const std::string unknown =
      place == nullptr || place == &app ? std::string() : unknown_command(*place, arguments);
  const bool unknown_here = place == chosen && !unknown.empty();
  if (unknown_here) message = fmt::format("no command '{}' under {}", unknown, place->get_name());
  // A missing argument is not a misspelt word, so it gets no suggestion.
  if (unknown_here || error.get_name() != "RequiredError" || chosen == &app)
    message += suggestion(app, arguments);
  if (std::find(arguments.begin(), arguments.end(), "--json") != arguments.end()) {
    const std::string command = chosen == &app ? "" : chosen->get_name();
    print_line(stdout, to_line(error_json(command, Error(ErrorCode::kInvalidInput, message))));
  } else {
    print_line(stderr, fmt::format("{0}: {1} ({0} --help)", path_of(*chosen), message));
  }
  return kExitBadInput;
}

// Returns one line without characters that shells interpret: quotes and backslashes.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text.substr(0, text.find('\n')))
    if (c != '\'' && c != '\\' && c != '"' && c != '`' && c != '$') result += c;
  return result;
}

void collect(const CLI::App& app, const std::string& path, std::vector<CompletionPlace>& places) {
  const std::size_t index = places.size();
  places.push_back({.path = path, .words = {}});
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_group().empty()) continue;  // hidden command
    places[index].words.push_back({command->get_name(), plain(command->get_description())});
    collect(*command, path + " " + command->get_name(), places);
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames())
      places[index].words.push_back({"--" + name, plain(option->get_description())});
  }
}

// Returns the arguments as this program expects them: the name of its only command may be omitted.
std::vector<std::string> full_line(const ProgramSpec& program, const CLI::App& app,
                                   std::vector<std::string> words) {
  if (program.only_command.empty()) return words;
  if (!words.empty() && words.front() == "--version") return words;
  const bool named =
      !words.empty() && std::ranges::any_of(app.get_subcommands({}), [&](const CLI::App* command) {
        return command->get_name() == words.front();
      });
  if (!named) words.insert(words.begin(), program.only_command);
  return words;
}

// Returns what the help of the whole program says of commands that are not there, or an empty
// string.
std::string missing_text(const ProgramSpec& program, const CLI::App& app) {
  std::vector<std::string> missing;
  for (const CLI::App* command : app.get_subcommands({}))
    if (command->get_group().empty()) missing.push_back(command->get_name());
  if (missing.empty() || program.others.empty()) return {};
  return fmt::format(
      "\nNot part of this installation: {}. A build of the source tree has them (deploy/demo.sh "
      "makes one), in programs that are found beside `wsync` or in PATH.",
      fmt::join(missing, ", "));
}

}  // namespace

std::vector<CompletionPlace> completion_places(const CLI::App& app) {
  std::vector<CompletionPlace> places;
  collect(app, "", places);
  return places;
}

void build_app(const ProgramSpec& program, CLI::App& app, Context& context) {
  app.name("wsync");
  app.set_version_flag("--version", "wsync " WSYNC_VERSION);
  app.require_subcommand(1);
  program.add_commands(app, context);
  for (const OtherProgram& other : program.others) {
    CLI::App* command =
        app.add_subcommand(other.command, fmt::format("{} ({})", other.description, other.program));
    if (!find_wsync_program(other.program)) command->group("");  // it still says what is missing
  }
  app.footer(
      "Exit codes: 0 done, 1 failed or differs, 2 bad input, 3 not reachable or deadline passed, "
      "130 interrupted.\n`wsync COMMAND --help` has examples." +
      missing_text(program, app));
  if (program.only_command.empty()) return;
  CLI::App* completion = app.add_subcommand(kCompletionCommand, "Words for `wsync completion`");
  completion->group("");
  completion->callback([&app] {
    for (const CompletionPlace& place : completion_places(app))
      for (const CompletionPlace::Word& word : place.words)
        print_line(stdout, fmt::format("{}\t{}\t{}", place.path, word.name, word.description));
  });
}

int run_program(const ProgramSpec& program, int argc, const char* const* argv) {
  CLI::App app(program.description);
  Context context;
  build_app(program, app, context);
  const std::vector<std::string> arguments =
      full_line(program, app, std::vector<std::string>(argv + 1, argv + argc));
  for (const OtherProgram& other : program.others) {
    if (arguments.empty() || arguments.front() != other.command) continue;
    const Error error = become_wsync_program(other.program, arguments);
    const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
    if (json)
      print_line(stdout, to_line(error_json(other.command, error)));
    else
      print_line(stderr, fmt::format("wsync {}: {}", other.command, error.message()));
    return exit_code_of(error.code());
  }
  context.arguments = arguments;
  // Tests kill these processes in the middle of what they do.
  constexpr std::array<std::string_view, 3> kHaveFailPoints{"trainer", "sidecar", "engine"};
  if (!arguments.empty() &&
      std::ranges::find(kHaveFailPoints, arguments.front()) != kHaveFailPoints.end()) {
    if (const auto armed = arm_fail_point_of_environment(); !armed) {
      print_line(stderr, fmt::format("wsync {}: {}", arguments.front(), armed.error().message()));
      return exit_code_of(armed.error().code());
    }
  }
  try {
    // CLI11 reads the arguments from the back of the vector.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const CLI::App* chosen = chosen_command(app);
    const CLI::App* parent = chosen->get_parent();
    print_line(stdout, chosen->help(parent == nullptr ? "" : path_of(*parent)));
    return kExitOk;
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report_bad_arguments(app, error, arguments);
  } catch (const std::exception& error) {
    print_line(stderr, fmt::format("wsync: {}", error.what()));
    return kExitFailed;
  }
  return context.exit_code();
}

}  // namespace wsync::cli
