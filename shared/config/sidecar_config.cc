#include "shared/config/sidecar_config.h"

#include <charconv>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/config/address.h"
#include "shared/config/binder.h"
#include "shared/config/directories.h"
#include "shared/config/limits.h"
#include "shared/config/role.h"

namespace wsync::config {
namespace {

constexpr Range<double> kPatchShare{0.001, 1.0};
constexpr Range<double> kScrubShare{0.0001, 1.0};
constexpr Range<Milliseconds> kScrubInterval{Milliseconds(0), Milliseconds(kDurationMsMax)};
constexpr Range<Milliseconds> kStaleness{Milliseconds(0), Milliseconds(kDurationMsMax)};

void bind_name(Binder& binder, std::string& name) {
  text_or_auto(binder, "name", name);
  if (name.empty()) {
    name = host_name();
    return;  // The user did not choose the default, so it is not checked.
  }
  // The name becomes part of file names and log lines.
  if (name.size() > limits::kReplicaNameBytes || name.find('/') != std::string::npos)
    binder.refuse("name", fmt::format("expected at most {} characters and no '/', found '{}'",
                                      limits::kReplicaNameBytes, name));
}

// Binds the GPU of each device: "auto", or indices separated by commas, optionally in brackets.
void bind_gpus(Binder& binder, DevicesConfig& devices) {
  constexpr std::string_view kKey = "devices.gpus";
  std::vector<std::string> words;
  binder.words(kKey, words);
  const bool automatic = words.empty() || (words.size() == 1 && words[0] == kAutoText);
  if (devices.kind != DeviceKind::kCuda) {
    if (!automatic)
      binder.refuse(kKey,
                    "host devices have no GPU: leave this key out, or set devices.kind: cuda");
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
  binder.choice("devices.transfer", devices.transfer,
                {{"auto", Transfer::kAuto},
                 {"own_links", Transfer::kOwnLinks},
                 {"broadcast", Transfer::kBroadcast}});
  if (!devices.keep_buffers && devices.kind != DeviceKind::kCuda)
    binder.refuse("devices.keep_buffers",
                  "false works only with GPUs: leave this key out, or set devices.kind: cuda");
  if (devices.collective != Collective::kNccl) return;
  if (devices.kind != DeviceKind::kCuda)
    binder.refuse("devices.collective",
                  "nccl works only with GPUs: choose auto or local, or set devices.kind: cuda");
  else if (devices.count < 2)
    binder.refuse("devices.collective",
                  "nccl needs at least two devices: choose auto or local for one device");
}

void bind_sidecar(Binder& binder, SidecarConfig& c) {
  bind_name(binder, c.name);
  bind_address(binder, "coordinator", c.coordinator, check_coordinator_addresses);
  bind_key_path(binder, "key", c.key);
  bind_directory(binder, "run_dir", c.run_dir, default_run_dir(), kRunDirBytesMax);
  bind_directory(binder, "state_dir", c.state_dir, default_state_dir(), kConfigPathBytesMax);
  bind_fleet(binder, c.fleet);
  bind_follow(binder, c.follow_directory, c.follow_interval);
  refuse_without_keys(binder, "coordinator", c.coordinator, !c.key.empty());
  if (c.coordinator.empty()) c.coordinator = "ipc://" + c.run_dir + "/control";
  bind_devices(binder, c.devices);
  binder.choice("stages", c.stages,
                {{"auto", Stages::kAuto}, {"2", Stages::kTwo}, {"3", Stages::kThree}});
  binder.size_or_auto("host_memory", c.host_memory, {limits::kMiB, limits::kModelBytesMax});
  bind_memory(binder, c.memory);
  binder.count("versions_held", c.versions_held, {kVersionsHeldMin, kVersionsHeldMax});
  binder.choice("patch.transfer", c.patch.transfer,
                {{"auto", PatchMode::kAuto}, {"off", PatchMode::kOff}});
  binder.choice("patch.in_place", c.patch.in_place,
                {{"auto", PatchMode::kAuto}, {"off", PatchMode::kOff}});
  binder.choice("patch.mode", c.patch.mode,
                {{"auto", SwitchPatches::kAuto},
                 {"changes", SwitchPatches::kChanges},
                 {"off", SwitchPatches::kOff}});
  binder.number("patch.max_share", c.patch.max_share, kPatchShare);
  binder.duration("scrub.interval", c.scrub.interval, kScrubInterval);
  binder.number("scrub.max_share", c.scrub.max_share, kScrubShare);
  binder.duration("idle_release", c.idle_release, kIdleRelease);
  binder.duration("forget_after", c.forget_after, kForgetAfter);
  bind_network(binder, c.network, !c.key.empty());
  bind_heartbeat(binder, c.heartbeat);
  binder.duration("engine_deadline", c.engine_deadline, kDeadline);
  binder.duration("deadlines.pause", c.deadlines.pause, kDeadline);
  binder.duration("deadlines.load", c.deadlines.load, kDeadline);
  binder.duration("deadlines.commit", c.deadlines.commit, kDeadline);
  bind_pause_mode(binder, "fallback_pause_mode", c.fallback_pause_mode);
  binder.duration("max_staleness", c.max_staleness, kStaleness);
  bind_http(binder, c.http, c.run_dir, c.name);
  bind_log(binder, c.log);
  bind_trace(binder, c.trace_file, c.trace_spans);
}

}  // namespace

Result<SidecarConfig> load_sidecar(const Sources& sources) {
  return load_role(bind_sidecar, sources);
}
Result<SidecarConfig> parse_sidecar(std::string_view text, std::string_view name,
                                    const Sources& sources) {
  return parse_role(bind_sidecar, text, name, sources);
}
PatchObstacle patch_obstacle(const SidecarConfig& config) noexcept {
  if (config.patch.mode == SwitchPatches::kOff) return PatchObstacle::kModeOff;
  // Nobody would find a bit that flips in what a patch leaves alone.
  if (config.scrub.interval.count() == 0) return PatchObstacle::kNoScrubs;
  if (config.patch.mode == SwitchPatches::kChanges && config.patch.transfer == PatchMode::kOff)
    return PatchObstacle::kNothingNew;
  return PatchObstacle::kNone;
}

std::vector<std::string> sidecar_keys() { return keys_of_role(bind_sidecar); }

std::string sidecar_command(std::string_view address) {
  const bool is_default = address == fmt::format("ipc://{}/control", default_run_dir());
  return fmt::format("wsync sidecar --set name=host0{}{}",
                     is_default ? "" : " --set coordinator=", is_default ? "" : address);
}

}  // namespace wsync::config
