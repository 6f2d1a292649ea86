#include "shared/config/config.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/unique_fd.h"
#include "shared/config/address.h"
#include "shared/config/binder.h"
#include "shared/config/role.h"
#include "shared/config/train_config.h"
#include "shared/config/units.h"

namespace wsync::config {
namespace {

constexpr Range<Milliseconds> kStaleness{Milliseconds(0), Milliseconds(limits::kConfigDurationMs)};
constexpr std::string_view kAutoText = "auto";
// Socket names below it are at most this much longer, and a socket's path holds 107 bytes.
constexpr std::size_t kRunDirBytes = 72;
constexpr std::size_t kFleetNameBytes = 64;

// "auto" is the same as leaving the key out.
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
                    const std::string& otherwise, std::size_t most_bytes) {
  text_or_auto(binder, key, out);
  if (out.empty()) out = otherwise;
  if (out.front() != '/')
    binder.refuse(key, fmt::format("expected an absolute path, found '{}'", out));
  else if (out.size() > most_bytes)
    binder.refuse(key,
                  fmt::format("expected a path of at most {} bytes (socket names are limited), "
                              "found {} bytes: '{}'",
                              most_bytes, out.size(), out));
}

void bind_pause_mode(Binder& binder, std::string_view key, PauseMode& out) {
  binder.choice(
      key, out,
      {{"abort", PauseMode::kAbort}, {"wait", PauseMode::kWait}, {"keep", PauseMode::kKeep}});
}

void bind_transport(Binder& binder, TransportPolicy& transport, std::string& data_address) {
  binder.choice("transport", transport,
                {{"auto", TransportPolicy::kAuto},
                 {"memfd", TransportPolicy::kMemfd},
                 {"tcp", TransportPolicy::kTcp}});
  bind_address(binder, "data_address", data_address, check_data_address);
}

// Of metrics and health: "none" is empty, "auto" a socket of this name below the run_dir.
void bind_http(Binder& binder, std::string& out, const std::string& run_dir,
               const std::string& name) {
  constexpr std::string_view kKey = "http.address";
  text_or_auto(binder, kKey, out);
  if (out.empty())
    out = fmt::format("ipc://{}/{}.http", run_dir, name);
  else if (out == "none")
    out.clear();
  else if (const Result<> checked = check_control_address(out); !checked)
    binder.refuse(kKey, checked.error().message());
}

void bind_name(Binder& binder, std::string& name) {
  text_or_auto(binder, "name", name);
  if (name.empty()) {
    name = host_name();
    return;  // no choice of the user: taken as it is
  }
  // The name is part of file names and log lines.
  if (name.size() > limits::kReplicaNameBytes || name.find('/') != std::string::npos)
    binder.refuse("name", fmt::format("expected at most {} characters and no '/', found '{}'",
                                      limits::kReplicaNameBytes, name));
}

// The GPU of each device: "auto", or indices with commas between them, in brackets or not.
void bind_gpus(Binder& binder, DevicesConfig& devices) {
  constexpr std::string_view kKey = "devices.gpus";
  std::vector<std::string> words;
  binder.words(kKey, words);
  const bool automatic = words.empty() || (words.size() == 1 && words[0] == kAutoText);
  if (devices.kind != DeviceKind::kCuda) {
    if (!automatic)
      binder.refuse(kKey, "host devices have no GPU: leave it out, or choose devices.kind: cuda");
    return;
  }
  if (automatic) {
    for (std::uint32_t gpu = 0; gpu < devices.count; ++gpu) devices.gpus.push_back(gpu);
    return;
  }
  if (words.front().starts_with('[') && words.back().ends_with(']')) {
    words.front().erase(0, 1);
    words.back().pop_back();
    std::erase(words, std::string());
  }
  for (const std::string& word : words) {
    std::uint32_t gpu = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), gpu);
    if (error != std::errc{} || end != word.data() + word.size() || gpu >= limits::kDeviceCount)
      return binder.refuse(kKey, fmt::format("expected auto or indices of GPUs from 0 to {}, such "
                                             "as [0, 1], found '{}'",
                                             limits::kDeviceCount - 1, word));
    devices.gpus.push_back(gpu);
  }
  if (devices.gpus.empty() || devices.gpus.size() > limits::kDeviceCount)
    return binder.refuse(kKey, fmt::format("expected 1 to {} indices, found {}",
                                           limits::kDeviceCount, devices.gpus.size()));
  devices.count = static_cast<std::uint32_t>(devices.gpus.size());
  devices.gpus_named = true;
}

