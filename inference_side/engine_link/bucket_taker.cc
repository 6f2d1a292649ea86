#include "inference_side/engine_link/bucket_taker.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::engine {
namespace {

// Require the seal: without it the owner could shrink the buffer, and the next read would kill this
// process with SIGBUS.
Result<MappedRegion> map_ipc_buffer(int fd, std::uint64_t bytes) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info{};
  if (seals < 0 || (seals & kNeeded) != kNeeded || ::fstat(fd, &info) != 0)
    return fail(ErrorCode::kRefused, "an IPC buffer is not a memfd of sealed size");
  if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) < bytes)
    return fail(
        ErrorCode::kRefused,
        fmt::format("an IPC buffer has {} bytes, expected {} as announced", info.st_size, bytes));
  auto region = MappedRegion::map(fd, bytes, false);
  if (!region) return region;
  WSYNC_TRY(region->keep_from_children());
  WSYNC_TRY(region->populate(false, 1));
  return region;
}

}  // namespace

Result<std::unique_ptr<BucketTaker>> HostTaker::map(std::span<const UniqueFd> fds,
                                                    std::uint64_t bytes) {
  if (fds.size() != 2)
    return fail(ErrorCode::kRefused,
                fmt::format("the welcome carried {} IPC buffers, expected 2", fds.size()));
  std::unique_ptr<HostTaker> taker(new HostTaker());
  for (const UniqueFd& fd : fds) {
    auto region = WSYNC_TRY(map_ipc_buffer(fd.get(), bytes));
    taker->mapped_.push_back(std::move(region));
    taker->slots_.emplace_back(taker->mapped_.back().bytes());
  }
  return std::unique_ptr<BucketTaker>(std::move(taker));
}

Result<> HostTaker::take(std::uint32_t slot, const BucketCopy& copy) {
  const reload::LoadPlan& plan = *copy.plan;
  for (std::size_t g = plan.first_group(copy.bucket); g < plan.first_group(copy.bucket + 1); ++g) {
    const reload::CopyGroup& group = plan.groups()[g];
    const bool skipped = planted("engine_skip_piece") && g == plan.groups().size() / 2;
    SplitSum sum;
    if (skipped) {
      sum = plan.sum(group, slots_[slot]);
    } else {
      const Destination destination = copy.destination(group.tensor);
      for (std::uint64_t i = 0; i < reload::LoadPlan::chunk_count(group); ++i)
        sum += take_chunk(plan, group, i, slots_[slot], destination, scratch_);
    }
    WSYNC_TRY(copy.on_group(g, sum));
    if (now() > copy.deadline)
      return fail(ErrorCode::kDeadline,
                  fmt::format("the deadline passed during the copy of bucket {}", copy.bucket));
  }
  return {};
}

}  // namespace wsync::engine
