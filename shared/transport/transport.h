// Transport: one kind of transport in one process. It makes the source, which serves versions, and
// the sinks, which fetch them. Each backend is a folder with one implementation; make_transport.h
// makes them by name.
//
// Thread: the owner's loop thread calls every method.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shared/base/kinds.h"
#include "shared/base/unix_socket.h"
#include "shared/transport/limits.h"
#include "shared/transport/pair_key.h"
#include "shared/transport/stream.h"
#include "shared/transport/traits.h"

namespace wsync::transport {

// What the kinds need of the process that uses them. Each kind reads what concerns it.
struct TransportOptions {
  std::string run_dir;  // existing directory for sockets; it belongs to this user alone
  std::string name;     // of this process; its sockets in run_dir begin with it
  // tcp://HOST:PORT at which a source that reaches the network listens. Port 0: chosen by the
  // system. If HOST is beyond loopback, `tcp` listens there only if the network is trusted.
  std::string data_address = "tcp://127.0.0.1:0";
  // The host by which others reach `data_address`; empty: that of `data_address`.
  std::string advertise;
  DataSecurity security = DataSecurity::kTls;
  // Of this process: what the keys of those who receive from it are made of. None: the fleet has no
  // keys, or the network is trusted.
  std::optional<PairSecret> secret;
  Claim claim = Claim::kIfFree;  // of a socket in run_dir that another process serves
  std::string advice = {};       // what else can be done then (SocketPath::claim())
  // How long a source waits for a requested version that is not offered yet.
  std::chrono::milliseconds offer_wait{limits::kStreamOfferWaitMs};
  // How long a source of copies holds the memory of a version that was withdrawn, to finish what it
  // tells receivers that are behind.
  std::chrono::milliseconds link_hold{limits::kStreamLinkHoldMs};
};

struct SinkOptions {
  // Called on the owner's thread when the source that BucketSink::watch() has connected to is gone.
  std::function<void(const Error& why)> on_source_lost = [](const Error&) {};
  // Called on the owner's thread when the sink gives up mappings of arenas, because their writer
  // has freed them or is gone. Others that keep such mappings give them up as well, otherwise the
  // memory stays allocated.
  std::function<void()> on_arenas_retired = [] {};
};

// The transport must outlive its source and its sinks.
class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual const TransportTraits& traits() const noexcept = 0;
  // Binds an address and serves versions there. kBusy if another process serves it; kRefused if
  // this release does not permit the address; kIo if it cannot be bound.
  [[nodiscard]] virtual Result<std::unique_ptr<BucketSource>> listen() = 0;
  // Connections that a kind with keys has ended, at either end, because the peer did not prove its
  // key or the bytes were changed on the way. Any thread.
  [[nodiscard]] virtual std::uint64_t refusals() const { return 0; }
  // kIo if the kernel's resources do not suffice.
  [[nodiscard]] virtual Result<std::unique_ptr<BucketSink>> make_sink(SinkOptions options) = 0;
};

}  // namespace wsync::transport
