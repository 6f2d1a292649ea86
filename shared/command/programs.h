// Other programs: where they are, and how one of wsync's own takes this one's place.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::cli {

// The first executable file of that name in the folders of `path` (as PATH: separated by colons;
// those that are not absolute are passed by).
[[nodiscard]] std::optional<std::string> find_program(std::string_view name,
                                                      const std::string& path);
// The same in this process's PATH.
[[nodiscard]] std::optional<std::string> find_program(std::string_view name);

// A program of wsync: beside this executable, else in PATH. kNotFound says where it was looked for
// and which package has it.
[[nodiscard]] Result<std::string> find_wsync_program(std::string_view name);

// Runs a program of wsync in place of this one: same process, descriptors and environment.
// `arguments` without the program's name. Returns only when that was not possible: the errors of
// find_wsync_program(), or kIo. Thread: the only one of the process.
[[nodiscard]] Error become_wsync_program(std::string_view name,
                                         const std::vector<std::string>& arguments);

}  // namespace wsync::cli
