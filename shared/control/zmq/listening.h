// Whether any process listens at an address, which the kernel knows without asking that process.
#pragma once

#include <optional>
#include <string>

namespace wsync::control {

// Why a request to this address of parse_port_address() cannot be answered now, in half a sentence:
// its socket does not exist, is left over from a process that has ended, or nobody listens on the
// port. std::nullopt if a process listens there or is about to, or if that cannot be found out.
// Thread: any. Never waits for the process at the address.
[[nodiscard]] std::optional<std::string> why_nobody_listens(const std::string& address);

}  // namespace wsync::control
