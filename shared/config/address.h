// Addresses of the control channel and of bulk data, as far as this release allows them.
#pragma once

#include <string_view>

#include "shared/base/error.h"

namespace wsync::config {

// Ok for "ipc://<absolute path of at most 100 bytes>" and "tcp://<loopback>:<port>"; anything else
// is kRefused (an address beyond this host: needs keys, which this release does not have) or
// kInvalidInput. Loopback: 127.0.0.0/8, localhost, [::1]. Port 0 asks for a free one.
[[nodiscard]] Result<> check_control_address(std::string_view address);
// The tcp:// half of it.
[[nodiscard]] Result<> check_data_address(std::string_view address);

}  // namespace wsync::config
