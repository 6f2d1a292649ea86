// Default directories of a role.
#pragma once

#include <string>

namespace wsync::config {

// Returns $XDG_RUNTIME_DIR/wsync, or /tmp/wsync-<uid> if the variable is not set. Does not create
// the directory.
[[nodiscard]] std::string default_run_dir();
// Returns $XDG_STATE_HOME/wsync, else ~/.local/state/wsync, else (without a home directory)
// /var/lib/wsync.
[[nodiscard]] std::string default_state_dir();

}  // namespace wsync::config
