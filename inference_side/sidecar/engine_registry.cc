#include "inference_side/sidecar/engine_registry.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "inference_side/reload/layout_check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"

namespace wsync::agent {

bool reads_staged_version(const control::EngineHello& hello) noexcept {
  return control::maps_version(hello.take) && hello.gpu.empty();
}

bool is_controller(std::uint32_t rank, const control::EngineHello& hello) noexcept {
  return hello.has_controller && rank + 1 == hello.world_size;
}

// ---- hello ----

std::optional<Refusal> EngineRegistry::refusal_of(const control::Envelope& envelope,
                                                  const control::EngineHello& hello,
                                                  const control::Fence& fence,
                                                  const Manifest* served) const {
  if (envelope.replica.empty())
    return Refusal{.reason = "EngineHello has no replica name", .problems = {}};
  if (auto problem = rank_problem(envelope, hello, fence))
    return Refusal{.reason = std::move(*problem), .problems = {}};
  if (auto problem = device_problem(hello))
    return Refusal{.reason = std::move(*problem), .problems = {}};
  if (hello.any_layout && (!control::maps_version(hello.take) || !hello.tensors.empty()))
    return Refusal{
        .reason = fmt::format(
            "replica '{}' rank {} takes any layout, but it {}", envelope.replica, envelope.rank,
            hello.tensors.empty()
                ? "does not read the staged version: only a rank that borrows or adopts can"
                : "names tensors of one layout"),
        .problems = {}};
  if (served == nullptr || hello.any_layout) return std::nullopt;
  return misfit(envelope.replica, envelope.rank, hello.tensors, hello.world_size, *served);
}

std::optional<Refusal> EngineRegistry::misfit(const std::string& replica, std::uint32_t rank,
                                              const std::vector<control::EngineTensor>& tensors,
                                              std::uint32_t world_size,
                                              const Manifest& served) const {
  std::vector<control::Problem> problems = reload::check_layout(served, tensors);
  if (problems.empty()) {
    // The other ranks of this replica may fit one by one; what they lack together says only this
    // rank, if it is the last one.
    problems = uncovered(replica, rank, tensors, world_size, served);
    if (problems.empty() || !fits_any_but(replica, served)) return std::nullopt;
  } else if (!fits_any(served)) {
    return std::nullopt;
  }
  std::string reason = fmt::format(
      "replica '{}' rank {} does not fit the model that is served: {} ({}); it may attach when "
      "every engine of that model has ended",
      replica, rank, problems.front().tensor, problems.front().detail);
  return Refusal{.reason = std::move(reason), .problems = std::move(problems)};
}

std::vector<control::Problem> EngineRegistry::uncovered(
    const std::string& replica, std::uint32_t rank,
    const std::vector<control::EngineTensor>& tensors, std::uint32_t world_size,
    const Manifest& manifest) const {
  std::vector<std::span<const control::EngineTensor>> parts = {tensors};
  for (const AttachedRank& other : ranks_) {
    if (other.replica != replica || other.rank == rank) continue;
    if (other.any_layout) return {};
    parts.emplace_back(*other.tensors);
  }
  if (parts.size() < world_size || planted("part_of_a_model_served")) return {};
  return reload::check_replica_coverage(manifest, parts);
}

std::optional<std::string> EngineRegistry::rank_problem(const control::Envelope& envelope,
                                                        const control::EngineHello& hello,
                                                        const control::Fence& fence) const {
  if (envelope.fence > fence)
    return fmt::format(
        "replica '{}' rank {} has seen fence epoch {}, but this sidecar has seen only epoch {}; "
        "the engine is accepted when a coordinator has raised the sidecar's epoch, or when the "
        "engine is restarted",
        envelope.replica, envelope.rank, envelope.fence.epoch, fence.epoch);
  if (hello.world_size == 0 || hello.world_size > limits::kReplicaRankCount ||
      envelope.rank >= hello.world_size)
    return fmt::format("rank {} does not exist in a replica of {} ranks", envelope.rank,
                       hello.world_size);
  if (auto problem = controller_problem(envelope, hello)) return problem;
  for (const AttachedRank& other : ranks_) {
    if (other.replica != envelope.replica) continue;
    if (other.rank == envelope.rank)
      return fmt::format(
          "replica '{}' rank {} is attached already, as {}: start this engine under another name "
          "of "
          "its replica (--replica), or end {}",
          envelope.replica, envelope.rank,
          other.pid == 0 ? "a process in another PID namespace"
                         : fmt::format("process {}", other.pid),
          other.pid == 0 ? "that process" : fmt::format("process {}", other.pid));
    if (other.world_size != hello.world_size)
      return fmt::format("replica '{}' has {} ranks, not {}", envelope.replica, other.world_size,
                         hello.world_size);
  }
  return std::nullopt;
}

std::optional<std::string> EngineRegistry::controller_problem(
    const control::Envelope& envelope, const control::EngineHello& hello) const {
  const auto has = [](bool controller) { return controller ? "a controller" : "no controller"; };
  for (const AttachedRank& other : ranks_)
    if (other.replica == envelope.replica && other.has_controller != hello.has_controller)
      return fmt::format(
          "replica '{}' rank {} says that the replica has {}, but rank {}, which is attached, says "
          "that it has {}: set has_controller on all ranks of the replica and on its controller, "
          "or on none",
          envelope.replica, envelope.rank, has(hello.has_controller), other.rank,
          has(other.has_controller));
  if (!hello.has_controller) return std::nullopt;
  if (hello.world_size == 1)
    return fmt::format("replica '{}' is a controller alone; it needs ranks that have weights",
                       envelope.replica);
  if (is_controller(envelope.rank, hello) &&
      (!hello.leader || hello.any_layout || !hello.tensors.empty()))
    return fmt::format("replica '{}' rank {} is the controller of the replica, but it {}",
                       envelope.replica, envelope.rank,
                       hello.leader ? "takes tensors" : "does not lead");
  if (!is_controller(envelope.rank, hello) && hello.leader)
    return fmt::format("replica '{}' rank {} leads, but the controller of the replica must",
                       envelope.replica, envelope.rank);
  return std::nullopt;
}

std::optional<std::string> EngineRegistry::device_problem(const control::EngineHello& hello) const {
  const bool unified = devices_.kind == DeviceKind::kUnified;
  if (!hello.gpu.empty() && !on_gpus())
    return fmt::format(
        "the engine's weights are on {}, but this sidecar's devices are {} host devices: set "
        "devices.kind: cuda for the sidecar, or start the engine with --device host",
        hello.gpu, unified ? "unified" : "separate");
  if (unified) return std::nullopt;
  if (hello.device >= devices_.devices.size())
    return fmt::format(
        "device {} does not exist: this sidecar has {} devices, so the engine's --device-index "
        "must be below {}",
        hello.device, devices_.devices.size(), devices_.devices.size());
  // On a GPU, a rank that borrows gets a copy out of the buffers, as one that takes whole tensors.
  const bool adopts = hello.take == control::TakeMode::kAdopt;
  if (control::maps_version(hello.take) && (adopts || !on_gpus()))
    return fmt::format("{} do not support {}: load pieces or whole tensors",
                       on_gpus() ? "buffers of GPUs" : "separate devices",
                       adopts ? "adoption" : "borrowing");
  return on_gpus() ? gpu_problem(hello) : std::nullopt;
}

std::optional<std::string> EngineRegistry::gpu_problem(const control::EngineHello& hello) const {
  if (hello.gpu.empty())
    return "the engine's weights are in host memory, but this sidecar's devices are GPUs: start "
           "the engine with --device cuda, or set devices.kind: separate or unified for the "
           "sidecar";
  const RegistryDevices::Device& device = devices_.devices[hello.device];
  if (device.uuid != hello.gpu) {
    std::string right;
    for (std::size_t d = 0; d < devices_.devices.size(); ++d)
      if (devices_.devices[d].uuid == hello.gpu)
        right += fmt::format("{}{}", right.empty() ? "" : " or ", d);
    return fmt::format(
        "the engine's weights are on {}, but device {} of this sidecar is {} ({}): {}", hello.gpu,
        hello.device, device.uuid, device.name,
        right.empty()
            ? std::string("add that GPU to devices.gpus of the sidecar, or let the engine see the "
                          "sidecar's GPUs (CUDA_VISIBLE_DEVICES)")
            : fmt::format("start the engine with --device-index {}", right));
  }
  for (const AttachedRank& other : ranks_)
    if (other.device == hello.device)
      return fmt::format(
          "device {} of this sidecar already serves replica '{}' rank {}, and a device serves only "
          "one engine rank: name the GPU once more in devices.gpus, or give the engine another "
          "--device-index",
          hello.device, other.replica, other.rank);
  return std::nullopt;
}

// ---- attached ranks ----

bool EngineRegistry::fits_any(const Manifest& manifest) const { return fits_any_but({}, manifest); }

// A rank without tensors says nothing: a controller has none.
bool EngineRegistry::fits_any_but(const std::string& but, const Manifest& manifest) const {
  if (planted("compared_with_nobody")) return true;
  return std::ranges::any_of(ranks_, [&](const AttachedRank& rank) {
    if (!but.empty() && rank.replica == but) return false;
    if (rank.any_layout) return !rank.declines;
    return !rank.tensors->empty() && reload::check_layout(manifest, *rank.tensors).empty() &&
           uncovered(rank.replica, rank.rank, *rank.tensors, rank.world_size, manifest).empty();
  });
}

void EngineRegistry::set_declines(reload::EngineId id, bool declines) {
  for (AttachedRank& rank : ranks_)
    if (rank.id == id) rank.declines = declines;
}

void EngineRegistry::attach(AttachedRank rank) { ranks_.push_back(std::move(rank)); }

std::optional<AttachedRank> EngineRegistry::detach(reload::EngineId id) {
  const auto found =
      std::ranges::find_if(ranks_, [&](const AttachedRank& rank) { return rank.id == id; });
  if (found == ranks_.end()) return std::nullopt;
  AttachedRank rank = std::move(*found);
  ranks_.erase(found);
  return rank;
}

const AttachedRank* EngineRegistry::find(const std::string& replica, std::uint32_t rank) const {
  const auto found = std::ranges::find_if(ranks_, [&](const AttachedRank& candidate) {
    return candidate.replica == replica && candidate.rank == rank;
  });
  return found == ranks_.end() ? nullptr : &*found;
}

std::vector<AttachedRank> EngineRegistry::ranks_of(const std::string& replica) const {
  std::vector<AttachedRank> found;
  for (const AttachedRank& rank : ranks_)
    if (rank.replica == replica) found.push_back(rank);
  return found;
}

bool EngineRegistry::whole(const std::string& replica) const {
  const std::vector<AttachedRank> ranks = ranks_of(replica);
  return !ranks.empty() && ranks.size() >= ranks.front().world_size;
}

control::ControllerState EngineRegistry::controller_of(const std::string& replica) const {
  const std::vector<AttachedRank> ranks = ranks_of(replica);
  if (ranks.empty() || !ranks.front().has_controller) return control::ControllerState::kNone;
  return find(replica, ranks.front().world_size - 1) == nullptr
             ? control::ControllerState::kMissing
             : control::ControllerState::kAttached;
}

std::uint64_t EngineRegistry::copied_bytes() const {
  std::uint64_t bits = 0;
  for (const AttachedRank& rank : ranks_) {
    if (!rank.copies) continue;
    for (const control::EngineTensor& tensor : *rank.tensors) {
      std::vector<std::uint64_t> shape = tensor.shape;
      for (const control::DimRange& range : tensor.ranges)
        if (range.dim < shape.size()) shape[range.dim] = range.length;
      bits += std::accumulate(shape.begin(), shape.end(), std::uint64_t{dtype_bits(tensor.dtype)},
                              std::multiplies<>());
    }
  }
  return bits / 8;
}

std::uint32_t EngineRegistry::replica_count() const {
  std::set<std::string_view> names;
  for (const AttachedRank& rank : ranks_) names.insert(rank.replica);
  return static_cast<std::uint32_t>(names.size());
}

std::vector<control::Problem> EngineRegistry::check_layout(const Manifest& manifest) const {
  std::vector<control::Problem> problems;
  const auto add = [&problems](const std::string& replica, std::vector<control::Problem> found) {
    for (control::Problem& problem : found) {
      problem.detail = fmt::format("replica '{}': {}", replica, problem.detail);
      problems.push_back(std::move(problem));
    }
  };
  std::map<std::string, std::vector<std::span<const control::EngineTensor>>> replicas;
  std::set<std::string_view> covered;  // replicas with a rank that takes everything
  for (const AttachedRank& rank : ranks_) {
    if (rank.any_layout) {
      covered.insert(rank.replica);
      continue;
    }
    replicas[rank.replica].emplace_back(*rank.tensors);
    add(rank.replica, reload::check_layout(manifest, *rank.tensors));
  }
  for (const auto& [replica, parts] : replicas)
    if (whole(replica) && !covered.contains(replica))
      add(replica, reload::check_replica_coverage(manifest, parts));
  return problems;
}

Result<> EngineRegistry::invariants() const {
  std::set<reload::EngineId> ids;
  std::set<std::uint32_t> devices;
  std::map<std::string, std::map<std::uint32_t, std::uint32_t>> replicas;  // rank -> world size
  std::map<std::string, bool> controllers;
  for (const AttachedRank& rank : ranks_) {
    const auto broken = [&rank](std::string_view rule) {
      return fail(ErrorCode::kInternal,
                  fmt::format("replica '{}' rank {} {}", rank.replica, rank.rank, rule));
    };
    if (!ids.insert(rank.id).second) return broken("shares its connection with another rank");
    if (rank.rank >= rank.world_size) return broken("is not below its world size");
    auto& others = replicas[rank.replica];
    if (!others.emplace(rank.rank, rank.world_size).second) return broken("is attached twice");
    if (others.begin()->second != rank.world_size) return broken("names another world size");
    if (controllers.emplace(rank.replica, rank.has_controller).first->second != rank.has_controller)
      return broken("contradicts another rank about a controller");
    if (on_gpus() && !devices.insert(rank.device).second)
      return broken("shares its GPU device with another rank");
  }
  return {};
}

}  // namespace wsync::agent
