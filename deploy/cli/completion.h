// Shell completion. The scripts are generated from the command tree and therefore always complete.
#pragma once

#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace CLI {
class App;
}

namespace wsync::cli {

// Returns the script for bash, zsh or fish; kInvalidInput for another shell.
[[nodiscard]] Result<std::string> completion_script(const CLI::App& app, std::string_view shell);

}  // namespace wsync::cli
