// A configuration as it may leave the host: the values of keys that wsync knows and that are no
// secret; of everything else only that it is there.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::cli {

struct ShownConfig {
  std::string text;                           // "a.b: value" lines; no comments of the file
  std::map<std::string, std::string> values;  // as given, for this process alone: not to be shown
};

// Of a YAML text. Names of keys that wsync does not know are shown and their values are not, nor is
// the value of a key whose name says that it is secret; of a URL the user, the password and the
// query are left out. kInvalidInput without the reason, which could tell a value.
[[nodiscard]] Result<ShownConfig> shown_config(std::string_view text, std::string_view name);
// The same of variables (WSYNC_A_B).
[[nodiscard]] std::string shown_environment(const std::map<std::string, std::string>& variables);
// A value without the user, password and query of each URL in it.
[[nodiscard]] std::string without_credentials(std::string_view value);

}  // namespace wsync::cli
