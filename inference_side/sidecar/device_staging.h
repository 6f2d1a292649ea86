// DeviceStaging: prepares the devices for a version while the engines still serve an older one, so
// that the pause is short. It registers (pins) the version's bytes with every device. For GPUs it
// also computes the digest of each bucket, which is compared after each broadcast.
//
// Thread: the loop's; callbacks are called on the loop. The loop and the group must outlive this
// object.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inference_side/reload/device_group.h"
#include "inference_side/staging/store.h"
#include "shared/base/thread_pool.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"
#include "shared/weights/bucket_plan.h"

namespace wsync::agent {

// A version in the form that devices read. It keeps the version and its registrations alive.
struct DeviceVersion {
  std::shared_ptr<const staging::HeldVersion> version;
  std::shared_ptr<const BucketPlan> buckets;  // buckets of the device buffers, not of the transfer
  std::shared_ptr<const std::vector<device::PieceDigest>> digests;  // null: host devices
  std::vector<std::unique_ptr<device::HostRegistration>> registrations;
  Result<> usable;  // or the reason why it cannot be loaded
};

class DeviceStaging {
 public:
  // `helpers` compute digests in addition to this object's own thread. It may be null; otherwise it
  // must outlive this object.
  DeviceStaging(Loop& loop, const reload::DeviceGroup& group, ThreadPool* helpers);
  // Waits for the computation in progress.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // Calls `on_ready` when find() returns the version, usable or not. If too many versions are
  // waiting, it is called inside this call and the version is not usable.
  void add(std::shared_ptr<const staging::HeldVersion> version, std::function<void()> on_ready);
  // The version is unregistered when the last pointer to it is released.
  void remove(const Version& version);
  // Returns nullptr until the version is ready.
  [[nodiscard]] std::shared_ptr<const DeviceVersion> find(const Version& version) const;

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::shared_ptr<const DeviceVersion> ready;
  };
  using Cell = std::shared_ptr<DeviceVersion>;  // shared by a computation and its completion
  void computed(std::uint64_t number, const std::function<void()>& on_ready);
  void release(std::shared_ptr<const DeviceVersion> version);

  const reload::DeviceGroup& group_;
  ThreadPool* helpers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<Version, Entry> entries_;
  std::map<std::uint64_t, std::shared_ptr<Cell>> computing_;  // by number
  std::uint64_t next_ = 1;
  Worker worker_;  // declared last: it must end before the members that its work uses
};

}  // namespace wsync::agent
