// LoadCache: the load plan and the expected checksums of (a rank's tensors, a version), computed
// once on a worker thread and shared by every rank that takes the same tensors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "inference_side/reload/load_plan.h"
#include "inference_side/staging/store.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/thread_pool.h"
#include "shared/loop/worker.h"

namespace wsync::agent {

// Which checksum an engine compares: what its host copies with, or what a GPU does.
enum class GroupSum : std::uint8_t { kStreamed, kPieceDigest };

struct PreparedLoad {
  std::shared_ptr<const BucketPlan> buckets;  // of the devices' buffers, not of the transfer
  reload::LoadPlan plan;
  std::vector<std::uint64_t> checksums;  // of the plan's groups
};

// Identifies what a rank takes: equal for equal tensor lists.
[[nodiscard]] Digest tensors_key(std::span<const control::EngineTensor> tensors);

// Thread: the loop's. Make it with make_shared: an answer that comes after its end is dropped.
class LoadCache : public std::enable_shared_from_this<LoadCache> {
 public:
  using OnReady = std::function<void(Result<std::shared_ptr<const PreparedLoad>>)>;
  // `helpers` compute piece digests beside the worker; may be null, otherwise outlives the worker's
  // tasks.
  explicit LoadCache(GroupSum sum = GroupSum::kStreamed, ThreadPool* helpers = nullptr)
      : sum_(sum), helpers_(helpers) {}
  // Computes, or joins a computation under way, or answers at once (inside the call).
  void request(Worker& worker, const std::shared_ptr<const staging::HeldVersion>& version,
               std::uint64_t bucket_bytes,
               const std::shared_ptr<const std::vector<control::EngineTensor>>& tensors,
               const Digest& key, OnReady on_ready);
  void forget(const Version& version);

 private:
  struct Entry {
    std::shared_ptr<const PreparedLoad> ready;
    std::vector<OnReady> waiting;
    std::uint64_t number = 0;
  };
  const GroupSum sum_;
  ThreadPool* helpers_;
  std::map<std::pair<Version, Digest>, Entry> entries_;
  std::uint64_t next_ = 1;
};

}  // namespace wsync::agent
