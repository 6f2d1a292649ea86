// DecisionStore: stores the record of a fleet's coordinator, so that a restarted coordinator knows
// the newest decision, and so that two coordinators that share the store never both decide. Every
// write is one transaction: it succeeds only if the stored claim is still the writer's own, or if
// it is a claim above the stored one.
//
// Thread: any, one at a time. Calls block (an implementation waits for a disk or a network). The
// agent calls write() on a worker thread. Any thread may call cancel() and the views.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "shared/base/unix_socket.h"
#include "trainer_side/coordinator/coordinator_record.h"

namespace wsync::coordinator {

// Returns why `next` may not replace `stored`, or success. Pure; every store follows this rule.
// kFenced: another coordinator of this store has claimed the fleet meanwhile; kRefused: the stored
// record belongs to another fleet.
[[nodiscard]] Result<> check_replaces(const CoordinatorRecord& next,
                                      const std::optional<CoordinatorRecord>& stored);

// The record that a claim stores in place of `stored`: the newer of the two decisions (by origin)
// whose target is not withdrawn, and all withdrawn versions and members of both records. Another
// coordinator may have decided between this coordinator's read and its claim, and that decision
// must not be lost.
[[nodiscard]] CoordinatorRecord after_claim(const CoordinatorRecord& next,
                                            const CoordinatorRecord& stored);

// How often a coordinator that stands by looks whether another one leads.
inline constexpr std::chrono::milliseconds kStandByLook{200};

class DecisionStore {
 public:
  virtual ~DecisionStore() = default;
  // Returns std::nullopt if no record was ever stored here; kInvalidInput, with a remedy, if it is
  // damaged.
  [[nodiscard]] virtual Result<std::optional<CoordinatorRecord>> read() = 0;
  // Durable when it returns. Returns the stored record: `next`, or for a claim `next` with the
  // newer decision that it found (see after_claim). After an error the previous record stays valid.
  // Errors of check_replaces, or those of the medium.
  [[nodiscard]] virtual Result<CoordinatorRecord> write(const CoordinatorRecord& next) = 0;
  // Keeps other coordinators of this store from starting by mistake, until destruction or the end
  // of this process. Which of two may decide is what write() says. kBusy: another one lives; the
  // sentence names it and ends with `advice`. Call it once.
  [[nodiscard]] virtual Result<> lead(const std::string& advice) = 0;
  // The same for a coordinator that stands by: waits until no other one leads, however long that
  // takes, and while the medium does not answer. It never takes the lead from another one.
  // `on_wait` is called with a sentence, on this thread, whenever what is awaited changes.
  // kCancelled: cancel() was called. kRefused: the medium refuses this process. Call it in place of
  // lead(), once.
  [[nodiscard]] virtual Result<> stand_by(
      const std::function<void(const std::string&)>& on_wait) = 0;
  // Whether lead() may wait for seconds. It is then called before an address is bound, because
  // whoever connects would not be answered meanwhile.
  [[nodiscard]] virtual bool leads_first() const { return false; }
  // For sentences: where the record is.
  [[nodiscard]] virtual std::string name() const = 0;
  // Ends a stand_by() and a write() that wait and every later one, before destruction. Thread: any.
  virtual void cancel() = 0;
  // A write that has not returned after this time means that the medium is broken; std::nullopt: it
  // takes as long as it takes.
  [[nodiscard]] virtual std::optional<std::chrono::milliseconds> write_deadline() const {
    return std::chrono::seconds(40);
  }
};

// One file, `<directory>/coordinator.decisions`, written as in record_file.h. With kTakeOver a
// claim does not wait for a suspended writer; the write of that writer then fails. lead() holds
// `<directory>/coordinator.lock`.
class FileDecisionStore final : public DecisionStore {
 public:
  FileDecisionStore(const std::filesystem::path& directory, Claim claims);
  [[nodiscard]] Result<std::optional<CoordinatorRecord>> read() override;
  [[nodiscard]] Result<CoordinatorRecord> write(const CoordinatorRecord& next) override;
  [[nodiscard]] Result<> lead(const std::string& advice) override;
  [[nodiscard]] Result<> stand_by(const std::function<void(const std::string&)>& on_wait) override;
  void cancel() override { is_cancelled_ = true; }
  [[nodiscard]] std::string name() const override { return path_.string(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  [[nodiscard]] std::string lock_path() const {
    return (path_.parent_path() / "coordinator.lock").string();
  }
  std::filesystem::path path_;
  Claim claims_;
  std::optional<LockFile> lock_;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace wsync::coordinator
