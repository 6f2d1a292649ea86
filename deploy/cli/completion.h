// Shell completion, generated from the tree of commands, so that it never lags behind.
#pragma once

#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace CLI {
class App;
}

namespace wsync::cli {

// A script for bash, zsh or fish; kInvalidInput for another shell.
[[nodiscard]] Result<std::string> completion_script(const CLI::App& app, std::string_view shell);

}  // namespace wsync::cli
