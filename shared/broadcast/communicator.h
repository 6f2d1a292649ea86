// Communicators: how the devices of a group pass a bucket on. A group has `size` ranks, one for
// each device, all in one process: a sidecar drives all devices of its host itself, so nothing of a
// group travels. One interface for every backend; a backend is a folder, and one line in
// make_group().
//
// No wait is without a deadline. Whatever breaks, the deadline or abort() ends every pending
// operation on every rank. A broken group is not repaired: its streams and communicators are
// destroyed, and only then may its buffers be used again, by a new group.
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

// One broadcast, as one rank sees it. Every rank of the group names the same bytes and root.
struct Broadcast {
  device::Region source;       // read on the root only; may be the destination itself
  device::Region destination;  // written on every rank, the root included
  Rank root{};
  TimePoint deadline{};
};
// kInvalidInput for one that cannot be: a root out of range, a region outside its memory or
// read-only, a source of another size than the destination. For backends.
[[nodiscard]] Result<> check_broadcast(const Broadcast& broadcast, Rank rank, std::uint32_t size);

// One rank's membership of a group. Every function may be called from any thread, but all ranks
// enqueue their broadcasts in the same order. Destroying it leaves the group, which breaks it for
// operations that are still pending.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual Rank rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t size() const noexcept = 0;
  // Waits until every rank has joined; kDeadline names how many have not.
  [[nodiscard]] virtual Result<> wait_joined(TimePoint deadline) const = 0;
  // Enqueues on a stream of this rank's device and returns at once; order it with the stream's
  // events and callbacks. The root's part is complete after every rank has its bytes. When ranks
  // disagree about bytes or root, when the group breaks, or at the deadline, the work fails, and
  // with it the stream.
  [[nodiscard]] virtual Result<> broadcast(const Broadcast& broadcast, device::Stream& stream) = 0;
  // Breaks the group: pending and later broadcasts of every rank fail with this error. The first
  // one counts.
  virtual void abort(const Error& reason) = 0;
  // Success, or what broke the group; to be polled where an error may have no callback.
  [[nodiscard]] virtual Result<> health() const = 0;

 protected:
  Communicator() = default;
};

// A group before its ranks have joined. May be destroyed once they have.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] virtual std::uint32_t size() const noexcept = 0;
  // Adds one rank, without waiting for the others (Communicator::wait_joined does). `device`
  // outlives the communicator. kInvalidInput for a rank out of range, kRefused for one taken.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> join(Rank rank,
                                                                   device::Device& device) = 0;

 protected:
  Group() = default;
};

// Which backend.
enum class GroupKind : std::uint8_t {
  kLocal,  // each rank copies from the root's memory on its own stream
  kNccl,   // GPUs, one for each rank
};
[[nodiscard]] std::string_view group_kind_name(GroupKind kind) noexcept;

// A new group. kInvalidInput for a size out of 1 to limits::kDeviceCount, kRefused for a backend
// that is not there (nccl_library.h).
[[nodiscard]] Result<std::unique_ptr<Group>> make_group(GroupKind kind, std::uint32_t size);

struct FittingGroup {
  GroupKind kind = GroupKind::kLocal;
  std::string why_not_nccl;  // for people; empty with kNccl
};
// What fits devices that one process drives: kNccl for several GPUs, no two of them the same, when
// NCCL can be loaded, otherwise kLocal.
[[nodiscard]] FittingGroup fitting_group(const std::vector<device::Device*>& devices);
// All ranks of a new group: one for each device, in their order, joined.
[[nodiscard]] Result<std::vector<std::unique_ptr<Communicator>>> join_all(
    GroupKind kind, const std::vector<device::Device*>& devices, TimePoint deadline);

}  // namespace wsync::collective
