#include "shared/config/role.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/numa.h"
#include "shared/base/tcp_address.h"
#include "shared/base/unique_fd.h"
#include "shared/config/address.h"
#include "shared/config/limits.h"
#include "shared/transport/make_transport.h"

namespace wsync::config {
namespace {

constexpr std::size_t kFleetNameBytes = 64;

}  // namespace

Result<std::string> read_config_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // A missing or unreadable file is bad input, not a system failure.
  const auto cannot_read = [&path](int error) {
    const Error found = fail_errno("cannot read config file " + path, error).value();
    const bool missing = found.code() == ErrorCode::kNotFound;
    return fail(missing ? ErrorCode::kNotFound : ErrorCode::kInvalidInput, found.message());
  };
  if (!fd.valid()) return cannot_read(errno);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return cannot_read(errno);
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::kInvalidInput, path + ": expected a file of YAML, found something else");
  std::string text;
  char block[4096];
  for (;;) {
    const ssize_t n = ::read(fd.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_read(errno);
    // One byte over the limit is enough for the parser to refuse it.
    if (n == 0 || text.size() > kConfigBytesMax) return text;
    text.append(block, static_cast<std::size_t>(n));
  }
}

void text_or_auto(Binder& binder, std::string_view key, std::string& out) {
  binder.text(key, out);
  if (out == kAutoText) out.clear();
}

void bind_address(Binder& binder, std::string_view key, std::string& out,
                  Result<> (*check)(std::string_view)) {
  text_or_auto(binder, key, out);
  if (out.empty()) return;
  if (const Result<> checked = check(out); !checked) binder.refuse(key, checked.error().message());
}

void bind_directory(Binder& binder, std::string_view key, std::string& out,
                    const std::string& otherwise, std::size_t max_bytes) {
  text_or_auto(binder, key, out);
  if (out.empty()) out = otherwise;
  if (out.front() != '/')
    binder.refuse(key, fmt::format("expected an absolute path, found '{}'", out));
  else if (out.size() > max_bytes)
    binder.refuse(key,
                  fmt::format("expected a path of at most {} bytes (socket names are limited), "
                              "found {} bytes: '{}'",
                              max_bytes, out.size(), out));
}

void bind_key_path(Binder& binder, std::string_view key, std::string& out) {
  binder.text(key, out);
  if (!out.empty() && (out.front() != '/' || out.size() > kConfigPathBytesMax))
    binder.refuse(key, fmt::format("expected an absolute path of at most {} bytes, found '{}'",
                                   kConfigPathBytesMax, out));
}

void bind_pause_mode(Binder& binder, std::string_view key, PauseMode& out) {
  binder.choice(
      key, out,
      {{"abort", PauseMode::kAbort}, {"wait", PauseMode::kWait}, {"keep", PauseMode::kKeep}});
}

void refuse_without_keys(Binder& binder, std::string_view key, const std::string& address,
                         bool has_keys) {
  if (!has_keys && is_beyond_this_host(address))
    binder.refuse(key, fmt::format("'{}' is not a loopback address, and without keys everybody who "
                                   "reaches it could take part: make keys with `wsync keys init` "
                                   "and `wsync keys add`, and set `keys` (coordinator) and `key` "
                                   "(sidecar)",
                                   address));
}

void bind_network(Binder& binder, NetworkConfig& network, bool has_keys) {
  if (const std::optional<Entry> entry = binder.take("transport"); entry) {
    const bool is_auto = entry->value == kAutoText;
    network.transport = is_auto ? std::string() : entry->value;
    // An empty value is refused: it may come from a variable that a script has not set.
    if (!is_auto && transport::find_transport_kind(entry->value) == nullptr)
      binder.refuse(*entry, fmt::format("expected one of {}, {}, found '{}'", kAutoText,
                                        transport::transport_kind_names(), entry->value));
  }
  bind_address(binder, "data_address", network.data_address, check_data_address);
  bind_address(binder, "advertise", network.advertise, check_advertised_host);
  binder.choice("data_security", network.data_security,
                {{"tls", DataSecurity::kTls}, {"trusted_network", DataSecurity::kTrustedNetwork}});
  refuse_without_keys(binder, "data_address", network.data_address, has_keys);

  const bool is_beyond = is_beyond_this_host(network.data_address);
  const bool is_trusted = network.data_security == DataSecurity::kTrustedNetwork;
  if (!is_beyond && !network.advertise.empty())
    binder.refuse(
        "advertise",
        fmt::format("expected '' with the data_address {}, which other hosts do not reach, "
                    "found '{}'",
                    network.data_address, network.advertise));
  if (const auto address = parse_tcp_address(network.data_address);
      address && address->is_any() && network.advertise.empty())
    binder.refuse("advertise",
                  fmt::format("data_address {} means every address of this host: name the one by "
                              "which others reach it",
                              network.data_address));
  if (network.transport == "tls" && (is_trusted || !has_keys))
    binder.refuse("transport", is_trusted ? "tls is for data_security: tls"
                                          : "tls needs keys: make them with `wsync keys init`");
  if (network.transport == "tcp" && is_beyond && !is_trusted)
    binder.refuse(
        "transport",
        "tcp does not encrypt: choose auto or tls, or set data_security: trusted_network");
}

