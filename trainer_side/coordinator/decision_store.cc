#include "trainer_side/coordinator/decision_store.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/base/record_file.h"
#include "shared/control/withdrawn.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::coordinator {

Result<> check_replaces(const CoordinatorRecord& next,
                        const std::optional<CoordinatorRecord>& stored) {
  if (!stored || planted("store_not_compared")) return {};
  const bool claims = next.number == 0;
  // A fleet id without any decision binds nobody.
  if (stored->fence.fleet != next.fence.fleet && !(claims && stored->origin.none()))
    return fail(ErrorCode::kRefused,
                fmt::format("the stored record is of fleet {}, but this coordinator's fleet is {}: "
                            "give each of the two fleets its own name (`fleet`)",
                            stored->fence.fleet.to_string(), next.fence.fleet.to_string()));
  if (stored->fence == next.fence) return {};
  if (claims && next.fence.epoch > stored->fence.epoch) return {};
  return fail(ErrorCode::kFenced,
              fmt::format("another coordinator with the same state has claimed fence epoch {} "
                          "(this one's is {}); start with --take-over to claim above it",
                          stored->fence.epoch, next.fence.epoch));
}

CoordinatorRecord after_claim(const CoordinatorRecord& next, const CoordinatorRecord& stored) {
  CoordinatorRecord claim = next;
  const auto add = [](auto& to, const auto& from) {
    for (const auto& one : from)
      if (std::ranges::find(to, one) == to.end()) to.push_back(one);
  };
  add(claim.withdrawn, stored.withdrawn);
  add(claim.members, stored.members);
  const auto serves = [&](const CoordinatorRecord& record) {
    return !record.target.none() && !contains(claim.withdrawn, record.target);
  };
  if (serves(stored) && (stored.origin > next.origin || !serves(next))) {
    claim.origin = stored.origin;
    claim.kind = stored.kind;
    claim.target = stored.target;
    claim.content = stored.content;
  }
  control::bound_withdrawn(claim.withdrawn, std::array{claim.target});
  if (claim.members.size() > limits::kSidecarCount) claim.members.resize(limits::kSidecarCount);
  return claim;
}

FileDecisionStore::FileDecisionStore(const std::filesystem::path& directory, Claim claims)
    : path_(directory / "coordinator.decisions"), claims_(claims) {}

Result<std::optional<CoordinatorRecord>> FileDecisionStore::read() {
  Result<Bytes> file = read_record(path_, kCoordinatorRecordBytesMax);
  if (!file && file.error().code() == ErrorCode::kNotFound) return std::nullopt;
  const Bytes bytes = WSYNC_TRY(std::move(file));
  auto record = decode_coordinator_record(bytes);
  if (!record)
    return fail(record.error().with_context(
        path_.string() +
        " is damaged: restore it, or remove it (the sidecars remember their decisions)"));
  return std::move(*record);
}

Result<CoordinatorRecord> FileDecisionStore::write(const CoordinatorRecord& next) {
  const bool claims = next.number == 0;
  CoordinatorRecord written = next;
  const auto content = [&]() -> Result<Bytes> {
    const std::optional<CoordinatorRecord> stored = WSYNC_TRY(read());
    WSYNC_TRY(check_replaces(next, stored));
    if (claims && stored && stored->fence != next.fence) written = after_claim(next, *stored);
    return encode(written);
  };
  WSYNC_TRY(write_record(path_, content, claims ? claims_ : Claim::kIfFree));
  return written;
}

Result<> FileDecisionStore::lead(const std::string& advice) {
  const std::string path = lock_path();
  lock_.emplace(WSYNC_TRY(claims_ == Claim::kTakeOver
                              ? LockFile::seize(path)
                              : LockFile::acquire(path, {}, LockFile::Naming::kRequired, advice)));
  return {};
}

Result<> FileDecisionStore::stand_by(const std::function<void(const std::string&)>& on_wait) {
  std::string said;
  while (!is_cancelled_) {
    auto lock = LockFile::acquire(lock_path(), {}, LockFile::Naming::kRequired, {});
    if (lock) {
      lock_.emplace(std::move(*lock));
      return {};
    }
    if (lock.error().code() != ErrorCode::kBusy) return fail(lock.error());
    if (said != lock.error().message()) on_wait(said = lock.error().message());
    std::this_thread::sleep_for(kStandByLook);
  }
  return fail(ErrorCode::kCancelled, "this process ends");
}

}  // namespace wsync::coordinator
