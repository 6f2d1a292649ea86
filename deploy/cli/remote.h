// Shared parts of the commands that send requests to a running fleet.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace CLI {
class App;
}

namespace wsync::cli {

// Returns the control address of a trainer with the default run_dir, or with that of the
// environment.
[[nodiscard]] std::string default_address();
// Adds --timeout, in the form of all durations ("500ms", "10s"); a number alone is in seconds.
// `seconds` has the default, and must outlive the app.
void add_timeout(CLI::App& command, double& seconds);
// CLI11 validator of a control address: returns the error text, or an empty string if it is valid.
[[nodiscard]] std::string check_address(const std::string& text);
// Returns true if nothing answered at the address. `asked`: a coordinator received the request. If
// it was lost after that, it may come back, so the result is false.
[[nodiscard]] bool nobody_there(const Error& error, bool asked);

}  // namespace wsync::cli