void bind_http(Binder& binder, HttpConfig& out, const std::string& run_dir,
               const std::string& name) {
  constexpr std::string_view kKey = "http.address";
  text_or_auto(binder, kKey, out.address);
  bind_key_path(binder, "http.token", out.token);
  binder.choice("http.open", out.open,
                {{"none", OpenPages::kNone}, {"metrics", OpenPages::kMetrics}});
  if (out.token.empty() && out.open != OpenPages::kNone)
    binder.refuse("http.open",
                  "expected none, because without http.token every page is open; found metrics");
  if (out.address.empty())
    out.address = fmt::format("ipc://{}/{}.http", run_dir, name);
  else if (out.address == "none")
    out.address.clear();
  else if (const Result<> checked = check_pages_address(out.address, !out.token.empty()); !checked)
    binder.refuse(kKey, checked.error().message());
}

void bind_trace(Binder& binder, std::string& file, std::uint32_t& spans) {
  binder.text("trace_file", file);
  binder.count("trace_spans", spans, {0, kTraceSpansMax});
  if (spans == 0 && !file.empty())
    binder.refuse("trace_spans",
                  "expected 1 or more with trace_file, found 0: nothing would be kept "
                  "to be written");
}

void bind_follow(Binder& binder, std::string& directory, Milliseconds& interval) {
  binder.text("follow_directory", directory);
  binder.duration("follow_interval", interval, kFollowInterval);
}

void bind_fleet(Binder& binder, std::string& out) {
  const std::optional<Entry> entry = binder.take("fleet");
  if (!entry) return;
  const bool good = !entry->value.empty() && entry->value.size() <= kFleetNameBytes &&
                    entry->value[0] != '.' &&
                    std::all_of(entry->value.begin(), entry->value.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                    });
  if (!good)
    return binder.refuse(*entry,
                         fmt::format("expected 1 to {} letters, digits, '-', '_' and '.', not "
                                     "beginning with a '.', found '{}'",
                                     kFleetNameBytes, entry->value));
  out = entry->value;
}

void bind_memory(Binder& binder, MemoryConfig& memory) {
  binder.choice("memory.huge_pages", memory.huge_pages,
                {{"off", HugePages::kOff},
                 {"advise", HugePages::kAdvise},
                 {"explicit", HugePages::kExplicit}});
  const std::optional<Entry> entry = binder.take("memory.numa_node");
  if (!entry || entry->value == kAutoText) return;
  memory.near_gpus = false;
  if (entry->value == "off") return;
  std::uint32_t node = 0;
  const std::string& text = entry->value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), node);
  if (error != std::errc{} || end != text.data() + text.size() || node >= kNumaNodesMax)
    return binder.refuse(*entry, fmt::format("expected auto, off or the number of a node from 0 to "
                                             "{}, found '{}'",
                                             kNumaNodesMax - 1, text));
  memory.numa_node = node;
}

void bind_log(Binder& binder, LogConfig& log) {
  binder.choice("log.level", log.level,
                {{"debug", LogLevel::kDebug},
                 {"info", LogLevel::kInfo},
                 {"warning", LogLevel::kWarning},
                 {"error", LogLevel::kError},
                 {"off", LogLevel::kOff}});
  binder.choice("log.format", log.format,
                {{"human", LogFormat::kHuman}, {"json", LogFormat::kJson}});
}

void bind_heartbeat(Binder& binder, HeartbeatConfig& heartbeat) {
  binder.duration("heartbeat.interval", heartbeat.interval, kDeadline);
  binder.duration("heartbeat.deadline", heartbeat.deadline, kDeadline);
  if (heartbeat.deadline < 2 * heartbeat.interval)
    binder.refuse("heartbeat.deadline",
                  fmt::format("expected at least twice heartbeat.interval ({} ms), found {} ms",
                              heartbeat.interval.count(), heartbeat.deadline.count()));
}

}  // namespace wsync::config
