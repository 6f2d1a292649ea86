// Where the directory of a push is: on the host of the process that asks, which must be that of the
// trainer that reads it. Pure.
#pragma once

#include <optional>
#include <string>

#include "shared/control/command_messages.h"

namespace wsync::publish {

// Why a trainer on the host of these names must not read the directory; std::nullopt: it may. It
// may if the push says nothing of its host.
[[nodiscard]] std::optional<std::string> why_not_read_here(const control::Push& push,
                                                           const std::string& host,
                                                           const std::string& boot_id);

}  // namespace wsync::publish
