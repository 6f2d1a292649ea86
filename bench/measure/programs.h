// Programs of others that benchmarks start.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace wsync::bench {

// The first executable file of that name in the folders of `path` (as PATH: separated by colons;
// those that are not absolute are passed by).
[[nodiscard]] std::optional<std::string> find_program(std::string_view name,
                                                      const std::string& path);
// The same in this process's PATH.
[[nodiscard]] std::optional<std::string> find_program(std::string_view name);

}  // namespace wsync::bench
