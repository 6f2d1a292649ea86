// RouterPort and DealerPort over ZeroMQ, for ipc:// and loopback tcp:// addresses (address.h).
#pragma once

#include <memory>
#include <string>

#include "shared/control/port.h"
#include "shared/loop/loop.h"

namespace wsync::control {

struct RouterOptions {
  std::string address;
  PortTimes times;
  // ipc:// only: an address that another process holds is taken over from it (Claim::kTakeOver).
  bool take_over = false;
};
// Listens. kRefused for an address beyond this host; kInvalidInput for a malformed one; kBusy when
// another process listens there. The directory of an ipc:// path is created with mode 0700; the
// path is held by a lock file, and a socket left there by a killed process is replaced.
[[nodiscard]] Result<std::unique_ptr<RouterPort>> listen_zmq(Loop& loop,
                                                             const RouterOptions& options,
                                                             RouterCallbacks callbacks);

struct DealerOptions {
  std::string address;
  std::string name;  // begins the identity
  PortTimes times;
};
// Connects in the background, again and again with growing pauses; on_connected tells when.
// kRefused for an address beyond this host and for an ipc:// path in another user's directory;
// kInvalidInput for a malformed address or a name over limits::kReplicaNameBytes.
[[nodiscard]] Result<std::unique_ptr<DealerPort>> connect_zmq(Loop& loop,
                                                              const DealerOptions& options,
                                                              DealerCallbacks callbacks);

}  // namespace wsync::control
