// EngineRegistry: which ranks of which replicas are attached to this sidecar, and whether a rank
// that says hello may attach.
//
// Pure: no I/O, no time. Thread: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/control/messages.h"
#include "shared/weights/manifest.h"

namespace wsync::agent {

// A rank that is attached.
struct AttachedRank {
  reload::EngineId id{};  // of its connection
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;  // ranks of its replica
  std::uint32_t device = 0;      // index of the sidecar's device it runs on
  std::shared_ptr<const std::vector<control::EngineTensor>> tensors;
};

// The devices of this sidecar, as a hello is compared with them.
struct RegistryDevices {
  struct Device {
    std::string uuid;  // of a GPU; empty for a host device
    std::string name;
  };
  DeviceKind kind = DeviceKind::kUnified;
  std::vector<Device> devices;  // by index; unified devices: none
};

// Why a rank may not attach, as it is told.
struct Refusal {
  std::string reason;
  std::vector<control::Problem> problems;
};

class EngineRegistry {
 public:
  explicit EngineRegistry(RegistryDevices devices) : devices_(std::move(devices)) {}

  // Why this hello is refused; nothing when the rank may attach. `fence`: the highest one that this
  // sidecar has stored. An engine that obeys a higher one is refused: this sidecar has been
  // replaced, or has lost its record. `served`: layout of the newest version that can be loaded;
  // null before the first one.
  [[nodiscard]] std::optional<Refusal> refusal_of(const control::Envelope& envelope,
                                                  const control::EngineHello& hello,
                                                  const control::Fence& fence,
                                                  const Manifest* served) const;
  // Takes a rank whose hello is not refused.
  void attach(AttachedRank rank);
  // The rank that was attached on this connection; nothing when none was.
  std::optional<AttachedRank> detach(reload::EngineId id);

  // In the order in which they have attached.
  [[nodiscard]] const std::vector<AttachedRank>& ranks() const noexcept { return ranks_; }
  // Null when it is not attached.
  [[nodiscard]] const AttachedRank* find(const std::string& replica, std::uint32_t rank) const;
  [[nodiscard]] std::vector<AttachedRank> ranks_of(const std::string& replica) const;
  // Whether every rank of the replica is attached.
  [[nodiscard]] bool whole(const std::string& replica) const;
  // Replicas that have a rank attached.
  [[nodiscard]] std::uint32_t replica_count() const;
  // What does not fit between a layout and the attached ranks, each problem naming its replica.
  // Whether a layout is covered is asked of whole replicas only.
  [[nodiscard]] std::vector<control::Problem> check_layout(const Manifest& manifest) const;

  // The first broken rule (kInternal). Rules: a rank is attached once, and is one of its replica's
  // world size; all ranks of a replica agree on that size; a GPU has one rank for each of its
  // devices at most.
  [[nodiscard]] Result<> invariants() const;

 private:
  [[nodiscard]] std::optional<std::string> rank_problem(const control::Envelope& envelope,
                                                        const control::EngineHello& hello,
                                                        const control::Fence& fence) const;
  [[nodiscard]] std::optional<std::string> device_problem(const control::EngineHello& hello) const;
  [[nodiscard]] std::optional<std::string> gpu_problem(const control::EngineHello& hello) const;
  [[nodiscard]] bool on_gpus() const noexcept { return devices_.kind == DeviceKind::kCuda; }

  const RegistryDevices devices_;
  std::vector<AttachedRank> ranks_;
};

}  // namespace wsync::agent