void bind_devices(Binder& binder, DevicesConfig& devices) {
  binder.choice("devices.kind", devices.kind,
                {{"unified", DeviceKind::kUnified},
                 {"separate", DeviceKind::kSeparate},
                 {"cuda", DeviceKind::kCuda}});
  binder.count("devices.count", devices.count, {1, limits::kDeviceCount});
  bind_gpus(binder, devices);
  binder.size_or_auto("devices.buffer_bytes", devices.buffer_bytes,
                      {limits::kBucketBytesMin, limits::kBucketBytesMax});
  binder.flag("devices.keep_buffers", devices.keep_buffers);
  binder.choice(
      "devices.collective", devices.collective,
      {{"auto", Collective::kAuto}, {"nccl", Collective::kNccl}, {"local", Collective::kLocal}});
  if (!devices.keep_buffers && devices.kind != DeviceKind::kCuda)
    binder.refuse("devices.keep_buffers",
                  "false is for GPUs: leave it out, or set devices.kind: cuda");
  if (devices.collective != Collective::kNccl) return;
  const std::set<std::uint32_t> different(devices.gpus.begin(), devices.gpus.end());
  if (devices.kind != DeviceKind::kCuda)
    binder.refuse("devices.collective",
                  "nccl is for GPUs: choose auto or local, or devices.kind: cuda");
  else if (devices.count < 2)
    binder.refuse("devices.collective",
                  "nccl is for several GPUs: choose auto or local for one device");
  else if (different.size() < devices.gpus.size())
    binder.refuse("devices.collective",
                  "nccl takes each GPU once, and devices.gpus names one several times: choose auto "
                  "or local");
}

void bind_trace(Binder& binder, std::string& file, std::uint32_t& spans) {
  binder.text("trace_file", file);
  binder.count("trace_spans", spans, {0, limits::kTraceSpans});
  if (spans == 0 && !file.empty())
    binder.refuse("trace_spans",
                  "expected 1 or more with trace_file, found 0: nothing would be kept "
                  "to be written");
}

// It names a folder.
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

void bind_fleet_id(Binder& binder, std::string& out) {
  const std::optional<Entry> entry = binder.take("fleet_id");
  if (!entry) return;
  if (entry->value == "auto") {
    out.clear();
  } else if (const auto id = Digest::parse(entry->value); !id || *id == Digest{}) {
    binder.refuse(*entry, fmt::format("expected auto or 32 hex digits that are not all zero, found "
                                      "'{}'; `wsync status --json` shows the id of a fleet",
                                      entry->value));
  } else {
    out = entry->value;
  }
}

void bind_sidecar(Binder& binder, SidecarConfig& c) {
  bind_name(binder, c.name);
  bind_address(binder, "coordinator", c.coordinator, check_control_address);
  bind_directory(binder, "run_dir", c.run_dir, default_run_dir(), kRunDirBytes);
  bind_directory(binder, "state_dir", c.state_dir, default_state_dir(), limits::kConfigPathBytes);
  bind_fleet(binder, c.fleet);
  if (c.coordinator.empty()) c.coordinator = "ipc://" + c.run_dir + "/control";
  bind_devices(binder, c.devices);
  binder.choice("stages", c.stages,
                {{"auto", Stages::kAuto}, {"2", Stages::kTwo}, {"3", Stages::kThree}});
  binder.size_or_auto("host_memory", c.host_memory, {limits::kMiB, limits::kModelBytesMax});
  binder.count("versions_held", c.versions_held,
               {limits::kVersionsHeldMin, limits::kConfigVersionsHeld});
  bind_transport(binder, c.transport, c.data_address);
  bind_heartbeat(binder, c.heartbeat);
  binder.duration("deadlines.pause", c.deadlines.pause, kDeadline);
  binder.duration("deadlines.load", c.deadlines.load, kDeadline);
  binder.duration("deadlines.commit", c.deadlines.commit, kDeadline);
  bind_pause_mode(binder, "fallback_pause_mode", c.fallback_pause_mode);
  binder.duration("max_staleness", c.max_staleness, kStaleness);
  bind_http(binder, c.http_address, c.run_dir, c.name);
  bind_log(binder, c.log);
  bind_trace(binder, c.trace_file, c.trace_spans);
}

void bind_commit(Binder& binder, CommitPolicy& out) {
  const std::optional<Entry> entry = binder.take("commit");
  if (!entry) return;
  const Result<CommitPolicy> policy = parse_commit_policy(entry->value);
  if (policy)
    out = *policy;
  else
    binder.refuse(*entry, policy.error().message());
}

void bind_trainer(Binder& binder, TrainerConfig& c) {
  binder.text("checkpoint", c.checkpoint);
  binder.flag("watch", c.watch);
  bind_publisher(binder, c);
  bind_log(binder, c.log);
  bind_trace(binder, c.trace_file, c.trace_spans);
}

}  // namespace

Result<std::string> read_config_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // Not there or not to be read: bad input, not a failure of the system.
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
    if (n == 0 || text.size() > limits::kConfigBytes) return text;
    text.append(block, static_cast<std::size_t>(n));
  }
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

