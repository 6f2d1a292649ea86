// Checks addresses of the control channel and of bulk data against what this release allows.
#pragma once

#include <string_view>

#include "shared/base/error.h"

namespace wsync::config {

// Accepts "ipc://<absolute path of at most 100 bytes>" and "tcp://<loopback>:<port>". Loopback is
// 127.0.0.0/8, localhost or [::1]. Port 0 requests a free port. Errors: kRefused for an address
// beyond this host (weights would travel there without encryption); kInvalidInput for
// anything else.
[[nodiscard]] Result<> check_control_address(std::string_view address);
// Accepts what check_control_address() does, and tcp:// with any other host too if clients must
// show a token. Errors: kRefused for such a host without a token; kInvalidInput for anything else.
[[nodiscard]] Result<> check_pages_address(std::string_view address, bool has_token);
// Accepts only the tcp:// form of check_control_address(), with the same errors.
[[nodiscard]] Result<> check_data_address(std::string_view address);

}  // namespace wsync::config
