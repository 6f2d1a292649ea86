// The product's own links, asked what bare ones are (bench/baseline/pings.h).
#pragma once

#include <memory>
#include <string>

#include "bench/baseline/pings.h"
#include "shared/base/error.h"
#include "shared/control/codec.h"

namespace wsync::bench {

// Question and answer of a port, as a command and a coordinator pass them; number `i` names them.
[[nodiscard]] control::Decoded port_question(std::uint64_t i);
[[nodiscard]] control::Decoded port_answer(std::uint64_t i);
// Those of an engine and its sidecar.
[[nodiscard]] control::Decoded engine_question(std::uint64_t i);
[[nodiscard]] control::Decoded engine_answer(std::uint64_t i);

// DealerPort to RouterPort, each on its loop; the router's is in a thread of its own. `address` as
// listen_zmq() takes it. kDeadline when nobody is connected after half a minute.
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_port(const std::string& address);
// An engine's Link, without a loop, to a sidecar's UnixStream on the loop of another thread. `path`
// is free, in a directory of this user.
[[nodiscard]] Result<std::unique_ptr<Pings>> ping_engine_link(const std::string& path);

}  // namespace wsync::bench
