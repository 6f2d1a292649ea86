// What the commands that ask a running fleet share.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::cli {

// Where a trainer listens whose run_dir is the default, or that of the environment.
[[nodiscard]] std::string default_address();
// CLI11's check of a control address: the complaint, or nothing.
[[nodiscard]] std::string check_address(const std::string& text);
// Nobody answered at the address. `asked`: somebody was there and took the request (and was lost
// then: it may come back, and is not nobody).
[[nodiscard]] bool nobody_there(const Error& error, bool asked);

}  // namespace wsync::cli
