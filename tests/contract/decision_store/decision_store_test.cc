// What every decision store promises: the file, and a real etcd.
#include "trainer_side/coordinator/decision_store.h"

#include <atomic>
#include <filesystem>
#include <future>
#include <gmock/gmock.h>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "tests/contract/decision_store/etcd_process.h"
#include "trainer_side/coordinator/etcd/etcd_decision_store.h"

namespace wsync::coordinator {
namespace {

using ::testing::HasSubstr;

control::Fence fence_of(std::uint64_t epoch, std::uint64_t process = 1) {
  control::Fence fence;
  fence.epoch = epoch;
  fence.run_id = {process, 7};
  fence.fleet = {.high = 3, .low = 4};
  return fence;
}
CoordinatorRecord record_of(const control::Fence& fence, std::uint64_t number, Version target) {
  CoordinatorRecord record;
  record.fence = fence;
  record.number = number;
  record.target = target;
  if (!target.none())
    record.origin = {.fence = fence, .number = std::max<std::uint64_t>(number, 1)};
  record.members = {"a", "b c"};
  return record;
}
CoordinatorRecord claim_of(std::uint64_t epoch, std::uint64_t process = 1) {
  return record_of(fence_of(epoch, process), 0, {});
}

// One place for records, and stores of it as different processes would open them.
class Place {
 public:
  virtual ~Place() = default;
  [[nodiscard]] virtual std::unique_ptr<DecisionStore> open(Claim claims) = 0;
  virtual void damage() = 0;
};

class FilePlace final : public Place {
 public:
  FilePlace() {
    std::string name = ::testing::TempDir() + "wsync_store_XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) folder_ = name;
  }
  ~FilePlace() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<DecisionStore> open(Claim claims) override {
    return std::make_unique<FileDecisionStore>(folder_, claims);
  }
  void damage() override { std::filesystem::resize_file(folder_ / "coordinator.decisions", 5); }

 private:
  std::filesystem::path folder_;
};

class EtcdPlace final : public Place {
 public:
  std::unique_ptr<DecisionStore> open(Claim claims) override {
    return etcd::EtcdDecisionStore::create(
               {.members = {etcd_.url()}, .fleet = "f", .claims = claims, .self = "process 1"})
        .value();
  }
  void damage() override {
    auto client = etcd::EtcdClient::create({etcd_.url()}).value();
    const std::string key = "/wsync/f/record";
    const auto found = etcd_.value_of(key);
    (void)client->ask(etcd::kTransactionPath,
                      etcd::put_request(key, found.revision, Bytes(5, std::byte{1})));
  }

 private:
  etcd::EtcdProcess etcd_;
};

enum class Kind { kFile, kEtcd };

class DecisionStoreContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kFile) {
      place_ = std::make_unique<FilePlace>();
      return;
    }
    if (const std::string why = etcd::why_no_etcd(); !why.empty()) GTEST_SKIP() << why;
    place_ = std::make_unique<EtcdPlace>();
  }
  [[nodiscard]] std::unique_ptr<DecisionStore> open(Claim claims = Claim::kIfFree) const {
    return place_->open(claims);
  }
  std::unique_ptr<Place> place_;
};

TEST_P(DecisionStoreContract, ARecordIsReadByTheNextCoordinator) {
  const auto first = open();
  ASSERT_TRUE(first->read().has_value());
  EXPECT_FALSE(first->read().value().has_value()) << "nothing was ever stored";
  ASSERT_TRUE(first->write(claim_of(1)).has_value());
  CoordinatorRecord decision = record_of(fence_of(1), 1, {1, 5});
  decision.withdrawn = {{1, 3}, {1, 4}};
  decision.kind = control::DecisionKind::kRollback;
  const auto stored = first->write(decision);
  ASSERT_TRUE(stored.has_value()) << stored.error().message();
  EXPECT_EQ(*stored, decision);
  EXPECT_EQ(first->read().value(), decision);
  EXPECT_EQ(open()->read().value(), decision);
}

