// What the configurations of all roles share: how they are read, and groups of keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/limits.h"
#include "shared/config/binder.h"
#include "shared/config/config.h"
#include "shared/config/document.h"

namespace wsync::config {

inline constexpr Range<Milliseconds> kDeadline{Milliseconds(1),
                                               Milliseconds(limits::kConfigDurationMs)};

// The one key that takes a YAML list.
inline constexpr std::string_view kListKey = "devices.gpus";

// kNotFound, or kInvalidInput for what cannot be read or is no file.
[[nodiscard]] Result<std::string> read_config_file(const std::string& path);

void bind_heartbeat(Binder& binder, HeartbeatConfig& heartbeat);
void bind_log(Binder& binder, LogConfig& log);
// Every key of a trainer that publishes, but checkpoint, watch, log and trace_file.
void bind_publisher(Binder& binder, TrainerConfig& trainer);

// Declares the keys of a role and checks what they say together.
template <class Config>
using Bind = void (*)(Binder& binder, Config& config);

template <class Config>
[[nodiscard]] Result<Config> parse_role(Bind<Config> bind, std::string_view text,
                                        std::string_view name, const Sources& sources) {
  auto entries = WSYNC_TRY(parse_document(text, name, {std::string(kListKey)}));
  Binder binder(std::move(entries), sources.set, sources.environment);
  Config config;
  bind(binder, config);
  WSYNC_TRY(binder.finish());
  return config;
}

template <class Config>
[[nodiscard]] Result<Config> load_role(Bind<Config> bind, const Sources& sources) {
  if (sources.file.empty()) return parse_role(bind, "", "", sources);
  const auto text = WSYNC_TRY(read_config_file(sources.file));
  return parse_role(bind, text, sources.file, sources);
}

template <class Config>
[[nodiscard]] std::vector<std::string> keys_of_role(Bind<Config> bind) {
  Binder binder({}, {}, {});
  Config config;
  bind(binder, config);
  return binder.keys();
}

}  // namespace wsync::config
