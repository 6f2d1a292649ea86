// EtcdDecisionStore: the record of a fleet in an etcd cluster, so that it survives the loss of the
// coordinator's host. Each write is one transaction of etcd: "if the newest change of the record is
// still the one that I have read, store mine". So of two coordinators only one ever decides, also
// when the other one was suspended for an hour between its read and its write.
//
// Keys: /wsync/FLEET/record has the bytes of a CoordinatorRecord; /wsync/FLEET/leader names the
// coordinator that runs, and goes when that has not extended its lease for kLeaseTime. The lease
// only says when another one may start without being told to. It never says who may decide.
//
// A write whose answer is lost is repeated until a member has said what became of it: the same
// transaction cannot be done twice, because the first time changes what it compares. Until then
// nobody knows whether the decision is stored, so write() does not return. on_trouble is told.
//
// Thread: as DecisionStore; a thread of its own extends the lease.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer_side/coordinator/decision_store.h"
#include "trainer_side/coordinator/etcd/etcd_client.h"
#include "trainer_side/coordinator/etcd/etcd_messages.h"

namespace wsync::coordinator::etcd {

inline constexpr std::chrono::seconds kLeaseTime{5};

struct EtcdStoreOptions {
  std::vector<std::string> members;  // URLs of the cluster's members
  http::TlsFiles tls;                // for those at https://
  std::string fleet;                 // name of the fleet, part of the keys
  Claim claims = Claim::kIfFree;     // kTakeOver: lead() replaces a coordinator that runs
  std::string self;                  // this coordinator, for the sentence that another one prints
  // How long a read, or a write that has certainly not been done, is tried again.
  std::chrono::milliseconds wait_limit{10'000};
  // Called with a sentence for operators, on the thread that writes.
  std::function<void(const std::string&)> on_trouble = [](const std::string&) {};
  // Called once when no member has extended the lease for kLeaseTime, with the last failure, so
  // that another coordinator may lead; on the thread of the lease. It goes on trying all the same.
  std::function<void(const std::string&)> on_lease_ended = [](const std::string&) {};
  // Called once if another coordinator leads the fleet instead of this one, with what it says of
  // itself, on the thread of the lease.
  std::function<void(const std::string&)> on_replaced = [](const std::string&) {};
};

class EtcdDecisionStore final : public DecisionStore {
 public:
  // Asks nobody yet. Errors of EtcdClient::create() and ClientTls::create().
  [[nodiscard]] static Result<std::unique_ptr<EtcdDecisionStore>> create(EtcdStoreOptions options);
  EtcdDecisionStore(const EtcdDecisionStore&) = delete;
  EtcdDecisionStore& operator=(const EtcdDecisionStore&) = delete;
  // Ends the lease, so that another coordinator can start at once; waits 2 s for etcd at most.
  ~EtcdDecisionStore() override;

  // kIo if no member answers in time; otherwise as DecisionStore.
  [[nodiscard]] Result<std::optional<CoordinatorRecord>> read() override;
  // As DecisionStore. kIo: no member could be reached in time, or etcd refuses it (its disc is
  // full, for example), and nothing was stored. kCancelled: cancel() was called, and it is not
  // known whether it was stored.
  [[nodiscard]] Result<CoordinatorRecord> write(const CoordinatorRecord& next) override;
  // Waits for kLeaseTime and a second at most for a coordinator that was killed. kBusy: it lives.
  [[nodiscard]] Result<> lead(const std::string& advice) override;
  // As DecisionStore. Looks every kStandByLook; a coordinator that was killed leads until its lease
  // ends.
  [[nodiscard]] Result<> stand_by(const std::function<void(const std::string&)>& on_wait) override;
  // Not with kTakeOver: a failure to bind an address must leave the other coordinator its lead.
  [[nodiscard]] bool leads_first() const override { return options_.claims == Claim::kIfFree; }
  [[nodiscard]] std::string name() const override;
  void cancel() override;
  [[nodiscard]] std::optional<std::chrono::milliseconds> write_deadline() const override {
    return std::nullopt;
  }

 private:
  struct Known {
    std::uint64_t revision = 0;
    std::optional<CoordinatorRecord> record;
  };
  EtcdDecisionStore(EtcdStoreOptions options, std::shared_ptr<const http::ClientTls> tls,
                    std::unique_ptr<EtcdClient> client, std::unique_ptr<EtcdClient> lease_client);
  [[nodiscard]] Result<Known> known_of(const KeyValue& found) const;
  [[nodiscard]] tl::unexpected<Error> no_answer(const std::string& doing,
                                                const std::string& why) const;
  // Asks until a member has answered, for `wait_limit` at most.
  [[nodiscard]] Result<std::string> ask(EtcdClient& client, std::string_view path,
                                        const std::string& body, const std::string& doing) const;
  // Stores `value` if the newest change of the record is `revision`. An error: it is certainly not
  // stored, or cancelled.
  [[nodiscard]] Result<PutAnswer> put(std::uint64_t revision, const Bytes& value);
  [[nodiscard]] Result<> put_leader(const std::string& advice, std::chrono::seconds wait);
  void keep_lead();
  // Extends the lease, or takes another one if it has ended. Returns who leads instead of this
  // coordinator, if somebody does.
  [[nodiscard]] std::optional<std::string> extend_lease();

  const EtcdStoreOptions options_;
  const std::shared_ptr<const http::ClientTls> tls_;  // null without https://
  const std::string record_key_;
  const std::string leader_key_;
  const Bytes leader_value_;
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<EtcdClient> lease_client_;
  std::optional<Known> known_;  // the record as it was read or stored last
  std::int64_t lease_ = 0;      // of the lease's thread, once that runs
  TimePoint extended_{};        // when a member was last asked to extend it and did; likewise
  std::string silence_;         // why nobody has extended it last; likewise
  std::thread keeper_;          // extends the lease
};

}  // namespace wsync::coordinator::etcd
