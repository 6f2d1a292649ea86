#include "trainer_side/publish/push_origin.h"

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::publish {

std::optional<std::string> why_not_read_here(const control::Push& push, const std::string& host,
                                             const std::string& boot_id) {
  if (push.boot_id.empty() || push.boot_id == boot_id || planted("push_read_on_any_host"))
    return std::nullopt;
  return fmt::format(
      "{} is a directory of the host {}, and the trainer that reads it is on the host {}: push on "
      "that host, or, if both see the directory under this path, with --shared-path",
      push.directory, push.host, host);
}

}  // namespace wsync::publish