TEST_P(DecisionStoreContract, TheOlderOfTwoCoordinatorsDecidesNoMore) {
  const auto older = open();
  ASSERT_TRUE(older->write(claim_of(1, 1)).has_value());
  ASSERT_TRUE(older->write(record_of(fence_of(1, 1), 1, {1, 5})).has_value());
  const auto newer = open();
  ASSERT_TRUE(newer->read().has_value());
  // Decided after the newer one has read: its claim must not lose it.
  const CoordinatorRecord late = record_of(fence_of(1, 1), 2, {1, 6});
  ASSERT_TRUE(older->write(late).has_value());
  const auto claimed = newer->write(claim_of(2, 2));
  ASSERT_TRUE(claimed.has_value()) << claimed.error().message();
  EXPECT_EQ(claimed->target, late.target);
  EXPECT_EQ(claimed->origin, late.origin);

  for (int i = 0; i < 2; ++i) {
    const auto refused = older->write(record_of(fence_of(1, 1), 3, {1, 7}));
    ASSERT_FALSE(refused.has_value()) << "a coordinator that was replaced has decided";
    EXPECT_EQ(refused.error().code(), ErrorCode::kFenced);
    EXPECT_THAT(refused.error().message(), HasSubstr("fence epoch 2"));
  }
  EXPECT_EQ(open()->read().value(), *claimed);
}

TEST_P(DecisionStoreContract, OfTwoClaimsOfOneEpochOneIsStored) {
  const auto first = open();
  const auto second = open();
  ASSERT_TRUE(first->read().has_value() && second->read().has_value());
  ASSERT_TRUE(first->write(claim_of(4, 1)).has_value());
  const auto refused = second->write(claim_of(4, 2));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFenced);
}

TEST_P(DecisionStoreContract, ARecordOfAnotherFleetIsNotReplaced) {
  ASSERT_TRUE(open()->write(record_of(fence_of(1), 1, {1, 5})).has_value());
  CoordinatorRecord other = claim_of(9);
  other.fence.fleet = {.high = 8, .low = 8};
  const auto refused = open()->write(other);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
}

TEST_P(DecisionStoreContract, ADamagedRecordIsNamedAndNotReplaced) {
  ASSERT_TRUE(open()->write(record_of(fence_of(1), 1, {1, 5})).has_value());
  place_->damage();
  const auto store = open();
  const auto read = store->read();
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(read.error().message(), HasSubstr(store->name() + " is damaged: restore it"));
  EXPECT_FALSE(store->write(claim_of(2)).has_value());
}

TEST_P(DecisionStoreContract, TheLargestRecordIsStored) {
  CoordinatorRecord record = record_of(fence_of(1), 1, {1, 5});
  record.members.clear();
  for (std::size_t i = 0; i < limits::kSidecarCount; ++i)
    record.members.push_back(fmt::format("{:0>{}}", i, limits::kPeerNameBytes));
  for (std::uint64_t i = 0; i < limits::kWithdrawnCount; ++i)
    record.withdrawn.push_back({1, i + 6});
  const auto store = open();
  const auto stored = store->write(record);
  ASSERT_TRUE(stored.has_value()) << stored.error().message();
  EXPECT_EQ(open()->read().value(), record);
}

