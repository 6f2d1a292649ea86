#include "inference_side/sidecar/sidecar_options.h"

#include <unistd.h>

#include "shared/base/host.h"
#include "shared/config/sidecar_config.h"

namespace wsync::agent {

staging::SidecarOptions sidecar_options(const config::SidecarConfig& config) {
  staging::SidecarOptions options;
  options.name = config.name;
  options.host = host_name();
  options.pid = static_cast<std::uint32_t>(::getpid());
  options.boot_id = boot_id();
  options.pid_namespace = pid_namespace();
  options.versions_held = config.versions_held;
  options.forget_after = config.forget_after;
  options.pause = config.deadlines.pause;
  options.load = config.deadlines.load;
  options.replica.commit = config.deadlines.commit;
  options.replica.max_staleness = config.max_staleness;
  options.replica.fallback_mode = config.fallback_pause_mode;
  return options;
}

}  // namespace wsync::agent
