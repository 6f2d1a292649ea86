// What the configurations of all roles share: how they are read, and groups of keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/config/binder.h"
#include "shared/config/document.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/limits.h"
#include "shared/config/log_config.h"
#include "shared/config/sources.h"

namespace wsync::config {

struct TrainerConfig;

inline constexpr Range<Milliseconds> kDeadline{Milliseconds(1), Milliseconds(kDurationMsMax)};

// Names of sockets in a run_dir are at most this much shorter than the 107 bytes of a socket's
// path.
inline constexpr std::size_t kRunDirBytesMax = 72;

// The value that means the same as a key that is left out.
inline constexpr std::string_view kAutoText = "auto";

// The one key that takes a YAML list.
inline constexpr std::string_view kListKey = "devices.gpus";

// kNotFound, or kInvalidInput for what cannot be read or is no file.
[[nodiscard]] Result<std::string> read_config_file(const std::string& path);

// "auto" means the same as a key that is left out.
void text_or_auto(Binder& binder, std::string_view key, std::string& out);
// An address that `check` accepts.
void bind_address(Binder& binder, std::string_view key, std::string& out,
                  Result<> (*check)(std::string_view));
// An absolute path of at most `most_bytes`; `otherwise` where the key is left out.
void bind_directory(Binder& binder, std::string_view key, std::string& out,
                    const std::string& otherwise, std::size_t max_bytes);
void bind_pause_mode(Binder& binder, std::string_view key, PauseMode& out);
// The keys transport and data_address.
void bind_transport(Binder& binder, TransportPolicy& transport, std::string& data_address);
// The key http.address. "none" becomes empty, "auto" a socket called `name`.http in `run_dir`.
void bind_http(Binder& binder, std::string& out, const std::string& run_dir,
               const std::string& name);
void bind_trace(Binder& binder, std::string& file, std::uint32_t& spans);
// The key fleet, which names a folder.
void bind_fleet(Binder& binder, std::string& out);
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
