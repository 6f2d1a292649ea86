#include "inference_side/staging/held_version.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/weights/leaf_check.h"

namespace wsync::staging {
namespace {

std::span<const std::byte> data_of(const HeldVersion::Memory& memory) {
  if (const auto* view = std::get_if<ArenaView>(&memory)) return view->data();
  if (const auto* own = std::get_if<std::shared_ptr<OwnArena>>(&memory))
    return (*own)->arena.data();
  return {};
}

}  // namespace

Version version_of(const ArenaIdentity& identity) {
  return {.epoch = static_cast<std::uint32_t>(identity.version_epoch),
          .step = identity.version_step};
}

HeldVersion::HeldVersion(const StagingJob& job, ContentDigests digests, Memory memory,
                         bool is_verified)
    : identity_(job.identity),
      manifest_(job.manifest),
      plan_(job.plan),
      leaves_(job.leaves),
      digests_(std::move(digests)),
      memory_(std::move(memory)),
      data_(data_of(memory_)),
      is_verified_(is_verified) {}

std::shared_ptr<const HeldVersion> HeldVersion::make(const StagingJob& job, ContentDigests digests,
                                                     Memory memory, bool is_verified,
                                                     const std::shared_ptr<ThreadPool>& unmapper) {
  const auto unmap = [unmapper = std::weak_ptr(unmapper)](HeldVersion* held) {
    const std::unique_ptr<HeldVersion> owned(held);
    auto* view = std::get_if<ArenaView>(&owned->memory_);
    const auto pool = unmapper.lock();
    if (view == nullptr || !pool) return;
    // A shared pointer, because tasks must be copyable. The arena is unmapped when the task is
    // destroyed, whether it was executed or dropped.
    pool->post([mapping = std::move(*view).end()] {});
  };
  return {new HeldVersion(job, std::move(digests), std::move(memory), is_verified), unmap};
}

std::shared_ptr<const HeldVersion> HeldVersion::with_memory(
    Memory memory, const std::shared_ptr<ThreadPool>& unmapper) const {
  StagingJob job;
  job.identity = identity_;
  job.manifest = manifest_;
  job.plan = plan_;
  job.leaves = leaves_;
  // The sums of a mapped arena are those of its writer; its bytes have not been read here.
  const bool is_verified = is_verified_ && memory.index() != 0;
  return make(job, digests_, std::move(memory), is_verified, unmapper);
}

Result<> HeldVersion::verify(unsigned threads, const std::stop_token& stop) const {
  const std::lock_guard lock(verify_mutex_);
  if (is_verified_) return {};
  WSYNC_TRY(compare(sum_leaves(*leaves_, data_, threads, stop)));
  is_verified_ = true;
  return {};
}

Result<> HeldVersion::compare(const Result<std::vector<WordSum>>& found) const {
  if (!found) return fail(found.error());
  auto same = compare_leaves(*manifest_, *leaves_, digests_.leaves, *found);
  if (!same) return fail(same.error().with_context("version " + version().to_string()));
  return {};
}

Result<> HeldVersion::prove(std::vector<WordSum> found) const {
  WSYNC_TRY(compare(std::move(found)));
  is_verified_ = true;
  return {};
}

std::shared_ptr<const void> HeldVersion::hold() const {
  if (const auto* view = std::get_if<ArenaView>(&memory_)) return view->region();
  if (const auto* own = std::get_if<std::shared_ptr<OwnArena>>(&memory_)) return *own;
  return nullptr;
}

const MappedRegion& HeldVersion::mapping() const noexcept {
  if (const auto* view = std::get_if<ArenaView>(&memory_)) return *view->region();
  return std::get<std::shared_ptr<OwnArena>>(memory_)->arena.region();
}

Version HeldVersion::version() const noexcept { return version_of(identity_); }

Result<UniqueFd> HeldVersion::share() const {
  if (const auto* view = std::get_if<ArenaView>(&memory_)) return view->share();
  if (!is_complete())
    return fail(
        ErrorCode::kNotFound,
        fmt::format("of {} only what changes from another version is here", version().to_string()));
  return std::get<std::shared_ptr<OwnArena>>(memory_)->arena.share();
}

}  // namespace wsync::staging
