// EngineRegistry: records which ranks of which replicas are attached to this sidecar, and decides
// whether a rank that sends a hello may attach.
//
// Pure: no I/O, no time. Thread: confined to one thread.
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
  bool has_controller = false;   // the last rank of the replica is its controller
  std::uint32_t device = 0;      // index of the sidecar's device it runs on
  bool copies = true;            // into memory of its own; false: it maps the staged version
  bool any_layout = false;       // it takes all tensors of each version; `tensors` is empty
  bool declines = false;         // any layout: the version that it was asked about last
  std::shared_ptr<const std::vector<control::EngineTensor>> tensors;
  std::uint64_t pid = 0;  // of its process; 0: in another PID namespace
};

// The properties of this sidecar's devices with which a hello is compared.
struct RegistryDevices {
  struct Device {
    std::string uuid;  // GPU only; empty for a host device
    std::string name;
  };
  DeviceKind kind = DeviceKind::kUnified;
  std::vector<Device> devices;  // by index; empty for unified devices
};

// The reason why a rank may not attach, in the form in which it is sent to the rank.
struct Refusal {
  std::string reason;
  std::vector<control::Problem> problems;
};

// Whether a rank reads the staged version itself, and so returns no sums of what it has loaded.
[[nodiscard]] bool reads_staged_version(const control::EngineHello& hello) noexcept;

// Whether this rank of a replica is its controller, which has no weights.
[[nodiscard]] bool is_controller(std::uint32_t rank, const control::EngineHello& hello) noexcept;

class EngineRegistry {
 public:
  explicit EngineRegistry(RegistryDevices devices) : devices_(std::move(devices)) {}

  // Returns why this hello is refused, or std::nullopt if the rank may attach. `fence`: the highest
  // fence that this sidecar has stored. An engine that obeys a higher fence is refused, because
  // this sidecar has been replaced or has lost its record. `served`: layout of the newest version
  // that can be loaded; null before the first one. It counts only while it fits a rank that is
  // attached: otherwise no engine serves it any more, and an engine of another model may attach.
  [[nodiscard]] std::optional<Refusal> refusal_of(const control::Envelope& envelope,
                                                  const control::EngineHello& hello,
                                                  const control::Fence& fence,
                                                  const Manifest* served) const;
  // Why a rank with these tensors does not fit the layout that is served; std::nullopt if it fits,
  // or if no attached rank takes that layout.
  [[nodiscard]] std::optional<Refusal> misfit(const std::string& replica, std::uint32_t rank,
                                              const std::vector<control::EngineTensor>& tensors,
                                              std::uint32_t world_size,
                                              const Manifest& served) const;
  // What of the layout no rank of the replica takes, if this rank is the last one that it lacks;
  // empty if it lacks others, or if a rank of it takes any layout.
  [[nodiscard]] std::vector<control::Problem> uncovered(
      const std::string& replica, std::uint32_t rank,
      const std::vector<control::EngineTensor>& tensors, std::uint32_t world_size,
      const Manifest& manifest) const;
  // Whether an attached rank takes tensors of this layout. A rank of any layout does unless it
  // declines.
  [[nodiscard]] bool fits_any(const Manifest& manifest) const;
  // The same, of other replicas than `but`.
  [[nodiscard]] bool fits_any_but(const std::string& but, const Manifest& manifest) const;
  // Whether the rank of this connection, which takes any layout, has declined the version that it
  // was asked about last. Does nothing if there is none.
  void set_declines(reload::EngineId id, bool declines);
  // Adds a rank whose hello was not refused.
  void attach(AttachedRank rank);
  // Removes the rank of this connection and returns it; std::nullopt if there was none.
  std::optional<AttachedRank> detach(reload::EngineId id);

  // In order of attachment.
  [[nodiscard]] const std::vector<AttachedRank>& ranks() const noexcept { return ranks_; }
  // Returns nullptr if the rank is not attached.
  [[nodiscard]] const AttachedRank* find(const std::string& replica, std::uint32_t rank) const;
  [[nodiscard]] std::vector<AttachedRank> ranks_of(const std::string& replica) const;
  // Whether every rank of the replica is attached.
  [[nodiscard]] bool whole(const std::string& replica) const;
  // Bytes of all tensors that the ranks copy into memory of their own.
  [[nodiscard]] std::uint64_t copied_bytes() const;
  // Whether the replica has a controller, as its attached ranks say. kNone if there are none.
  [[nodiscard]] control::ControllerState controller_of(const std::string& replica) const;
  // Number of replicas with at least one attached rank.
  [[nodiscard]] std::uint32_t replica_count() const;
  // Returns the differences between a layout and the attached ranks. Each problem names its
  // replica. Whether all of the layout is covered is checked only for complete replicas.
  [[nodiscard]] std::vector<control::Problem> check_layout(const Manifest& manifest) const;

  [[nodiscard]] bool on_gpus() const noexcept { return devices_.kind == DeviceKind::kCuda; }

  // Returns kInternal with the first broken rule. Rules: a rank is attached once, and its number is
  // below the world size of its replica; all ranks of a replica agree on that size and on whether
  // there is a controller; a replica has at most one rank on each GPU.
  [[nodiscard]] Result<> invariants() const;

 private:
  [[nodiscard]] std::optional<std::string> rank_problem(const control::Envelope& envelope,
                                                        const control::EngineHello& hello,
                                                        const control::Fence& fence) const;
  [[nodiscard]] std::optional<std::string> controller_problem(
      const control::Envelope& envelope, const control::EngineHello& hello) const;
  [[nodiscard]] std::optional<std::string> device_problem(const control::EngineHello& hello) const;
  [[nodiscard]] std::optional<std::string> gpu_problem(const control::EngineHello& hello) const;

  const RegistryDevices devices_;
  std::vector<AttachedRank> ranks_;
};

}  // namespace wsync::agent
