// Prepares a configuration for sharing outside of the host. It shows the values of keys that wsync
// knows and that are not secret. For all other keys it shows only that they exist.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::cli {

struct ShownConfig {
  std::string text;  // "a.b: value" lines, without the file's comments
  // Unmodified values, for use in this process. Do not show them.
  std::map<std::string, std::string> values;
};

// Reads a YAML text. Withholds the values of keys that wsync does not know or whose name marks them
// as secret. Removes user, password and query from URLs. kInvalidInput does not include the reason,
// because it could reveal a value.
[[nodiscard]] Result<ShownConfig> shown_config(std::string_view text, std::string_view name);
// As shown_config(), for environment variables (WSYNC_A_B).
[[nodiscard]] std::string shown_environment(const std::map<std::string, std::string>& variables);
// Removes user, password and query from each URL in a value.
[[nodiscard]] std::string without_credentials(std::string_view value);

}  // namespace wsync::cli
