// Identity of this host and its processes.
#pragma once

#include <cstdint>
#include <string>

namespace wsync {

// Returns the kernel's id of this boot, or an empty string if it cannot be read. Two processes with
// the same boot id should try the same-host transfer (memfd); they may still be in different
// namespaces.
[[nodiscard]] std::string boot_id();

// Returns the host's name for display, or "localhost" if it has none.
[[nodiscard]] std::string host_name();

// Returns the inode of this process's PID namespace, or 0 if it is unknown.
[[nodiscard]] std::uint64_t pid_namespace();
// Returns true if no process of this PID namespace has that id. False proves nothing, because ids
// are reused.
[[nodiscard]] bool process_is_gone(std::uint32_t pid);

}  // namespace wsync
