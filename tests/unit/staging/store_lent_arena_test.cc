// Versions of which only what changes from one in a trainer's arena is held: the arena is lent to
// the trainer, which changes it, takes another one, hangs, or ends at any moment.
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/staging/store_changes_fixture.h"

namespace wsync::staging {
namespace {

using ::testing::HasSubstr;

class StoreLentArenaTest : public StoreChangesTest {
 protected:
  void fetched() override {
    ++fetches_;
    ASSERT_TRUE(on_fetch_);
    on_fetch_();
  }
  [[nodiscard]] SharedArena make_arena() const {
    return SharedArena::create({.name = "wsync-trainer",
                                .data_bytes = plan_->arena_bytes(),
                                .leaf_sums = leaves_->all().size()})
        .value();
  }
  // The trainer begins to write, which nobody may hinder.
  [[nodiscard]] WriteLease begin_write(SharedArena& arena, const Version& version) const {
    auto lease = arena.try_write_lease(job(version).identity);
    EXPECT_TRUE(lease) << lease.error().message();
    EXPECT_TRUE(lease->unprotect());
    return std::move(*lease);
  }
  void write(SharedArena& arena, const Version& version) const {
    auto lease = begin_write(arena, version);
    std::memcpy(lease.data().data(), weights(version).data(), lease.data().size());
    const ContentDigests written = digests(version);
    std::move(lease).complete(written.root, written.leaves);
  }
  [[nodiscard]] static ArenaView view_of(const SharedArena& arena) {
    return ArenaView::open(arena.share()->get()).value();
  }
  void stage_mapped(const Version& version) {
    write(trainer_, version);
    std::optional<Result<Held>> staged;
    ASSERT_TRUE(store_->begin(job(version), [&](Result<Held> held) { staged = std::move(held); }));
    store_->view_arrived(view_of(trainer_));
    ASSERT_TRUE(loop_.run_until([&] { return staged.has_value(); }));
    ASSERT_TRUE(*staged) << staged->error().message();
  }
  // 1.1 is mapped, and of 1.2 what changes is here.
  void begin() {
    stage_mapped(kV1);
    const auto staged = stage_changes(kV2, kV1);
    ASSERT_TRUE(staged) << staged.error().message();
  }
  void expect_led_back(const Version& version, const Version& from) {
    EXPECT_FALSE(store_->find(version)->is_complete());
    ASSERT_NE(store_->changes_of(version), nullptr);
    EXPECT_EQ(store_->changes_of(version)->base, from);
    EXPECT_EQ(store_->changes_of(from), nullptr);
  }

