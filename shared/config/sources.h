// Where the values of a configuration come from.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace wsync::config {

// Where values come from; a later one rules over an earlier: file, environment, set.
struct Sources {
  std::string file;                                // empty = none
  std::map<std::string, std::string> environment;  // WSYNC_A_B -> value of a.b
  std::vector<std::string> set;                    // "a.b=c"
};
// The WSYNC_* variables of this process that may be keys.
[[nodiscard]] std::map<std::string, std::string> process_environment();

// A sentence for each WSYNC_ variable that names no key of any role, a training run included: it
// has no effect.
[[nodiscard]] std::vector<std::string> unknown_variables(
    const std::map<std::string, std::string>& environment);

}  // namespace wsync::config
