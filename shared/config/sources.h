// The sources of configuration values.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace wsync::config {

// The sources of configuration values. Precedence, lowest first: file, environment, set.
struct Sources {
  std::string file;                                // empty = none
  std::map<std::string, std::string> environment;  // WSYNC_A_B -> value of a.b
  std::vector<std::string> set;                    // "a.b=c"
  std::string set_name = "--set";                  // what errors call `set`
};
// Returns the WSYNC_* variables of this process that may be keys.
[[nodiscard]] std::map<std::string, std::string> process_environment();

// Returns one sentence for each WSYNC_ variable that matches no key of any role (training runs
// included) and therefore has no effect.
[[nodiscard]] std::vector<std::string> unknown_variables(
    const std::map<std::string, std::string>& environment);

}  // namespace wsync::config
