// The checks of `wsync doctor` that are about updates in which only what changes is written, and
// about scrubs, without which there are none.
#include <nlohmann/json.hpp>

#include "deploy/cli/doctor_checks.h"
#include "inference_side/sidecar/patch_shelf.h"
#include "shared/base/format.h"
#include "shared/config/units.h"
#include "shared/transport/limits.h"
#include "shared/transport/traits.h"
#include "shared/weights/patch/worth.h"

namespace wsync::cli {
namespace {

constexpr const char* kPatchesCheck = "patches";
// Any model: memory is told as a share of it, because no checkpoint is known here.
constexpr std::uint64_t kModelBytes = 1ULL << 40U;

double memory_share(double max_share, bool copies) {
  return static_cast<double>(agent::PatchShelf::bytes_max(kModelBytes, max_share, copies)) /
         static_cast<double>(kModelBytes);
}

// Whether sidecars of a process with this configuration may map versions, and may copy them.
struct Arrivals {
  bool mapped = true;
  bool copied = true;
};

Arrivals arrivals(const config::NetworkConfig& network) {
  const transport::TransportTraits* kind = transport::find_transport_kind(network.transport);
  if (kind == nullptr) return {};
  return {.mapped = kind->maps_source, .copied = !kind->maps_source};
}

std::string mode_name(config::SwitchPatches mode) {
  switch (mode) {
    case config::SwitchPatches::kAuto:
      return "auto";
    case config::SwitchPatches::kChanges:
      return "changes";
    case config::SwitchPatches::kOff:
      return "off";
  }
  return "off";
}

std::string memory_text(const Arrivals& arrivals, double mapped, double copied,
                        std::uint64_t host_memory) {
  std::string text = "beside the arenas they need at most ";
  if (arrivals.mapped) text += fmt::format("{:.3g} % of the model with memfd", 100 * mapped);
  if (arrivals.copied)
    text += fmt::format("{}{:.3g} % of the model where versions are copied",
                        arrivals.mapped ? ", " : "", 100 * copied);
  if (host_memory != 0)
    text += fmt::format(", within host_memory ({})", config::format_size(host_memory));
  return text;
}

// Says what does not happen, and the remedy.
void explain(config::PatchObstacle obstacle, Check& check) {
  switch (obstacle) {
    case config::PatchObstacle::kNone:
      return;
    case config::PatchObstacle::kModeOff:
      check.found = "patch.mode is off";
      check.advice = "set patch.mode to changes, the default";
      break;
    case config::PatchObstacle::kNoScrubs:
      check.found =
          "scrub.interval is 0, and without scrubs nobody would find a flipped bit in what a patch "
          "does not write";
      check.advice = "set scrub.interval to a time, such as 30m, the default";
      break;
    case config::PatchObstacle::kNothingNew:
      check.found =
          "patch.transfer is off, so no version comes with its changes, and patch.mode is changes, "
          "so versions are not compared here";
      check.advice =
          "set patch.transfer to auto, the default, or patch.mode to auto, which compares versions";
      break;
  }
  check.status = CheckStatus::kWarn;
  check.found += ": engines are paused until all bytes are loaded, however little changes";
}

}  // namespace

Check check_patches(const config::SidecarConfig& config) {
  const Arrivals arrive = arrivals(config.network);
  const bool transfers = config.patch.transfer == config::PatchMode::kAuto;
  const bool in_place = config.patch.in_place == config::PatchMode::kAuto;
  const config::PatchObstacle obstacle = config::patch_obstacle(config);
  const bool is_on = obstacle == config::PatchObstacle::kNone;
  const double mapped = is_on && arrive.mapped ? memory_share(config.patch.max_share, false) : 0;
  const double copied = is_on && arrive.copied ? memory_share(config.patch.max_share, true) : 0;
  Check check{.name = kPatchesCheck,
              .status = CheckStatus::kOk,
              .found = fmt::format(
                  "engines are switched by what changes (patch.mode: {}, patch.transfer: {}); {}",
                  mode_name(config.patch.mode), transfers ? "auto" : "off",
                  memory_text(arrive, mapped, copied, config.host_memory)),
              .advice = "",
              .facts = {{"used", is_on},
                        {"mode", mode_name(config.patch.mode)},
                        {"transfer", transfers ? "auto" : "off"},
                        {"in_place", in_place ? "auto" : "off"},
                        {"memory_share_mapped", mapped},
                        {"memory_share_copied", copied}}};
  if (arrive.copied && transfers)
    check.found += in_place ? fmt::format(
                                  "; a version that is copied and comes as changes alone is "
                                  "held as these, at most {:.3g} % of the model, in place "
                                  "of an arena (patch.in_place: auto)",
                                  100 * config.patch.max_share)
                            : "; every version that is copied has an arena (patch.in_place: off)";
  if (arrive.mapped && transfers)
    check.found += in_place
                       ? "; an arena of a trainer of this host is lent to it, so that it can be "
                         "changed (patch.in_place: auto), and both have one between them, unless "
                         "an engine serves from it (--adopt) or the trainer takes another one"
                       : "; a trainer of this host needs an arena for each version "
                         "(patch.in_place: off)";
  if (arrive.copied)
    check.found += fmt::format(
        "; the changes that it keeps for sidecars that are behind have at most {:.3g} % of the "
        "model",
        100 * limits::kStreamLinksShare);
  if (is_on && config.devices.kind == DeviceKind::kCuda)
    check.found += fmt::format(
        ". Engines on GPUs are not scrubbed, so all of their bytes are loaded again when the last "
        "load of all bytes is {} ago",
        config::format_duration(config.scrub.interval));
  explain(obstacle, check);
  return check;
}

Check check_trainer_patches(const config::TrainerConfig& config) {
  // What the sidecars set is not known here; by default they take any patch.
  const bool makes = arrivals(config.network).mapped;
  const double share = makes ? memory_share(config::PatchConfig().max_share, false) : 0;
  const std::string obstacle = config::arena_obstacle(config);
  Check check{.name = kPatchesCheck,
              .status = CheckStatus::kOk,
              .found = makes
                           ? fmt::format("made while the weights are copied, if a sidecar of this "
                                         "host takes them (its patch.mode and patch.transfer); {}",
                                         memory_text({.copied = false}, share, 0, 0))
                           : fmt::format("transport is {}, so no sidecar gets a patch from this "
                                         "trainer; those that copy make theirs of what changes",
                                         config.network.transport),
              .advice = "",
              .facts = {{"used", makes},
                        {"in_place", config.in_place == config::PatchMode::kAuto ? "auto" : "off"},
                        {"memory_share_mapped", share},
                        {"memory_share_copied", 0}}};
  check.found +=
      obstacle.empty()
          ? fmt::format(
                "; a version of which at most {:.3g} % change needs no arena of its own: that of "
                "the version before is changed after the decision (patch.in_place: auto)",
                100 * patch::kPatchShareMax)
          : fmt::format("; every version has an arena of its own ({})", obstacle);
  return check;
}

Check check_scrub(const config::SidecarConfig& config) {
  const bool is_on = config.scrub.interval.count() != 0;
  Check check{.name = "scrub",
              .status = is_on ? CheckStatus::kOk : CheckStatus::kWarn,
              .found = "",
              .advice = "",
              .facts = {{"interval_ms", config.scrub.interval.count()},
                        {"max_share", config.scrub.max_share}}};
  if (is_on) {
    check.found = fmt::format(
        "engines read their weights again every {} (scrub.interval), for at most {:.3g} % of the "
        "time of a processor (scrub.max_share)",
        config::format_duration(config.scrub.interval), 100 * config.scrub.max_share);
  } else {
    check.found = "scrub.interval is 0: only `wsync verify` finds a flipped bit in an engine";
    check.advice = "set scrub.interval to a time, such as 30m, the default";
  }
  return check;
}

}  // namespace wsync::cli
