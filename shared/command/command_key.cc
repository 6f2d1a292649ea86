#include "shared/command/command_key.h"

#include <CLI/CLI.hpp>

#include "shared/config/sources.h"

namespace wsync::cli {

void add_key_option(CLI::App& command, std::string& file) {
  const auto environment = config::process_environment();
  const auto key = environment.find("WSYNC_KEY");
  file = key == environment.end() ? std::string() : key->second;
  command
      .add_option("--key", file,
                  "File with your key, for a coordinator with keys (default: WSYNC_KEY of the "
                  "environment)")
      ->type_name("FILE");
}

Result<std::optional<control::KeyFile>> command_key(const std::string& file) {
  if (file.empty()) return std::nullopt;
  auto key = control::load_key_file(file);
  if (!key) return fail(key.error().with_context("--key"));
  return std::optional(std::move(*key));
}

}  // namespace wsync::cli