// Several coordinators claim and decide as fast as they can. Each decision that a store has
// confirmed is found by every later claim, and no two coordinators decide under one epoch.
TEST_P(DecisionStoreContract, ManyCoordinatorsAtOnceLoseNoDecision) {
  constexpr int kCoordinators = 4;
  constexpr int kRounds = 12;
  std::atomic<int> decided{0};
  std::atomic<bool> is_lost{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kCoordinators; ++i)
    threads.emplace_back([&, store = std::shared_ptr<DecisionStore>(open()), i] {
      for (int round = 0; round < kRounds; ++round) {
        const auto read = store->read();
        if (!read) continue;
        const std::uint64_t epoch = *read ? (*read)->fence.epoch + 1 : 1;
        const auto fence = fence_of(epoch, static_cast<std::uint64_t>(i) + 1);
        const auto claimed = store->write(record_of(fence, 0, {}));
        if (!claimed) continue;
        if (*read && claimed->origin < (*read)->origin) is_lost = true;
        const Version target{static_cast<std::uint32_t>(epoch), claimed->target.step + 1};
        if (store->write(record_of(fence, 1, target))) ++decided;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(is_lost) << "a claim has lost a decision that was there when it began";
  EXPECT_GT(decided, 0);
  // Each confirmed decision was made on top of the one before.
  EXPECT_EQ(open()->read().value()->target.step, static_cast<std::uint64_t>(decided.load()));
}

TEST_P(DecisionStoreContract, ASecondCoordinatorDoesNotStartByMistake) {
  auto first = open();
  ASSERT_TRUE(first->lead("advice").has_value());
  const auto second = open();
  const auto refused = second->lead("do this");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(refused.error().message(), HasSubstr("process "));
  // That a lock file is held by this process itself needs another advice.
  if (GetParam() == Kind::kEtcd) {
    EXPECT_THAT(refused.error().message(), HasSubstr("do this"));
  }
  EXPECT_TRUE(open(Claim::kTakeOver)->lead("advice").has_value());
  first.reset();
  EXPECT_TRUE(open()->lead("advice").has_value()) << "the first one has ended in order";
}

TEST_P(DecisionStoreContract, OneStandsByUntilNoOtherOneLeads) {
  auto first = open();
  ASSERT_TRUE(first->stand_by([](const std::string& what) { ADD_FAILURE() << what; }).has_value());
  const auto second = open();
  std::promise<std::string> waits;
  std::once_flag once;
  auto leads = std::async(std::launch::async, [&] {
    return second
        ->stand_by(
            [&](const std::string& what) { std::call_once(once, [&] { waits.set_value(what); }); })
        .has_value();
  });
  // Said once, although it looks again and again.
  EXPECT_THAT(waits.get_future().get(), HasSubstr("process "));
  EXPECT_EQ(leads.wait_for(std::chrono::seconds(1)), std::future_status::timeout);
  first.reset();
  EXPECT_TRUE(leads.get());
  EXPECT_FALSE(open()->lead("advice").has_value()) << "it leads as any other one";
}

TEST_P(DecisionStoreContract, WhoStandsByCanBeCancelled) {
  const auto first = open();
  ASSERT_TRUE(first->lead("advice").has_value());
  const auto second = open();
  std::promise<void> waits;
  std::once_flag once;
  auto leads = std::async(std::launch::async, [&] {
    return second->stand_by([&](const auto&) { std::call_once(once, [&] { waits.set_value(); }); });
  });
  waits.get_future().wait();
  second->cancel();
  EXPECT_EQ(leads.get().error().code(), ErrorCode::kCancelled);
}

TEST_P(DecisionStoreContract, OfManyThatStandByOneLeads) {
  auto first = open();
  ASSERT_TRUE(first->lead("advice").has_value());
  constexpr int kCount = 6;
  std::vector<std::unique_ptr<DecisionStore>> stores;
  std::vector<std::future<bool>> leads;
  std::atomic<int> leaders{0};
  for (int i = 0; i < kCount; ++i) stores.push_back(open());
  for (const auto& store : stores)
    leads.push_back(std::async(std::launch::async, [&store, &leaders] {
      const bool is_one = store->stand_by([](const std::string&) {}).has_value();
      if (is_one) ++leaders;
      return is_one;
    }));
  first.reset();
  const TimePoint end = now() + std::chrono::seconds(30);
  while (leaders == 0 && now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(3 * kStandByLook);  // a second one would lead by then
  EXPECT_EQ(leaders, 1);
  for (const auto& store : stores) store->cancel();
  for (std::future<bool>& one : leads) one.wait();
}

INSTANTIATE_TEST_SUITE_P(Stores, DecisionStoreContract, ::testing::Values(Kind::kFile, Kind::kEtcd),
                         [](const auto& kind) {
                           return kind.param == Kind::kFile ? "File" : "Etcd";
                         });

}  // namespace
}  // namespace wsync::coordinator
