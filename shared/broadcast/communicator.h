// Communicators broadcast a bucket among the devices of a group. A group has `size` ranks, one per
// device, all in one process: a sidecar drives all devices of its host, so a group never spans
// processes. All backends share one interface. A backend is a folder and one line in make_group().
//
// Every wait has a deadline. After any failure, the deadline or abort() ends every pending
// operation on every rank. A broken group cannot be repaired: its streams and communicators must be
// destroyed before a new group may use its buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/device/device.h"

namespace wsync::collective {

enum class Rank : std::uint32_t {};

// One broadcast, as seen by one rank. Every rank of the group must give the same size and root.
struct Broadcast {
  device::Region source;       // read on the root only; may equal the destination
  device::Region destination;  // written on every rank, the root included
  Rank root{};
  TimePoint deadline{};
};
// Returns kInvalidInput for an invalid broadcast: a root out of range, a region outside its memory
// or read-only, or a source and a destination of different sizes. For backends.
[[nodiscard]] Result<> check_broadcast(const Broadcast& broadcast, Rank rank, std::uint32_t size);

// One rank's membership in a group. Every function may be called from any thread, but all ranks
// must enqueue their broadcasts in the same order. The destructor leaves the group, which breaks it
// for pending operations.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual Rank rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t size() const noexcept = 0;
  // Waits until every rank has joined. kDeadline states how many have not.
  [[nodiscard]] virtual Result<> wait_joined(TimePoint deadline) const = 0;
  // Enqueues the broadcast on a stream of this rank's device and returns at once. Use the stream's
  // events and callbacks for ordering. The root's part completes after every rank has its bytes.
  // The work and its stream fail if ranks disagree about size or root, if the group breaks, or at
  // the deadline.
  [[nodiscard]] virtual Result<> broadcast(const Broadcast& broadcast, device::Stream& stream) = 0;
  // Begins to leave the group and returns at once, so that all ranks can leave at the same time.
  // The destructor does it otherwise, and waits for the end. Nothing else may be called afterwards.
  virtual void part() {}
  // Breaks the group: pending and later broadcasts of every rank fail with this error. Only the
  // first reason counts.
  virtual void abort(const Error& reason) = 0;
  // Returns success, or the error that broke the group. Poll it where an error may have no
  // callback.
  [[nodiscard]] virtual Result<> health() const = 0;

 protected:
  Communicator() = default;
};

// A group whose ranks are still joining. It may be destroyed once they have joined.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] virtual std::uint32_t size() const noexcept = 0;
  // Adds one rank without waiting for the others (see Communicator::wait_joined). `device` must
  // outlive the communicator. kInvalidInput for a rank out of range; kRefused for a rank that is
  // already taken.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> join(Rank rank,
                                                                   device::Device& device) = 0;

 protected:
  Group() = default;
};

// The backend of a group.
enum class GroupKind : std::uint8_t {
  kLocal,  // each rank copies from the root's memory on its own stream
  kNccl,   // GPUs, one per rank
};
[[nodiscard]] std::string_view group_kind_name(GroupKind kind) noexcept;

// Makes a new group. kInvalidInput for a size outside 1 to limits::kDeviceCount; kRefused for a
// backend that is not available (nccl_library.h).
[[nodiscard]] Result<std::unique_ptr<Group>> make_group(GroupKind kind, std::uint32_t size);

struct FittingGroup {
  GroupKind kind = GroupKind::kLocal;
  std::string why_not_nccl;  // for people; empty with kNccl
};
// Selects the backend for devices that one process drives: kNccl for several distinct GPUs if NCCL
// can be loaded, otherwise kLocal.
[[nodiscard]] FittingGroup fitting_group(const std::vector<device::Device*>& devices);
// Makes a new group and returns all its ranks, joined: one per device, in their order.
[[nodiscard]] Result<std::vector<std::unique_ptr<Communicator>>> join_all(
    GroupKind kind, const std::vector<device::Device*>& devices, TimePoint deadline);

}  // namespace wsync::collective
