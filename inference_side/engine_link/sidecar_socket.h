// What is at the path that an engine or a reader was given for the engine socket of a sidecar, if
// no sidecar answers there: one sentence with the path, what was expected, what is there, and what
// to do.
//
// Thread: any. The functions look at files and at the peer of a socket, and do not wait.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::engine {

// A connection to `path` has failed with `error`, as connect_unix() returns it.
[[nodiscard]] std::string why_not_connected(const std::string& path, const Error& error);
// A process listens at `path` and is connected as `socket`, but it has not welcomed this process:
// `why` says what it has done instead, such as "the peer closed the connection".
[[nodiscard]] std::string why_not_welcomed(const std::string& path, int socket,
                                           const std::string& why);

}  // namespace wsync::engine
