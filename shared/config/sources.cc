#include "shared/config/sources.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/config/binder.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/train_config.h"
#include "shared/config/trainer_config.h"
#include "shared/config/units.h"

namespace wsync::config {

namespace {

// Not configuration keys. They belong to the tests (fail_point.h), to the library lookup
// (cuda_library.h), and to engines that the Python package attaches (wsync/vllm/settings.py).
constexpr std::array<std::string_view, 7> kOtherVariables{
    "WSYNC_FAIL_POINT",     "WSYNC_CUDA_LIBRARY", "WSYNC_NCCL_LIBRARY",  "WSYNC_ENGINE_SOCKET",
    "WSYNC_ENGINE_REPLICA", "WSYNC_ENGINE_CACHE", "WSYNC_ENGINE_START_S"};

}  // namespace

std::map<std::string, std::string> process_environment() {
  std::map<std::string, std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::size_t equals = text.find('=');
    if (std::ranges::any_of(kOtherVariables, [&](std::string_view other) {
          return text.substr(0, equals) == other;
        }))
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
        fmt::format("the environment sets {}, which is not a configuration key and has no effect{}",
                    name, nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  }
  return sentences;
}

}  // namespace wsync::config
