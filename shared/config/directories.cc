#include "shared/config/directories.h"

#include <cstdlib>
#include <unistd.h>

#include "shared/base/format.h"

namespace wsync::config {

std::string default_run_dir() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/wsync";
  return fmt::format("/tmp/wsync-{}", ::getuid());
}

std::string default_state_dir() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return std::string(state) + "/wsync";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.local/state/wsync";
  return "/var/lib/wsync";
}

}  // namespace wsync::config
