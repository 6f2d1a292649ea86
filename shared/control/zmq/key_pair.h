// Makes key pairs for the CURVE mechanism of ZeroMQ.
#pragma once

#include "shared/base/error.h"
#include "shared/control/keys/key_file.h"

namespace wsync::control {

// Makes a new key pair from the random numbers of the system. kInternal if the ZeroMQ library of
// this host was built without CURVE. Thread: any.
[[nodiscard]] Result<KeyPair> make_key_pair();

}  // namespace wsync::control
