// What tells this machine from others.
#pragma once

#include <cstdint>
#include <string>

namespace wsync {

// The kernel's id of this boot; empty when it cannot be read. Two processes with one boot id are
// worth a try of a same-host hand-over; they may still be in different namespaces.
[[nodiscard]] std::string boot_id();

// The host's name for people to read; "localhost" when it has none.
[[nodiscard]] std::string host_name();

// Inode of this process's PID namespace; 0 when it cannot be known.
[[nodiscard]] std::uint64_t pid_namespace();
// True when no process of this PID namespace has that id. False says nothing: ids are used again.
[[nodiscard]] bool process_is_gone(std::uint32_t pid);

}  // namespace wsync
