// LoadCache: the load plan for the tensors of a rank and a version. It is computed once on a worker
// thread, and shared by every rank that takes the same tensors. For a rank that maps the version,
// it is verified there first.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "inference_side/reload/load_plan.h"
#include "inference_side/reload/needed_bytes.h"
#include "inference_side/staging/store.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

struct PreparedLoad {
  std::shared_ptr<const BucketPlan> buckets;  // device buffers; unified devices: transfer buckets
  reload::LoadPlan plan;
  reload::NeededBytes needed;  // of the device buffers
};

// Identifies the list of tensors that a rank takes. Equal lists have equal keys.
[[nodiscard]] Digest tensors_key(std::span<const control::EngineTensor> tensors);

// The tensors that a rank takes, and how.
struct TakenTensors {
  std::shared_ptr<const std::vector<control::EngineTensor>> list;  // null: all of each version
  Digest key;                                                      // tensors_key(*list)
  // The rank reads the version itself, so the version must have been verified.
  bool maps_version = false;
};

// Thread: the loop's. Create it with make_shared, because a computation that outlives the cache
// must drop its result.
class LoadCache : public std::enable_shared_from_this<LoadCache> {
 public:
  using OnReady = std::function<void(Result<std::shared_ptr<const PreparedLoad>>)>;
  LoadCache() = default;
  // Starts the computation, joins one in progress, or answers at once inside the call. `on_ready`
  // receives an error if the plan cannot be made, if the version is not what its digest says, or if
  // the worker's queue is full.
  void request(Worker& worker, const std::shared_ptr<const staging::HeldVersion>& version,
               std::uint64_t bucket_bytes, const TakenTensors& tensors, OnReady on_ready);
  // Drops everything about a version. Computations in progress for it are stopped, so that they
  // hold it no longer than needed, and call no callback.
  void forget(const Version& version);
  // The same for all versions.
  ~LoadCache();
  LoadCache(const LoadCache&) = delete;
  LoadCache& operator=(const LoadCache&) = delete;

 private:
  struct Entry {
    std::shared_ptr<const PreparedLoad> ready;
    std::vector<OnReady> waiting;
    std::uint64_t number = 0;
    std::stop_source stop;  // of the computation
  };
  struct Key {
    Version version;
    Digest tensors;
    bool any_layout = false;
    bool maps_version = false;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::map<Key, Entry> entries_;
  std::uint64_t next_ = 1;
};

}  // namespace wsync::agent
