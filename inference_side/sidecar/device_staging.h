// DeviceStaging: what devices need of a version before a pause may begin, made while engines still
// serve the one before: its bytes registered with every device (pinned), and for GPUs the digest of
// each bucket, which is compared after each broadcast.
//
// Thread: the loop's; callbacks come on the loop.
// Outlives: loop and group outlive it.
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

// A version as devices take it. Keeps the version, and its registrations while it lives.
struct DeviceVersion {
  std::shared_ptr<const staging::HeldVersion> version;
  std::shared_ptr<const BucketPlan> buckets;  // of the devices' buffers, not of the transfer
  std::shared_ptr<const std::vector<device::PieceDigest>> digests;  // null: host devices
  std::vector<std::unique_ptr<device::HostRegistration>> registrations;
  std::string failure;  // not empty: it cannot be loaded
};

class DeviceStaging {
 public:
  // `helpers` compute digests beside its own thread; may be null, otherwise outlives it.
  DeviceStaging(Loop& loop, const reload::DeviceGroup& group, ThreadPool* helpers);
  // Waits for what is being computed.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // `on_ready` when find() has it, with its failure if there is one; at once when too much waits.
  void add(std::shared_ptr<const staging::HeldVersion> version, std::function<void()> on_ready);
  // It is unregistered when nobody has a pointer to it any more.
  void remove(const Version& version);
  // Null until it is ready.
  [[nodiscard]] std::shared_ptr<const DeviceVersion> find(const Version& version) const;

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::shared_ptr<const DeviceVersion> ready;
  };
  using Cell = std::shared_ptr<DeviceVersion>;  // shared by a computation and what follows it
  void on_computed(std::uint64_t number, const std::function<void()>& on_ready);
  void let_go(std::shared_ptr<const DeviceVersion> version);

  const reload::DeviceGroup& group_;
  ThreadPool* helpers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<Version, Entry> entries_;
  std::map<std::uint64_t, std::shared_ptr<Cell>> computing_;  // by number
  std::uint64_t next_ = 1;
  Worker worker_;  // last: it ends before what its work uses
};

}  // namespace wsync::agent
