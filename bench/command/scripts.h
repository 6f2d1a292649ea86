// The Python programs that are installed with wsync-bench (share/wsync).
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::cli {

// Returns the path of a script, which is at the same place relative to wsync-bench in the build
// tree and in an installation. `purpose` completes "this script ...". kNotFound, with the package
// to install.
[[nodiscard]] Result<std::string> find_script(const std::string& name, const std::string& purpose);

}  // namespace wsync::cli
