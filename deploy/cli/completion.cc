#include "deploy/cli/completion.h"

#include <algorithm>
#include <vector>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"

namespace wsync::cli {
namespace {

struct Word {
  std::string name;
  std::string description;
};
// What may follow the commands typed so far: "" at the top, " bench sync" below.
struct Place {
  std::string path;
  std::vector<Word> words;
};

// One line without what the shells would read: quotes and backslashes.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text.substr(0, text.find('\n')))
    if (c != '\'' && c != '\\' && c != '"' && c != '`' && c != '$') result += c;
  return result;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Place>& places) {
  const std::size_t index = places.size();
  places.push_back({.path = path, .words = {}});
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_group().empty()) continue;  // hidden
    places[index].words.push_back({command->get_name(), plain(command->get_description())});
    collect(*command, path + " " + command->get_name(), places);
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames())
      places[index].words.push_back({"--" + name, plain(option->get_description())});
  }
}

std::string joined(const Place& place) {
  std::string text;
  for (const Word& word : place.words) text += (text.empty() ? "" : " ") + word.name;
  return text;
}

// The part that bash and zsh have in common: find the commands among `typed`, then the words.
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

}  // namespace

Result<std::string> completion_script(const CLI::App& app, std::string_view shell) {
  std::vector<Place> places;
  collect(app, "", places);
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
      Result<std::string> script = completion_script(app, *shell);
      if (!script) return fail(script.error());
      return Outcome{.result = {{"shell", *shell}, {"script", *script}}, .text = *script};
    });
  });
}

}  // namespace wsync::cli
