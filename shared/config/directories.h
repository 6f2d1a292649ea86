// The directories of a role whose configuration names none.
#pragma once

#include <string>

namespace wsync::config {

// $XDG_RUNTIME_DIR/wsync, or /tmp/wsync-<uid>. Not created here.
[[nodiscard]] std::string default_run_dir();
// $XDG_STATE_HOME/wsync, or ~/.local/state/wsync, or /var/lib/wsync without a home.
[[nodiscard]] std::string default_state_dir();

}  // namespace wsync::config
