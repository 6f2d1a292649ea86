// The product's links with the same measurements as bare links (bench/baseline/pings.h).
#pragma once

#include <memory>
#include <string>

#include "bench/baseline/pings.h"
#include "shared/base/error.h"
#include "shared/control/codec.h"

namespace wsync::bench {

// Question and answer of a port, as a command and a coordinator exchange them. They carry the
// number `i`.
[[nodiscard]] control::Decoded port_question(std::uint64_t i);
[[nodiscard]] control::Decoded port_answer(std::uint64_t i);
// Question and answer of an engine and its sidecar.
[[nodiscard]] control::Decoded engine_question(std::uint64_t i);
[[nodiscard]] control::Decoded engine_answer(std::uint64_t i);

// DealerPort to RouterPort, each on its own loop. The router's loop has its own thread. `address`
// as for listen_zmq(). kDeadline if the connection takes more than half a minute.
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_port(const std::string& address);
// An engine's Link, which has no loop, to a sidecar's UnixStream on the loop of another thread.
// `path` does not exist and is in a directory of this user.
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_engine_link(const std::string& path);

}  // namespace wsync::bench
