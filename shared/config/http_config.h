// The pages of a process over HTTP: the keys http.*.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wsync::config {

// Which pages need no token, beside /healthz and /readyz.
enum class OpenPages : std::uint8_t { kNone, kMetrics };

struct HttpConfig {
  std::string address;  // default ipc://<run_dir>/<name>.http; empty = none
  std::string token;    // file with the token that clients must show; empty = none
  OpenPages open = OpenPages::kNone;
  // Paths that `open` names.
  [[nodiscard]] std::vector<std::string> open_paths() const {
    if (open == OpenPages::kMetrics) return {"/metrics"};
    return {};
  }
  friend bool operator==(const HttpConfig&, const HttpConfig&) = default;
};

}  // namespace wsync::config
