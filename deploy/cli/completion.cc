#include "deploy/cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <sstream>
#include <vector>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/command/programs.h"

namespace wsync::cli {
namespace {

using Place = CompletionPlace;
using Word = CompletionPlace::Word;

std::string joined(const Place& place) {
  std::string text;
  for (const Word& word : place.words) text += (text.empty() ? "" : " ") + word.name;
  return text;
}

// Generates the common part of bash and zsh: find the command in `typed`, then list its words.
std::string shell_cases(const std::vector<Place>& places) {
  std::string patterns;
  for (const Place& place : places)
    if (!place.path.empty())
      patterns += fmt::format("{}\"{}\"", patterns.empty() ? "" : "|", place.path);
  std::string text = fmt::format(
      "  for word in \"${{typed[@]}}\"; do\n"
      "    case \"$place $word\" in {}) place=\"$place $word\" ;; esac\n"
      "  done\n"
      "  case \"$place\" in\n",
      patterns);
  for (const Place& place : places)
    text += fmt::format("    \"{}\") choices=\"{}\" ;;\n", place.path, joined(place));
  return text + "  esac\n";
}

std::string bash(const std::vector<Place>& places) {
  return "# bash completion of wsync: source <(wsync completion bash)\n"
         "_wsync() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} place=\"\" choices=\"\" word\n"
         "  local typed=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n" +
         shell_cases(places) +
         "  COMPREPLY=($(compgen -W \"$choices\" -- \"$cur\"))\n"
         "}\n"
         "complete -o default -F _wsync wsync\n";
}

std::string zsh(const std::vector<Place>& places) {
  return "#compdef wsync\n"
         "# zsh completion of wsync: source <(wsync completion zsh)\n"
         "_wsync() {\n"
         "  local place=\"\" choices=\"\" word\n"
         "  local -a typed=(\"${(@)words[2,CURRENT-1]}\")\n" +
         shell_cases(places) +
         "  compadd -- ${(s: :)choices}\n"
         "  _files\n"
         "}\n"
         "if [ \"$funcstack[1]\" = \"_wsync\" ]; then _wsync; else compdef _wsync wsync; fi\n";
}

std::string fish(const std::vector<Place>& places) {
  std::string text = "# fish completion of wsync: wsync completion fish | source\n";
  for (const Place& place : places) {
    std::string condition = "__fish_use_subcommand";
    if (!place.path.empty()) {
      condition.clear();
      std::size_t begin = 1;
      while (begin <= place.path.size()) {
        const std::size_t end = std::min(place.path.find(' ', begin), place.path.size());
        condition += (condition.empty() ? "" : "; and ") +
                     ("__fish_seen_subcommand_from " + place.path.substr(begin, end - begin));
        begin = end + 1;
      }
    }
    for (const Word& word : place.words)
      text += fmt::format("complete -c wsync -n '{}' {} '{}' -d '{}'\n", condition,
                          word.name.starts_with("--") ? "-l" : "-a",
                          word.name.starts_with("--") ? word.name.substr(2) : word.name,
                          word.description);
  }
  return text;
}

// Asks another program of wsync for its commands. Returns an empty list if it is not installed.
std::vector<Place> places_of(const std::string& program) {
  std::vector<Place> places;
  const auto path = find_wsync_program(program);
  if (!path) return places;
  std::string quoted;
  for (const char c : *path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  const std::string line = fmt::format("'{}' {} 2>/dev/null", quoted, kCompletionCommand);
  std::string text;
  if (std::FILE* pipe = ::popen(line.c_str(), "re")) {
    std::array<char, 4096> piece{};
    for (std::size_t n = 0; (n = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;)
      text.append(piece.data(), n);
    ::pclose(pipe);
  }
  std::istringstream lines(text);
  for (std::string row; std::getline(lines, row);) {
    const std::size_t first = row.find('\t');
    const std::size_t second = first == std::string::npos ? first : row.find('\t', first + 1);
    if (second == std::string::npos || first == 0) continue;  // its commands are already known
    const std::string place = row.substr(0, first);
    if (places.empty() || places.back().path != place)
      places.push_back({.path = place, .words = {}});
    places.back().words.push_back(
        {.name = row.substr(first + 1, second - first - 1), .description = row.substr(second + 1)});
  }
  return places;
}

// Returns the commands of this program and of the other programs that are installed.
std::vector<Place> all_places(const CLI::App& app) {
  std::vector<Place> places = completion_places(app);
  std::set<std::string> programs;
  for (const OtherProgram& other : service_program().others) {
    std::erase_if(places, [&](const Place& place) { return place.path == " " + other.command; });
    programs.insert(other.program);
  }
  for (const std::string& program : programs)
    for (Place& place : places_of(program)) places.push_back(std::move(place));
  return places;
}

}  // namespace

Result<std::string> completion_script(const CLI::App& app, std::string_view shell) {
  const std::vector<Place> places = all_places(app);
  if (shell == "bash") return bash(places);
  if (shell == "zsh") return zsh(places);
  if (shell == "fish") return fish(places);
  return fail(ErrorCode::kInvalidInput,
              fmt::format("no completion for '{}'; expected bash, zsh or fish", shell));
}

void add_completion(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "completion",
       .description = "Print a completion script for a shell",
       .examples = {"source <(wsync completion bash)", "wsync completion fish | source"}});
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required();
  command->callback([&app, &context, shell] {
    context.run("completion", [&]() -> Result<Outcome> {
      auto script = WSYNC_TRY(completion_script(app, *shell));
      return Outcome{.result = {{"shell", *shell}, {"script", script}}, .text = script};
    });
  });
}

}  // namespace wsync::cli
