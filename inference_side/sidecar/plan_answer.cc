#include "inference_side/sidecar/plan_answer.h"

#include <algorithm>

#include "inference_side/sidecar/offered_layouts.h"
#include "inference_side/sidecar/patch_shelf.h"
#include "shared/config/sidecar_config.h"
#include "shared/transport/traits.h"

namespace wsync::agent {
namespace {

Result<std::vector<control::GpuPlan>> gpu_plans(const reload::DeviceGroup& devices) {
  const auto rooms = WSYNC_TRY(devices.rooms());
  std::vector<control::GpuPlan> gpus;
  for (const reload::DeviceRoom& room : rooms)
    gpus.push_back({.name = room.name,
                    .uuid = room.uuid,
                    .devices = room.devices,
                    .total_bytes = room.total_bytes,
                    .free_bytes = room.free_bytes,
                    .held_bytes = devices.holds_buffers() ? room.peak_bytes : 0,
                    .peak_bytes = room.peak_bytes,
                    .streams_bytes = room.streams_bytes,
                    .streams_measured = room.streams_measured,
                    .context_bytes = room.context_bytes});
  return gpus;
}

// A version is received while all others are still held, where there is room for it.
std::uint32_t own_arenas(std::uint64_t arena_bytes, const staging::Store& store,
                         const config::SidecarConfig& config) {
  const transport::TransportTraits* kind = transport::find_transport_kind(config.network.transport);
  if (!store.has_own_arenas() && (kind == nullptr || kind->maps_source)) return 0;
  const std::uint32_t most = config.versions_held + 1;
  if (config.host_memory == 0 || arena_bytes == 0) return most;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(most, config.host_memory / arena_bytes));
}

// host_memory limits them: a patch for which there is no room is not made.
std::uint64_t patch_bytes(const control::Plan& plan, std::uint32_t own_arenas,
                          const config::SidecarConfig& config) {
  const bool copies = own_arenas > 0;
  if (config::patch_obstacle(config) != config::PatchObstacle::kNone) return 0;
  const std::uint64_t most =
      PatchShelf::bytes_max(plan.arena_bytes, config.patch.max_share, copies);
  if (config.host_memory == 0) return most;
  const std::uint64_t held = own_arenas * plan.arena_bytes;
  return std::min(most, config.host_memory - std::min(config.host_memory, held));
}

}  // namespace

control::SidecarPlan answer_plan(const control::Plan& plan, const EngineHub& hub,
                                 const staging::Store& store, const config::SidecarConfig& config) {
  control::SidecarPlan answer{.name = config.name,
                              .replicas = hub.registry().replica_count(),
                              .versions_held = config.versions_held};
  if (hub.devices() != nullptr) {
    const reload::DeviceGroup& devices = hub.devices()->group();
    answer.devices = devices.size();
    answer.buffer_bytes = devices.buffer_bytes();
    if (devices.kind() == DeviceKind::kCuda) {
      const auto gpus = gpu_plans(devices);
      if (!gpus) {
        answer.failure = "its GPUs cannot be queried: " + gpus.error().message();
        return answer;
      }
      answer.gpus = *gpus;
    }
  }
  if (answer.gpus.empty()) answer.engine_bytes = hub.registry().copied_bytes();
  answer.own_arenas = own_arenas(plan.arena_bytes, store, config);
  answer.patch_bytes = patch_bytes(plan, answer.own_arenas, config);
  const auto manifest = read_layout(plan.layout);
  if (!manifest) {
    answer.failure = manifest.error().message();
    return answer;
  }
  answer.problems = hub.registry().check_layout(*manifest);
  if (const auto fits = store.check_budget(plan.arena_bytes, config.versions_held); !fits)
    answer.problems.push_back(
        {.kind = control::ProblemKind::kMemory, .detail = fits.error().message()});
  return answer;
}

}  // namespace wsync::agent
