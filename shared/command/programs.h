// Finds other programs of wsync and replaces this process with one of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::cli {

// Returns the first executable file of that name in the folders of `path` (colon-separated, like
// PATH). Relative folders are skipped.
[[nodiscard]] std::optional<std::string> find_program(std::string_view name,
                                                      const std::string& path);
// Searches the PATH of this process.
[[nodiscard]] std::optional<std::string> find_program(std::string_view name);

// Finds a program of wsync beside this executable, then in PATH. The kNotFound error lists the
// searched places and the package that provides the program.
[[nodiscard]] Result<std::string> find_wsync_program(std::string_view name);

// Replaces this process with a program of wsync; process id, descriptors and environment are kept.
// `arguments` does not include the program name. Returns only on failure: the errors of
// find_wsync_program(), or kIo. Thread: must be the only thread of the process.
[[nodiscard]] Error become_wsync_program(std::string_view name,
                                         const std::vector<std::string>& arguments);

}  // namespace wsync::cli
