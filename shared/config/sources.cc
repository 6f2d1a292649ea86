#include "shared/config/sources.h"

#include <algorithm>
#include <string_view>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/config/binder.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/train_config.h"
#include "shared/config/trainer_config.h"
#include "shared/config/units.h"

namespace wsync::config {

std::map<std::string, std::string> process_environment() {
  std::map<std::string, std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::size_t equals = text.find('=');
    // These variables are not configuration keys: they belong to the tests (fail_point.h) and to
    // the library lookup (cuda_library.h).
    if (text.starts_with("WSYNC_FAIL_POINT=") || text.starts_with("WSYNC_CUDA_LIBRARY=") ||
        text.starts_with("WSYNC_NCCL_LIBRARY="))
      continue;
    if (text.starts_with("WSYNC_") && equals != std::string_view::npos)
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

std::vector<std::string> unknown_variables(const std::map<std::string, std::string>& environment) {
  std::vector<std::string> names;
  for (const auto& role : {sidecar_keys(), trainer_keys(), train_keys()})
    for (const std::string& key : role) names.push_back(environment_name(key));
  std::vector<std::string> sentences;
  for (const auto& [name, value] : environment) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string nearest = nearest_name(name, names);
    sentences.push_back(
        fmt::format("the environment sets {}, which is no key and has no effect{}", name,
                    nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  }
  return sentences;
}

}  // namespace wsync::config
