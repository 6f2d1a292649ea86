// Whether any process listens at an address, which the kernel knows without asking that process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace wsync::control {

// Why a request to this address of parse_port_address() cannot be answered now, in half a sentence:
// there is no socket, it is left over from a process that has ended, or nobody listens on the
// port. std::nullopt if a process listens there or is about to, or if that cannot be found out.
// Thread: any. Never waits for the process at the address.
[[nodiscard]] std::optional<std::string> why_nobody_listens(const std::string& address);
// Continues the sentence that nobody has accepted a connection to this address: ", although process
// 12 listens there", and what that may be. Empty for a port, and if no process listens. Thread:
// any; does not wait.
[[nodiscard]] std::string who_listens(const std::string& address);
// What answers requests at an address, as its form says.
enum class AddressKind : std::uint8_t {
  kSocket,   // a trainer, at a socket that another one can take over
  kSidecar,  // a sidecar: the socket is named NAME.control
  kPort,     // a trainer, at a TCP port
};
// kPort also for an address that is malformed. Thread: any.
[[nodiscard]] AddressKind address_kind(const std::string& address);
// Where sidecars answer requests, as a sentence for whoever has found nobody at `address`: the
// addresses in the folder of this address at which processes listen (at most three are named). If
// there are none, how such an address is made; empty if `address` is that of a sidecar. Thread:
// any; reads the folder, does not wait.
[[nodiscard]] std::string where_sidecars_answer(const std::string& address);

}  // namespace wsync::control
