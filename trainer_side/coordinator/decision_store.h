// DecisionStore: where the record of a fleet's coordinator is kept, so that a coordinator that
// starts anew knows the newest decision, and so that two coordinators that share the store never
// both decide. Every write is one transaction: it happens only if the stored claim is still the
// writer's own, or if it is a claim above the stored one.
//
// Thread: any one at a time; calls block (an implementation waits for a disc or a network). The
// agent calls write() on a worker thread.
#pragma once

#include <filesystem>
#include <optional>

#include "shared/base/unix_socket.h"
#include "trainer_side/coordinator/coordinator_record.h"

namespace wsync::coordinator {

// Why `next` may not replace `stored`; success when it may. Pure: the rule of every store.
// kFenced: another coordinator of this store has claimed the fleet meanwhile; kRefused: the stored
// record is of another fleet.
[[nodiscard]] Result<> check_replaces(const CoordinatorRecord& next,
                                      const std::optional<CoordinatorRecord>& stored);

// What a claim stores where `stored` is: the newer of the two decisions (by their origins) whose
// target is not withdrawn, and everything that either knows to be withdrawn or a member. Another
// coordinator may have decided between this one's read and its claim, and that decision must not be
// forgotten.
[[nodiscard]] CoordinatorRecord after_claim(const CoordinatorRecord& next,
                                            const CoordinatorRecord& stored);

class DecisionStore {
 public:
  virtual ~DecisionStore() = default;
  // Nothing when no record was ever stored here. kInvalidInput: it is damaged; the sentence says
  // what to do.
  [[nodiscard]] virtual Result<std::optional<CoordinatorRecord>> read() = 0;
  // Durable once it returns; gives what is stored now: `next`, or for a claim `next` with the newer
  // decision that it found (see after_claim). On an error the record before it stands; errors of
  // check_replaces, or those of the medium.
  [[nodiscard]] virtual Result<CoordinatorRecord> write(const CoordinatorRecord& next) = 0;
};

// One file, `<directory>/coordinator.decisions`, written as durable_file.h says. With kTakeOver a
// claim waits for no writer that stands still; it is left behind, and its write fails.
class FileDecisionStore final : public DecisionStore {
 public:
  FileDecisionStore(const std::filesystem::path& directory, Claim claims);
  [[nodiscard]] Result<std::optional<CoordinatorRecord>> read() override;
  [[nodiscard]] Result<CoordinatorRecord> write(const CoordinatorRecord& next) override;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  Claim claims_;
};

}  // namespace wsync::coordinator
