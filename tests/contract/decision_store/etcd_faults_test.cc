// What an etcd and a network between do to a decision store: answers that are lost, requests that
// arrive late, members that hang, are killed and come back.
#include <atomic>
#include <future>
#include <gmock/gmock.h>
#include <memory>
#include <mutex>
#include <thread>

#include "shared/base/format.h"
#include "tests/contract/decision_store/cutting_proxy.h"
#include "tests/contract/decision_store/etcd_process.h"
#include "trainer_side/coordinator/etcd/etcd_decision_store.h"

namespace wsync::coordinator::etcd {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class EtcdFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_etcd(); !why.empty()) GTEST_SKIP() << why;
    etcd_ = std::make_unique<EtcdProcess>();
    proxy_ = std::make_unique<CuttingProxy>(etcd_->port());
  }
  std::unique_ptr<EtcdDecisionStore> open(std::vector<std::string> members,
                                          Claim claims = Claim::kIfFree) {
    return EtcdDecisionStore::create({.members = std::move(members),
                                      .fleet = "f",
                                      .claims = claims,
                                      .self = "process 1",
                                      .wait_limit = milliseconds(1000),
                                      .on_trouble = [this](const std::string&) { ++troubles_; },
                                      .on_lease_ended = [this](const std::string&) { ++ended_; },
                                      .on_replaced = [this](const std::string&) { ++replaced_; }})
        .value();
  }
  static CoordinatorRecord record(std::uint64_t epoch, std::uint64_t number, Version target) {
    CoordinatorRecord record;
    record.fence.epoch = epoch;
    record.fence.run_id = {epoch, 1};
    record.fence.fleet = {.high = 3, .low = 4};
    record.number = number;
    record.target = target;
    if (number > 0) record.origin = {.fence = record.fence, .number = number};
    return record;
  }
  [[nodiscard]] Version stored_target() const {
    return decode_coordinator_record(etcd_->value_of("/wsync/f/record").value)->target;
  }
  std::atomic<int> ended_{0};
  std::atomic<int> troubles_{0};
  std::atomic<int> replaced_{0};
  std::unique_ptr<EtcdProcess> etcd_;
  std::unique_ptr<CuttingProxy> proxy_;
};

