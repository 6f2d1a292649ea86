// RouterPort and DealerPort over ZeroMQ, for ipc:// and tcp:// addresses (address.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "shared/control/keys/authorized_keys.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/port.h"
#include "shared/loop/loop.h"

namespace wsync::control {

// Keys of a router.
struct RouterKeys {
  std::string secret_key;   // of the coordinator, Z85
  AuthorizedKeys admitted;  // RouterPort::admit() replaces them
};

struct RouterOptions {
  std::string address;
  PortTimes times;
  // ipc:// only: take over an address that another process holds (Claim::kTakeOver)
  bool take_over = false;
  // ipc:// only: what else can be done if another process holds the lock of the address
  // (SocketPath::claim())
  std::string advice = {};
  std::optional<RouterKeys> keys = {};  // none: everybody who reaches the address is admitted
};
// Starts to listen. kRefused for an address beyond this host without keys; kInvalidInput for a
// malformed one;
// kBusy if another process listens there; kInternal if the ZeroMQ library has no keys. Creates the
// directory of an ipc:// path with mode 0700. A lock file protects the path, and a socket that a
// killed process left there is replaced.
[[nodiscard]] Result<std::unique_ptr<RouterPort>> listen_zmq(Loop& loop,
                                                             const RouterOptions& options,
                                                             RouterCallbacks callbacks);

struct DealerOptions {
  // One, or several with commas between them (split_addresses()), at one of which the router
  // listens. Each is tried for half a second at first.
  std::string address;
  std::string name;  // prefix of the identity
  PortTimes times;
  std::optional<KeyFile> key = {};  // none: the router has no keys
};
// Connects in the background and retries with growing pauses. on_connected reports success.
// kRefused for an address beyond this host without a key and for an ipc:// path in another user's
// directory; kInvalidInput for a malformed address or for a name over limits::kReplicaNameBytes.
[[nodiscard]] Result<std::unique_ptr<DealerPort>> connect_zmq(Loop& loop,
                                                              const DealerOptions& options,
                                                              DealerCallbacks callbacks);

}  // namespace wsync::control
