// The key of a command, by which a coordinator with keys judges what it asks.
#pragma once

#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/control/keys/key_file.h"

namespace CLI {
class App;
}

namespace wsync::cli {

// Adds --key, whose value is written to `file`: by default the file that WSYNC_KEY of the
// environment names, or none. `file` must outlive the app.
void add_key_option(CLI::App& command, std::string& file);
// Reads the key in the file; nothing for an empty path. Errors: those of load_key_file().
[[nodiscard]] Result<std::optional<control::KeyFile>> command_key(const std::string& file);

}  // namespace wsync::cli
