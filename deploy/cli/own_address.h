// The address of this host on its way to another one.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::cli {

// The numeric address that this host has on its way to `address`, tcp://HOST:PORT. Sends nothing.
// Empty if the way does not leave this host, and for ipc://. Errors: kInvalidInput for another
// form, kNotFound for a name without an address, kIo if there is no way. Thread: any; looks the
// name up, so it may take seconds.
[[nodiscard]] Result<std::string> own_address_towards(const std::string& address);

}  // namespace wsync::cli