void bind_publisher(Binder& binder, TrainerConfig& c) {
  bind_address(binder, "listen", c.listen, check_control_address);
  bind_directory(binder, "run_dir", c.run_dir, default_run_dir(), kRunDirBytes);
  bind_directory(binder, "state_dir", c.state_dir, default_state_dir(), limits::kConfigPathBytes);
  bind_fleet(binder, c.fleet);
  bind_fleet_id(binder, c.fleet_id);
  if (c.listen.empty()) c.listen = "ipc://" + c.run_dir + "/control";
  bind_commit(binder, c.commit);
  binder.count("min_replicas", c.min_replicas, {1, limits::kReplicaCount});
  binder.count("min_sidecars", c.min_sidecars, {0, limits::kSidecarCount});
  binder.size("bucket_bytes", c.bucket_bytes, {limits::kBucketBytesMin, limits::kBucketBytesMax});
  if (c.bucket_bytes % limits::kLeafBytes != 0)
    binder.refuse("bucket_bytes", fmt::format("expected a multiple of {} bytes, found {}",
                                              limits::kLeafBytes, c.bucket_bytes));
  binder.count("arenas", c.arenas, {limits::kConfigArenasMin, limits::kConfigArenas});
  bind_transport(binder, c.transport, c.data_address);
  if (c.transport != TransportPolicy::kTcp && c.arenas < limits::kArenasOfSharingHost)
    binder.refuse("arenas",
                  fmt::format("expected {} or more, found {}: sidecars of this host map the target "
                              "and the version before it while the next one is made (fewer need "
                              "transport: tcp)",
                              limits::kArenasOfSharingHost, c.arenas));
  bind_pause_mode(binder, "pause_mode", c.pause_mode);
  bind_heartbeat(binder, c.heartbeat);
  binder.duration("deadlines.gather", c.deadlines.gather, kDeadline);
  binder.duration("deadlines.announce", c.deadlines.announce, kDeadline);
  binder.duration("deadlines.stage", c.deadlines.stage, kDeadline);
  binder.duration("deadlines.pause", c.deadlines.pause, kDeadline);
  binder.duration("deadlines.load", c.deadlines.load, kDeadline);
  binder.duration("deadlines.commit", c.deadlines.commit, kDeadline);
  binder.duration("deadlines.publish", c.deadlines.publish, kDeadline);
  binder.flag("take_over", c.take_over);
  bind_http(binder, c.http_address, c.run_dir, "control");
}

std::map<std::string, std::string> process_environment() {
  std::map<std::string, std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::size_t equals = text.find('=');
    // Of the tests (fail_point.h), and of what finds libraries (cuda_library.h): no keys.
    if (text.starts_with("WSYNC_FAIL_POINT=") || text.starts_with("WSYNC_CUDA_LIBRARY=") ||
        text.starts_with("WSYNC_NCCL_LIBRARY="))
      continue;
    if (text.starts_with("WSYNC_") && equals != std::string_view::npos)
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

Result<SidecarConfig> load_sidecar(const Sources& sources) {
  return load_role(bind_sidecar, sources);
}
Result<TrainerConfig> load_trainer(const Sources& sources) {
  return load_role(bind_trainer, sources);
}
Result<SidecarConfig> parse_sidecar(std::string_view text, std::string_view name,
                                    const Sources& sources) {
  return parse_role(bind_sidecar, text, name, sources);
}
Result<TrainerConfig> parse_trainer(std::string_view text, std::string_view name,
                                    const Sources& sources) {
  return parse_role(bind_trainer, text, name, sources);
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

std::vector<std::string> sidecar_keys() { return keys_of_role(bind_sidecar); }
std::vector<std::string> trainer_keys() { return keys_of_role(bind_trainer); }

std::string default_run_dir() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/wsync";
  return fmt::format("/tmp/wsync-{}", ::getuid());
}

std::string default_state_dir() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return std::string(state) + "/wsync";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.local/state/wsync";
  return "/var/lib/wsync";
}

Result<CommitPolicy> parse_commit_policy(std::string_view text) {
  constexpr std::string_view kQuorum = "quorum:";
  if (text == "all") return CommitPolicy{};
  if (text == "each") return CommitPolicy{.rule = CommitRule::kEach};
  if (text.starts_with(kQuorum)) {
    const std::string_view number = text.substr(kQuorum.size());
    std::uint32_t quorum = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), quorum);
    if (error == std::errc{} && end == number.data() + number.size() && quorum >= 1 &&
        quorum <= limits::kReplicaCount)
      return CommitPolicy{.rule = CommitRule::kQuorum, .quorum = quorum};
  }
  return fail(ErrorCode::kInvalidInput,
              fmt::format("expected all, each or quorum:N (N from 1 to {}), found '{}'",
                          limits::kReplicaCount, text));
}

}  // namespace wsync::config
