// EngineHub's doorway: which ranks are taken, and what they are told first.
#include <algorithm>
#include <utility>

#include "inference_side/reload/layout_check.h"
#include "inference_side/sidecar/engine_hub.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

namespace wsync::agent {

void EngineHub::on_hello(const std::shared_ptr<Rank>& rank, const control::Envelope& envelope,
                         control::EngineHello hello) {
  if (rank->attached) return refuse(rank, "a second EngineHello on one connection");
  if (envelope.replica.empty()) return refuse(rank, "an EngineHello without a replica name");
  // Also of one that is refused: an engine takes only what names it.
  rank->replica = envelope.replica;
  rank->rank = envelope.rank;
  std::string problem = rank_problem(envelope, hello);
  if (problem.empty()) problem = device_problem(hello);
  if (!problem.empty()) return refuse(rank, problem);
  if (!versions_.empty()) {
    std::vector<control::Problem> problems =
        reload::check_layout(*versions_.rbegin()->second->manifest(), hello.tensors);
    if (!problems.empty()) {
      const std::string why = fmt::format(
          "replica '{}' rank {} does not fit the model that is served: {} ({})", envelope.replica,
          envelope.rank, problems.front().tensor, problems.front().detail);
      return refuse(rank, why, std::move(problems));
    }
  }
  control::EngineWelcome welcome{.generation = options_.generation};
  std::vector<UniqueFd> fds;
  if (runner_) {
    welcome.device_kind = on_gpus() ? DeviceKind::kCuda : DeviceKind::kSeparate;
    welcome.buffer_bytes = runner_->group().buffer_bytes();
    if (keeps_buffers()) {
      auto buffers = device_buffers(hello.device);
      if (!buffers) return refuse(rank, buffers.error().message());
      fds = std::move(buffers->fds);
      welcome.buffers = std::move(buffers->handles);
      rank->mapped = on_gpus();
    }
  }
  rank->attached = true;
  rank->hello_deadline.reset();
  rank->world_size = hello.world_size;
  rank->device = hello.device;
  rank->tensors =
      std::make_shared<const std::vector<control::EngineTensor>>(std::move(hello.tensors));
  rank->tensors_key = tensors_key(*rank->tensors);
  rank->send(envelope.request, welcome, std::move(fds));
  log_info("engine {} rank {}/{} attached (pid {}, version {})", rank->replica, rank->rank,
           rank->world_size, hello.pid, hello.active.to_string());
  for (const auto& [version, held] : versions_) prepare(rank, held);
  tell(*rank, reload::RankAttached{.rank = rank->rank,
                                   .leader = hello.leader,
                                   .state = hello.state,
                                   .active = hello.active});
}

std::string EngineHub::rank_problem(const control::Envelope& envelope,
                                    const control::EngineHello& hello) const {
  if (envelope.fence > fence_)
    return fmt::format(
        "replica '{}' rank {} obeys fence epoch {}, this sidecar knows epoch {}; it is taken when "
        "a "
        "coordinator has raised that, or when the engine is started anew",
        envelope.replica, envelope.rank, envelope.fence.epoch, fence_.epoch);
  if (hello.world_size == 0 || hello.world_size > limits::kReplicaRankCount ||
      envelope.rank >= hello.world_size)
    return fmt::format("rank {} of a replica of {} ranks", envelope.rank, hello.world_size);
  for (const auto& other : ranks_) {
    if (!other->attached || other->replica != envelope.replica) continue;
    if (other->rank == envelope.rank)
      return fmt::format("replica '{}' rank {} is attached already", envelope.replica,
                         envelope.rank);
    if (other->world_size != hello.world_size)
      return fmt::format("replica '{}' has {} ranks, not {}", envelope.replica, other->world_size,
                         hello.world_size);
  }
  return {};
}

std::string EngineHub::device_problem(const control::EngineHello& hello) const {
  if (!hello.gpu.empty() && !on_gpus())
    return fmt::format(
        "its weights are on {}, and this sidecar's devices are {} host devices: set devices.kind: "
        "cuda for the sidecar, or start the engine with --device host",
        hello.gpu, runner_ ? "separate" : "unified");
  if (!runner_) return {};
  if (hello.device >= runner_->group().size())
    return fmt::format(
        "device {}; this sidecar drives {} devices, so the engine's --device-index must be below "
        "{}",
        hello.device, runner_->group().size(), runner_->group().size());
  if (hello.take == control::TakeMode::kAdopt)
    return fmt::format("{} cannot be adopted: take pieces or whole tensors",
                       on_gpus() ? "buffers of GPUs" : "separate devices");
  return on_gpus() ? gpu_problem(hello) : std::string();
}

std::string EngineHub::gpu_problem(const control::EngineHello& hello) const {
  const reload::DeviceGroup& group = runner_->group();
  if (hello.gpu.empty())
    return "its weights are in host memory, and this sidecar's devices are GPUs: start the engine "
           "with --device cuda, or set devices.kind: separate or unified for the sidecar";
  const auto uuid_of = [&](std::uint32_t device) {
    return group.device(reload::DeviceIndex{device}).uuid();
  };
  if (const std::string uuid = uuid_of(hello.device); uuid != hello.gpu) {
    std::string right;
    for (std::uint32_t d = 0; d < group.size(); ++d)
      if (uuid_of(d) == hello.gpu) right += fmt::format("{}{}", right.empty() ? "" : " or ", d);
    return fmt::format(
        "it says {}, device {} of this sidecar is {} ({}): {}", hello.gpu, hello.device, uuid,
        group.device(reload::DeviceIndex{hello.device}).name(),
        right.empty()
            ? std::string("add that GPU to devices.gpus of the sidecar, or let the engine see the "
                          "sidecar's GPUs (CUDA_VISIBLE_DEVICES)")
            : fmt::format("start the engine with --device-index {}", right));
  }
  for (const auto& other : ranks_)
    if (other->attached && other->device == hello.device)
      return fmt::format(
          "device {} of this sidecar serves replica '{}' rank {} already: one engine rank for each "
          "device; name the GPU once more in devices.gpus, or give the engine another "
          "--device-index",
          hello.device, other->replica, other->rank);
  return {};
}

Result<EngineHub::DeviceBuffers> EngineHub::device_buffers(std::uint32_t device) const {
  DeviceBuffers buffers;
  for (std::uint32_t slot = 0; slot < reload::kIpcSlots; ++slot) {
    auto handle = WSYNC_TRY(
        runner_->group().ipc_handle(reload::DeviceIndex{device}, reload::SlotIndex{slot}));
    if (on_gpus())
      buffers.handles.push_back(
          {.opaque = std::move(handle.opaque), .generation = options_.generation});
    else
      buffers.fds.push_back(std::move(handle.fd));
  }
  return buffers;
}

}  // namespace wsync::agent
