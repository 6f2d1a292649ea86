// Checks addresses of the control channel and of bulk data. Whether an address beyond this host is
// permitted depends on other keys of a configuration (role.h).
#pragma once

#include <string_view>

#include "shared/base/error.h"

namespace wsync::config {

// Accepts "ipc://<absolute path of at most 100 bytes>" and the forms of parse_tcp_address(). Port 0
// requests a free port. kInvalidInput for anything else.
[[nodiscard]] Result<> check_control_address(std::string_view address);
// Accepts one address of check_control_address(), or several tcp:// addresses with commas between
// them, at one of which the process answers that leads now.
[[nodiscard]] Result<> check_coordinator_addresses(std::string_view addresses);
// Accepts what check_control_address() does. kRefused for an address beyond this host, unless
// clients must show a token.
[[nodiscard]] Result<> check_pages_address(std::string_view address, bool has_token);
// Accepts the forms of parse_tcp_address() with a numeric host, which a process can listen at.
[[nodiscard]] Result<> check_data_address(std::string_view address);
// Accepts the forms of parse_host() that others can connect to.
[[nodiscard]] Result<> check_advertised_host(std::string_view host);
// Whether other hosts reach an address, or one of several, that one of these functions has
// accepted.
[[nodiscard]] bool is_beyond_this_host(std::string_view address);

}  // namespace wsync::config
