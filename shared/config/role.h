// Code shared by the configurations of all roles: how they are read, and common groups of keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/config/binder.h"
#include "shared/config/document.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/http_config.h"
#include "shared/config/limits.h"
#include "shared/config/log_config.h"
#include "shared/config/memory_config.h"
#include "shared/config/network_config.h"
#include "shared/config/sources.h"

namespace wsync::config {

struct TrainerConfig;

// 0 = never.
inline constexpr Range<Milliseconds> kIdleRelease{Milliseconds(0), Milliseconds(kDurationMsMax)};
inline constexpr Range<Milliseconds> kFollowInterval{Milliseconds(10),
                                                     Milliseconds(kDurationMsMax)};
inline constexpr Range<Milliseconds> kForgetAfter{Milliseconds(0), Milliseconds(kDurationMsMax)};
inline constexpr Range<Milliseconds> kDeadline{Milliseconds(1), Milliseconds(kDurationMsMax)};

// A Unix socket path holds at most 107 bytes. This bound leaves room for the socket names in
// run_dir.
inline constexpr std::size_t kRunDirBytesMax = 72;

// This value means the same as an omitted key.
inline constexpr std::string_view kAutoText = "auto";

// The only key that accepts a YAML list.
inline constexpr std::string_view kListKey = "devices.gpus";

// Returns the text of the file. Errors: kNotFound; kInvalidInput for an unreadable file or for
// anything but a regular file.
[[nodiscard]] Result<std::string> read_config_file(const std::string& path);

// Binds a text. "auto" yields an empty text, like an omitted key.
void text_or_auto(Binder& binder, std::string_view key, std::string& out);
// Binds an address that must pass `check`.
void bind_address(Binder& binder, std::string_view key, std::string& out,
                  Result<> (*check)(std::string_view));
// Binds an absolute path of at most `max_bytes`. An omitted key yields `otherwise`.
void bind_directory(Binder& binder, std::string_view key, std::string& out,
                    const std::string& otherwise, std::size_t max_bytes);
// Binds the path of a key file or of a folder of keys: absolute, or empty for none.
void bind_key_path(Binder& binder, std::string_view key, std::string& out);
void bind_pause_mode(Binder& binder, std::string_view key, PauseMode& out);
// Refuses an address beyond this host in a configuration without keys.
void refuse_without_keys(Binder& binder, std::string_view key, const std::string& address,
                         bool has_keys);
// Binds the keys transport, data_address, advertise and data_security, and checks that they go
// together. `transport`: a kind of shared/transport; "auto" yields an empty text. `has_keys`: the
// configuration names a key or a folder of keys.
void bind_network(Binder& binder, NetworkConfig& network, bool has_keys);
// Binds the keys http.*. For the address, "none" yields an empty one and "auto" the socket
// `name`.http in `run_dir`. An address beyond this host needs a token.
void bind_http(Binder& binder, HttpConfig& out, const std::string& run_dir,
               const std::string& name);
void bind_trace(Binder& binder, std::string& file, std::uint32_t& spans);
// Binds the key fleet, which is a folder name.
void bind_fleet(Binder& binder, std::string& out);
// Binds the keys follow_directory and follow_interval.
void bind_follow(Binder& binder, std::string& directory, Milliseconds& interval);
void bind_heartbeat(Binder& binder, HeartbeatConfig& heartbeat);
// Binds the keys memory.*.
void bind_memory(Binder& binder, MemoryConfig& memory);
void bind_log(Binder& binder, LogConfig& log);
// Binds every key of a publishing trainer except checkpoint, watch, follow_*, log and
// trace_file.
void bind_publisher(Binder& binder, TrainerConfig& trainer);

// Declares the keys of a role and checks the constraints between them.
template <class Config>
using Bind = void (*)(Binder& binder, Config& config);

template <class Config>
[[nodiscard]] Result<Config> parse_role(Bind<Config> bind, std::string_view text,
                                        std::string_view name, const Sources& sources) {
  auto entries = WSYNC_TRY(parse_document(text, name, {std::string(kListKey)}));
  Binder binder(std::move(entries), sources.set, sources.environment, sources.set_name);
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
