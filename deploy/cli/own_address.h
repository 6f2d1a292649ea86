// The address of this host on its way to another one.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::cli {

// The numeric address that this host has on its way to the first of `addresses` that it has a way
// to: tcp://HOST:PORT, or several with commas between them. Sends nothing. Empty if the way does
// not leave this host, and for ipc://. Errors, of the last address: kInvalidInput for another form,
// kNotFound for a name without an address, kIo if there is no way. Thread: any; looks names up, so
// it may take seconds.
[[nodiscard]] Result<std::string> own_address_towards(const std::string& addresses);

}  // namespace wsync::cli
