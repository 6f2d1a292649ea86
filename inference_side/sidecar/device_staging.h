// DeviceStaging: prepares the devices for a version while the engines still serve an older one, so
// that the pause is short. It registers (pins) the memory of the version with every device. A
// registration lives as long as the mapping, because a trainer uses a few arenas in turn and
// registering takes tens of milliseconds per GiB.
//
// Thread: the loop's; callbacks are called on the loop. The loop and the group must outlive this
// object.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "inference_side/reload/device_group.h"
#include "inference_side/staging/store.h"
#include "shared/device/registered_memory.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"
#include "shared/weights/bucket_plan.h"

namespace wsync::agent {

// A version in the form that devices read. It keeps the version and its registrations alive.
struct DeviceVersion {
  std::shared_ptr<const staging::HeldVersion> version;
  std::shared_ptr<const BucketPlan> buckets;  // buckets of the device buffers, not of the transfer
  std::shared_ptr<const device::RegisteredMemory> memory;
  Result<> usable;  // or the reason why it cannot be loaded
};

class DeviceStaging {
 public:
  DeviceStaging(Loop& loop, const reload::DeviceGroup& group);
  // Waits for the computation in progress.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // Calls `on_ready` when find() returns the version, usable or not. If too many versions are
  // waiting, it is called inside this call and the version is not usable.
  void add(std::shared_ptr<const staging::HeldVersion> version, std::function<void()> on_ready);
  // The version is released when the last pointer to it is. Its memory stays registered.
  void remove(const Version& version);
  // Returns nullptr until the version is ready.
  [[nodiscard]] std::shared_ptr<const DeviceVersion> find(const Version& version) const;

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::shared_ptr<const DeviceVersion> ready;
  };
  [[nodiscard]] Result<> prepare(DeviceVersion& out);
  [[nodiscard]] Result<std::shared_ptr<device::RegisteredMemory>> registered(
      const staging::HeldVersion& version);
  using Cell = std::shared_ptr<DeviceVersion>;  // shared by a computation and its completion
  void computed(std::uint64_t number, const std::function<void()>& on_ready);
  void release(std::shared_ptr<const DeviceVersion> version);

  const reload::DeviceGroup& group_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<Version, Entry> entries_;
  std::map<std::uint64_t, std::shared_ptr<Cell>> computing_;  // by number
  std::uint64_t next_ = 1;
  // By the first byte of the mapping. Used on the worker's thread, and here when that has ended.
  std::map<const std::byte*, std::shared_ptr<device::RegisteredMemory>> registered_;
  Worker worker_;  // declared last: it must end before the members that its work uses
};

}  // namespace wsync::agent
