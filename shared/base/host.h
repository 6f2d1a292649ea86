// What tells this machine from others.
#pragma once

#include <string>

namespace wsync {

// The kernel's id of this boot; empty when it cannot be read. Two processes with one boot id are
// worth a try of a same-host hand-over; they may still be in different namespaces.
[[nodiscard]] std::string boot_id();

// The host's name for people to read; "localhost" when it has none.
[[nodiscard]] std::string host_name();

}  // namespace wsync