TEST_F(EtcdFaults, ADecisionWhoseAnswerIsLostIsStoredOnceAndSaidToBe) {
  const auto store = open({proxy_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  proxy_->lose_answers(2);
  const auto stored = store->write(record(1, 1, {1, 5}));
  ASSERT_TRUE(stored.has_value()) << "it is stored, and its coordinator says that it is not: "
                                  << stored.error().message();
  EXPECT_EQ(stored_target(), (Version{1, 5}));
  EXPECT_TRUE(store->write(record(1, 2, {1, 6})).has_value()) << "the store goes on";
}

std::string http_answer(int status, const std::string& body) {
  return fmt::format(
      "HTTP/1.1 {} No\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status,
      body.size(), body);
}
const std::string kFull = http_answer(
    429, R"({"error":"etcdserver: mvcc: database space exceeded","code":8,"message":"x"})");

// etcd applies a transaction before it finds out that its store is full, and then takes no other.
TEST_F(EtcdFaults, ADecisionThatAFullStoreHasStoredIsSaidToBe) {
  const auto store = open({proxy_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  proxy_->answer_instead(kFull, true);
  const auto stored = store->write(record(1, 1, {1, 5}));
  ASSERT_TRUE(stored.has_value()) << stored.error().message();
  EXPECT_EQ(stored_target(), (Version{1, 5}));
  proxy_->answer_instead({}, false);
  EXPECT_TRUE(store->write(record(1, 2, {1, 6})).has_value());
}

TEST_F(EtcdFaults, ADecisionThatAFullStoreHasNotStoredFails) {
  const auto store = open({proxy_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  proxy_->answer_instead(kFull, false);
  const auto refused = store->write(record(1, 1, {1, 5}));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kIo);
  EXPECT_THAT(refused.error().message(), HasSubstr("database space exceeded"));
  EXPECT_EQ(stored_target(), Version());
}

// A kept connection ends under the request, which is then sent once more.
TEST_F(EtcdFaults, TheAnswerToARepeatedRequestDoesNotSpeakForTheFirstOne) {
  for (const int status : {403, 408, 429, 503}) {
    const auto store = open({proxy_->url()}, Claim::kTakeOver);
    const auto epoch = static_cast<std::uint32_t>(status);
    ASSERT_TRUE(store->write(record(epoch, 0, {})).has_value());
    proxy_->lose_answers(1);
    proxy_->answer_instead(http_answer(status, "no"), false);
    const auto stored = store->write(record(epoch, 1, {epoch, 5}));
    ASSERT_TRUE(stored.has_value()) << status << ": " << stored.error().message();
    EXPECT_EQ(stored_target(), (Version{epoch, 5}));
    proxy_->answer_instead({}, false);
  }
}

TEST_F(EtcdFaults, AnAnswerThatIsNotUnderstoodLeavesItOpen) {
  const auto store = open({proxy_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  proxy_->answer_instead(http_answer(200, "{}"), true);
  EXPECT_TRUE(store->write(record(1, 1, {1, 5})).has_value());
  EXPECT_EQ(stored_target(), (Version{1, 5}));
}

TEST_F(EtcdFaults, ARecordThatWasRemovedIsNotMadeAgainByADecision) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  auto client = EtcdClient::create({etcd_->url()}).value();
  ASSERT_TRUE(client->ask("/v3/kv/deleterange", range_request("/wsync/f/record")).is_done);
  const auto refused = store->write(record(1, 1, {1, 5}));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFenced);
  EXPECT_THAT(refused.error().message(), HasSubstr("was removed since"));
}

TEST_F(EtcdFaults, ANameThatWasRemovedIsPutAgain) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->lead("advice").has_value());
  auto client = EtcdClient::create({etcd_->url()}).value();
  ASSERT_TRUE(client->ask("/v3/kv/deleterange", range_request("/wsync/f/leader")).is_done);
  const TimePoint end = now() + std::chrono::seconds(20);
  while (etcd_->value_of("/wsync/f/leader").revision == 0 && now() < end)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_NE(etcd_->value_of("/wsync/f/leader").revision, 0U);
}

TEST_F(EtcdFaults, ATransactionThatComesLateChangesNothing) {
  const auto store = open({proxy_->url(), etcd_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  proxy_->hold_next();
  ASSERT_TRUE(store->write(record(1, 1, {1, 5})).has_value()) << "the other member has done it";
  ASSERT_TRUE(proxy_->has_held());
  ASSERT_TRUE(store->write(record(1, 2, {1, 6})).has_value());
  EXPECT_THAT(proxy_->release(), ::testing::Not(HasSubstr("\"succeeded\":true")));
  EXPECT_EQ(stored_target(), (Version{1, 6})) << "an old decision has replaced a newer one";
}

TEST_F(EtcdFaults, AnotherCoordinatorDecidesWhileTheAnswerIsAwaited) {
  const auto store = open({proxy_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  proxy_->hold_next();
  const auto newer = open({etcd_->url()});
  Result<CoordinatorRecord> outcome = fail(ErrorCode::kInternal, "not called");
  std::thread writer([&] { outcome = store->write(record(1, 1, {1, 5})); });
  while (!proxy_->has_held()) std::this_thread::yield();
  ASSERT_TRUE(newer->write(record(2, 0, {})).has_value());
  writer.join();
  ASSERT_FALSE(outcome.has_value()) << "both have decided";
  EXPECT_EQ(outcome.error().code(), ErrorCode::kFenced);
  (void)proxy_->release();
  EXPECT_EQ(decode_coordinator_record(etcd_->value_of("/wsync/f/record").value)->fence.epoch, 2U);
}

TEST_F(EtcdFaults, WithoutAMemberNothingIsStoredAndItIsSaid) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  etcd_->end(SIGTERM);
  const auto refused = store->write(record(1, 1, {1, 5}));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kIo);
  EXPECT_THAT(refused.error().message(), HasSubstr(etcd_->url()));
  EXPECT_THAT(refused.error().message(), HasSubstr("Connection refused"));
  etcd_->start();
  EXPECT_EQ(stored_target(), Version{}) << "what was said to have failed has happened";
  const auto stored = store->write(record(1, 1, {1, 5}));
  EXPECT_TRUE(stored.has_value()) << stored.error().message();
}

TEST_F(EtcdFaults, AMemberThatHangsIsWaitedForBecauseItMayHaveTheDecision) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  etcd_->signal(SIGSTOP);
  std::atomic<bool> has_returned{false};
  Result<CoordinatorRecord> outcome = fail(ErrorCode::kInternal, "not called");
  std::thread writer([&] {
    outcome = store->write(record(1, 1, {1, 5}));
    has_returned = true;
  });
  // It says so, instead of an answer that nobody can know.
  while (troubles_ == 0 && !has_returned) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(has_returned) << "nobody can know yet whether it is stored";
  etcd_->signal(SIGCONT);
  writer.join();
  ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
  EXPECT_EQ(stored_target(), (Version{1, 5}));
  EXPECT_EQ(troubles_, 2) << "and that it answers again";
}

TEST_F(EtcdFaults, TheEndOfAProcessDoesNotWaitForEtcd) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->write(record(1, 0, {})).has_value());
  etcd_->signal(SIGSTOP);
  Result<CoordinatorRecord> outcome = fail(ErrorCode::kInternal, "not called");
  std::thread writer([&] { outcome = store->write(record(1, 1, {1, 5})); });
  std::this_thread::sleep_for(milliseconds(50));  // before or in the request: both must end
  store->cancel();
  writer.join();
  ASSERT_FALSE(outcome.has_value());
  EXPECT_EQ(outcome.error().code(), ErrorCode::kCancelled);
  EXPECT_THAT(outcome.error().message(), HasSubstr("not known whether it was stored"));
  etcd_->signal(SIGCONT);
}

TEST_F(EtcdFaults, AMemberThatHangsIsLeftForTheNextOne) {
  const auto store = open({proxy_->url(), etcd_->url()});
  EtcdProcess hanging;
  hanging.signal(SIGSTOP);
  const auto other = open({hanging.url(), etcd_->url()});
  ASSERT_TRUE(other->write(record(1, 0, {})).has_value());
  EXPECT_TRUE(store->read().value().has_value());
  hanging.signal(SIGCONT);
}

TEST_F(EtcdFaults, ACoordinatorThatIsKilledLeadsForALeaseLonger) {
  // What a killed process leaves: its name under a lease that nobody extends.
  auto client = EtcdClient::create({etcd_->url()}).value();
  const auto lease = parse_grant(client->ask(kGrantPath, grant_request(kLeaseTime)).body).value();
  const std::string name = "process 9 of host h";
  ASSERT_TRUE(
      parse_put(client
                    ->ask(kTransactionPath,
                          put_request("/wsync/f/leader", 0,
                                      std::as_bytes(std::span(name.data(), name.size())), lease))
                    .body)
          ->is_stored);
  const auto store = open({etcd_->url()});
  const auto leads = store->lead("advice");
  EXPECT_TRUE(leads.has_value()) << leads.error().message();
}

TEST_F(EtcdFaults, ALeaseThatNobodyExtendsHasEnded) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->lead("advice").has_value());
  std::this_thread::sleep_for(kLeaseTime + milliseconds(500));
  EXPECT_EQ(ended_, 0) << "etcd answers";
  etcd_->signal(SIGSTOP);
  const TimePoint begin = now();
  const TimePoint end = begin + std::chrono::seconds(30);
  while (ended_ == 0 && now() < end) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(ended_, 1);
  EXPECT_GE(now() - begin, kLeaseTime - milliseconds(2'500)) << "it was extended shortly before";
  etcd_->signal(SIGCONT);
}

TEST_F(EtcdFaults, WhoStandsByWaitsForEtcdAndSaysSo) {
  const auto leader = open({etcd_->url()});
  ASSERT_TRUE(leader->lead("advice").has_value());
  const auto store = open({etcd_->url()});
  std::mutex mutex;
  std::vector<std::string> said;
  const auto says = [&](const std::string& text) {
    const TimePoint end = now() + std::chrono::seconds(30);
    for (; now() < end; std::this_thread::sleep_for(milliseconds(20))) {
      const std::lock_guard lock(mutex);
      if (!said.empty() && said.back().find(text) != std::string::npos) return true;
    }
    return false;
  };
  auto leads = std::async(std::launch::async, [&] {
    return store->stand_by([&](const std::string& what) {
      const std::lock_guard lock(mutex);
      said.push_back(what);
    });
  });
  EXPECT_TRUE(says("is led by"));
  etcd_->signal(SIGSTOP);
  EXPECT_TRUE(says("etcd does not answer"));
  etcd_->signal(SIGCONT);
  EXPECT_TRUE(says("is led by"));
  store->cancel();
  EXPECT_EQ(leads.get().error().code(), ErrorCode::kCancelled);
}

TEST_F(EtcdFaults, ALeaseThatHasEndedIsTakenAgain) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->lead("advice").has_value());
  const Bytes name = etcd_->value_of("/wsync/f/leader").value;
  ASSERT_FALSE(name.empty());
  // As if this process had stood still for longer than its lease.
  auto client = EtcdClient::create({etcd_->url()}).value();
  const std::string all = client->ask("/v3/lease/leases", "{}").body;
  const std::size_t at = all.find("\"ID\":\"");
  ASSERT_NE(at, std::string::npos) << all;
  (void)client->ask(kRevokePath, lease_request(std::stoll(all.substr(at + 6))));
  ASSERT_EQ(etcd_->value_of("/wsync/f/leader").revision, 0U);
  const TimePoint end = now() + std::chrono::seconds(20);
  while (etcd_->value_of("/wsync/f/leader").revision == 0 && now() < end)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(etcd_->value_of("/wsync/f/leader").value, name);
  EXPECT_EQ(troubles_ + replaced_, 0);
}

TEST_F(EtcdFaults, ACoordinatorHearsThatAnotherOneLeads) {
  const auto store = open({etcd_->url()});
  ASSERT_TRUE(store->lead("advice").has_value());
  const auto newer = open({etcd_->url()}, Claim::kTakeOver);
  ASSERT_TRUE(newer->lead("advice").has_value());
  const TimePoint end = now() + std::chrono::seconds(20);
  while (replaced_ == 0 && now() < end) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(replaced_, 1);
}

}  // namespace
}  // namespace wsync::coordinator::etcd