  SharedArena trainer_ = make_arena();
  std::function<void()> on_fetch_;
  int fetches_ = 0;
};

TEST_F(StoreLentArenaTest, TheTrainerChangesTheArena) {
  begin();
  const std::uint64_t one = plan_->arena_bytes();
  EXPECT_LT(store_->bytes(), one + one / 20);
  on_fetch_ = [&] {
    EXPECT_GE(store_->bytes(), one) << "what is lent is mapped";
    write(trainer_, kV2);
    store_->arena_given(view_of(trainer_));
  };
  const auto there = complete(kV2, true);
  ASSERT_TRUE(there.held) << there.held.error().message();
  EXPECT_TRUE(there.in_place);
  EXPECT_TRUE((*there.held)->is_mapped());
  expect_bytes(kV2);
  expect_led_back(kV1, kV2);
  EXPECT_LT(store_->bytes(), one + one / 20);
  EXPECT_FALSE(trainer_.try_write_lease({})) << "it is leased again";
  EXPECT_EQ(complete(kV1, true).held.error().code(), ErrorCode::kBusy) << "`there` reads it";
}

TEST_F(StoreLentArenaTest, ItGoesThereAndBackAndOn) {
  begin();
  Version next = kV2;
  on_fetch_ = [&] {
    write(trainer_, next);
    store_->arena_given(view_of(trainer_));
  };
  for (const Version& version : {kV2, kV1, kV2}) {
    next = version;
    const bool done = complete(version, true).in_place;
    ASSERT_TRUE(done) << version.to_string();
    expect_bytes(version);
  }
  ASSERT_TRUE(stage_changes(kV3, kV2));
  next = kV3;
  ASSERT_TRUE(complete(kV3, true).in_place);
  expect_bytes(kV3);
  expect_led_back(kV2, kV3);
  EXPECT_EQ(fetches_, 4);
}

TEST_F(StoreLentArenaTest, TheTrainerTakesAnotherArenaAndTheBaseStays) {
  begin();
  SharedArena other = make_arena();
  on_fetch_ = [&] {
    write(other, kV2);
    store_->arena_given(view_of(other));
  };
  const auto completed = complete(kV2, true);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  EXPECT_FALSE(completed.in_place);
  expect_bytes(kV1);
  expect_bytes(kV2);
  EXPECT_FALSE(trainer_.try_write_lease({})) << "1.1 is leased again";
}

TEST_F(StoreLentArenaTest, ItIsNotLentIfTheBaseMustStay) {
  begin();
  SharedArena other = make_arena();
  on_fetch_ = [&] {
    EXPECT_EQ(trainer_.try_write_lease({}).error().code(), ErrorCode::kBusy);
    write(other, kV2);
    store_->arena_given(view_of(other));
  };
  const auto completed = complete(kV2, false);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  EXPECT_FALSE(completed.in_place);
  expect_bytes(kV1);
  expect_bytes(kV2);
}

TEST_F(StoreLentArenaTest, WhatThisProcessReadsIsNotLent) {
  begin();
  const auto reader = store_->find(kV1);
  on_fetch_ = [&] { store_->arena_given(fail(ErrorCode::kPeerLost, "it has ended")); };
  const auto completed = complete(kV2, true);
  ASSERT_FALSE(completed.held) << "it is read";
  EXPECT_EQ(completed.held.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(trainer_.try_write_lease({}).error().code(), ErrorCode::kBusy);
  expect_bytes(kV1);
}

TEST_F(StoreLentArenaTest, ATrainerThatEndsBeforeItWritesLeavesTheBase) {
  begin();
  on_fetch_ = [&] { store_->arena_given(fail(ErrorCode::kPeerLost, "it has ended")); };
  const auto completed = complete(kV2, true);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  EXPECT_FALSE(completed.in_place);
  EXPECT_FALSE((*completed.held)->is_mapped());
  expect_bytes(kV1);
  expect_bytes(kV2);
}

TEST_F(StoreLentArenaTest, ATrainerThatEndsAfterItHasWrittenHasGivenIt) {
  begin();
  on_fetch_ = [&] {
    write(trainer_, kV2);
    store_->arena_given(fail(ErrorCode::kPeerLost, "it has ended"));
  };
  const auto completed = complete(kV2, true);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  EXPECT_TRUE(completed.in_place);
  EXPECT_TRUE((*completed.held)->is_mapped());
  expect_bytes(kV2);
  expect_led_back(kV1, kV2);
}

// A rollback: the version is withdrawn before it was given.
TEST_F(StoreLentArenaTest, ATrainerThatGoesBackMeanwhileLeavesTheBase) {
  begin();
  on_fetch_ = [&] {
    write(trainer_, kV2);
    write(trainer_, kV1);
    store_->arena_given(fail(ErrorCode::kCancelled, "it is withdrawn"));
  };
  const auto completed = complete(kV2, true);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  EXPECT_FALSE(completed.in_place);
  expect_bytes(kV1);
  expect_bytes(kV2);
}

// At each share of the bytes, also within a word.
TEST_F(StoreLentArenaTest, WhatATrainerLeavesUnfinishedIsMadeWithoutIt) {
  for (const std::uint64_t tenths : {0U, 1U, 5U, 9U, 10U}) {
    SCOPED_TRACE(tenths);
    store_ = std::make_unique<Store>(StoreOptions{.name = "test"}, loop_.post());
    trainer_ = make_arena();
    begin();
    on_fetch_ = [&] {
      {
        const WriteLease lease = begin_write(trainer_, kV2);
        std::memcpy(lease.data().data(), weights(kV2).data(), lease.data().size() / 10 * tenths);
      }
      store_->arena_given(fail(ErrorCode::kPeerLost, "it has ended"));
    };
    {
      const auto completed = complete(kV2, true);
      ASSERT_TRUE(completed.held) << completed.held.error().message();
      EXPECT_TRUE(completed.in_place) << "the base has lost its memory";
      EXPECT_FALSE((*completed.held)->is_mapped());
    }
    expect_bytes(kV2);
    expect_led_back(kV1, kV2);
    ASSERT_TRUE(complete(kV1, true).held) << "in memory of the store";
    expect_bytes(kV1);
  }
}

TEST_F(StoreLentArenaTest, BytesThatATrainerLeavesDamagedAreFound) {
  begin();
  on_fetch_ = [&] {
    {
      const WriteLease lease = begin_write(trainer_, kV2);
      lease.data()[plan_->arena_offset(plan_->pieces().front()) + 1] ^= std::byte{1};
    }
    store_->arena_given(fail(ErrorCode::kPeerLost, "it has ended"));
  };
  const auto completed = complete(kV2, true);
  ASSERT_FALSE(completed.held);
  EXPECT_TRUE(completed.base_lost);
  EXPECT_EQ(completed.held.error().code(), ErrorCode::kDigestMismatch);
}

TEST_F(StoreLentArenaTest, ATrainerThatIsStillWritingIsAskedAgain) {
  begin();
  std::optional<WriteLease> lease;
  on_fetch_ = [&] {
    if (fetches_ == 1) {
      lease.emplace(begin_write(trainer_, kV2));
    } else if (fetches_ == 3) {
      lease.reset();
      write(trainer_, kV2);
      return store_->arena_given(view_of(trainer_));
    }
    loop_.post()([this] { store_->arena_given(fail(ErrorCode::kDeadline, "it is silent")); });
  };
  ASSERT_TRUE(complete(kV2, true).in_place);
  EXPECT_EQ(fetches_, 3);
  expect_bytes(kV2);
}

// It holds the lock, so nobody can read the arena. Other versions must not wait for it.
TEST_F(StoreLentArenaTest, ATrainerThatStandsStillWhileItWritesIsNotAwaitedForEver) {
  begin();
  std::optional<WriteLease> lease;
  int asked = 0;
  on_fetch_ = [&] {
    if (++asked == 1) lease.emplace(begin_write(trainer_, kV2));
    loop_.post()([this, is_last = asked == 3] {
      store_->arena_given(fail(ErrorCode::kDeadline, "it is silent"), is_last);
    });
  };
  std::optional<Store::Completed> completed;
  ASSERT_TRUE(store_->complete(
      kV2, true, [this] { fetched(); },
      [&](Store::Completed outcome) { completed = std::move(outcome); }));
  ASSERT_TRUE(loop_.run_until([&] { return completed || asked > 3; }));
  ASSERT_TRUE(completed) << "it is asked again and again";
  EXPECT_EQ(asked, 3);
  ASSERT_FALSE(completed->held);
  EXPECT_EQ(completed->held.error().code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(completed->base_lost) << "neither version can be read, so both are fetched again";
}

TEST_F(StoreLentArenaTest, OtherBytesThatTheTrainerGivesAreNotUsed) {
  begin();
  SharedArena other = make_arena();
  on_fetch_ = [&] {
    auto lease = begin_write(other, kV2);
    std::memcpy(lease.data().data(), weights(kV3).data(), lease.data().size());
    std::move(lease).complete(digests(kV2).root, digests(kV3).leaves);
    store_->arena_given(view_of(other));
  };
  const auto completed = complete(kV2, true);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  EXPECT_FALSE((*completed.held)->is_mapped()) << "it is made of the base";
  expect_bytes(kV1);
  expect_bytes(kV2);
}

TEST_F(StoreLentArenaTest, ADamagedBaseIsNotLent) {
  begin();
  {
    // The trainer has lost its protection, and a stray write has changed a word.
    auto* data = const_cast<std::byte*>(trainer_.data().data());
    const std::uint64_t at = plan_->arena_offset(plan_->pieces().front()) + 7;
    store_->release(kV2);
    store_->release(kV1);
    auto lease = begin_write(trainer_, kV1);
    data[at] ^= std::byte{1};
    std::move(lease).complete(digests(kV1).root, digests(kV1).leaves);
  }
  std::optional<Result<Held>> staged;
  ASSERT_TRUE(store_->begin(job(kV1), [&](Result<Held> held) { staged = std::move(held); }));
  store_->view_arrived(view_of(trainer_));
  ASSERT_TRUE(loop_.run_until([&] { return staged.has_value(); }));
  staged.reset();
  ASSERT_TRUE(stage_changes(kV2, kV1));
  const auto completed = complete(kV2, true);
  ASSERT_FALSE(completed.held);
  EXPECT_EQ(completed.held.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_FALSE(completed.in_place);
  EXPECT_FALSE(completed.base_lost);
  EXPECT_EQ(fetches_, 0);
  EXPECT_TRUE(store_->find(kV1)->is_complete());
}

TEST_F(StoreLentArenaTest, WhatIsGivenWithoutARequestIsLetGo) {
  begin();
  store_->arena_given(view_of(trainer_));
  store_->arena_given(fail(ErrorCode::kPeerLost, "it has ended"));
  expect_bytes(kV1);
}

}  // namespace
}  // namespace wsync::staging
