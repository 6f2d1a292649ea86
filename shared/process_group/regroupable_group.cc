#include "shared/process_group/regroupable_group.h"

#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::collective {
namespace {

const ProcessGroup& there(const std::unique_ptr<ProcessGroup>& group) {
  WSYNC_CHECK(group != nullptr, "a regroupable group is created with a group");
  return *group;
}

}  // namespace

RegroupableGroup::RegroupableGroup(std::unique_ptr<ProcessGroup> inner)
    : rank_(there(inner).rank()), size_(there(inner).size()), inner_(std::move(inner)) {}

std::shared_ptr<ProcessGroup> RegroupableGroup::inner() const {
  const std::lock_guard lock(mutex_);
  return inner_;
}

Result<> RegroupableGroup::regroup(std::unique_ptr<ProcessGroup> inner) {
  if (inner == nullptr)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} of {} cannot continue without a group", rank_, size_));
  if (inner->rank() != rank_ || inner->size() != size_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} of {} cannot continue as rank {} of {}: the new group must "
                            "have the same ranks as the old one",
                            rank_, size_, inner->rank(), inner->size()));
  std::shared_ptr<ProcessGroup> former = std::move(inner);
  {
    const std::lock_guard lock(mutex_);
    inner_.swap(former);
  }
  return {};  // the former group is destroyed here, outside the lock
}

Result<> RegroupableGroup::exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    TimePoint deadline) {
  return inner()->exchange(sends, receives, deadline);
}

void RegroupableGroup::abort(const Error& reason) { inner()->abort(reason); }

Result<> RegroupableGroup::health() const { return inner()->health(); }

}  // namespace wsync::collective
