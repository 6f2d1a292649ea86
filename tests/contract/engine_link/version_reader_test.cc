// The reader's end of its connection to a sidecar that the test plays.
#include "inference_side/engine_link/version_reader.h"

#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_link/attached_rank.h"

namespace wsync::engine::test {
namespace {

using testing::HasSubstr;

class VersionReaderTest : public testing::Test {
 protected:
  // Begins to open a version on another thread, and waits for the question.
  control::ReadVersion begin(const VersionReader::Choice& choice = {}) {
    opening_ =
        std::async(std::launch::async, [this, choice] { return reader_->open(choice, soon()); });
    if (!connected_) peer_.connect();
    connected_ = true;
    const auto question = peer_.expect<control::ReadVersion>();
    peer_.envelope.request = peer_.last_envelope.request - 1;  // send() counts on
    return question;
  }
  void answer(Version version, const SharedArena& arena) {
    peer_.send(prepare_of(model_, version), share(arena));
  }

  const Model model_ = Model::make();
  SidecarPeer peer_;
  bool connected_ = false;
  std::unique_ptr<VersionReader> reader_ = VersionReader::create(peer_.path(), "reads").value();
  std::future<Result<Version>> opening_;
};

TEST_F(VersionReaderTest, TheBytesAreThoseOfTheArenaAndTheLeaseEndsWithClose) {
  SharedArena arena = model_.arena(kFirst);
  const auto question = begin();
  EXPECT_FALSE(question.has_step);
  EXPECT_TRUE(question.after.none());
  EXPECT_EQ(peer_.last_envelope.replica, "reads");
  answer(kFirst, arena);
  const auto opened = opening_.get();
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_EQ(*opened, kFirst);
  ASSERT_EQ(reader_->manifest().size(), model_.manifest.size());
  const auto plan =
      reload::LoadPlan::make(model_.manifest, model_.plan, reload::whole_tensors(model_.manifest))
          .value();
  for (std::uint32_t t = 0; t < model_.manifest.size(); ++t)
    EXPECT_EQ(tensor_digest(plan.tensors()[t].seed, reader_->tensor(t)),
              reload::expected_digest(plan.tensors()[t], arena.data()))
        << reader_->manifest().tensor(t).name;
  EXPECT_EQ(arena.try_write_lease(arena.identity()).error().code(), ErrorCode::kBusy)
      << "a reader has it open without a lease";
  EXPECT_EQ(reader_->open({}, now()).error().message(),
            "a version is open: close it before another one is opened");
  reader_->close();
  EXPECT_TRUE(arena.try_write_lease(arena.identity()))
      << "a reader that has closed it would keep the arena";
}

TEST_F(VersionReaderTest, AnArenaThatHasBeenWrittenAgainIsAskedForAnew) {
  SharedArena arena = model_.arena(kFirst);
  begin();
  model_.fill(arena, kSecond);
  answer(kFirst, arena);  // the sidecar had sent it before it was released
  (void)peer_.expect<control::ReadVersion>();
  peer_.envelope.request = peer_.last_envelope.request - 1;
  answer(kSecond, arena);
  EXPECT_EQ(opening_.get().value(), kSecond);
}

TEST_F(VersionReaderTest, AnArenaThatCanNeverBeMappedIsNotAskedForWithoutEnd) {
  SharedArena arena = model_.arena(kSecond);
  begin();
  constexpr int kTimes = 101;
  for (int i = 1; i < kTimes; ++i) {
    answer(kFirst, arena);
    (void)peer_.expect<control::ReadVersion>();
    peer_.envelope.request = peer_.last_envelope.request - 1;
  }
  answer(kFirst, arena);
  EXPECT_THAT(opening_.get().error().message(), HasSubstr("1.2"));
}

TEST_F(VersionReaderTest, WhatIsNotAsAnnouncedIsRefused) {
  SharedArena arena = model_.arena(kFirst);
  begin();
  auto wrong = prepare_of(model_, kFirst);
  wrong.layout_digest.low ^= 1;
  peer_.send(wrong, share(arena));
  EXPECT_THAT(opening_.get().error().message(), HasSubstr("but the sidecar announced"));
  begin();
  peer_.send(prepare_of(model_, kFirst));
  EXPECT_THAT(opening_.get().error().message(), HasSubstr("sent 0 descriptors with a version"));
  begin();
  wrong = prepare_of(model_, kFirst);
  wrong.layout.pop_back();
  peer_.send(wrong, share(arena));
  EXPECT_FALSE(opening_.get());
  begin();
  peer_.send(control::Refuse{.reason = "no version of step 7 is staged here", .problems = {}});
  const auto refused = opening_.get();
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  EXPECT_EQ(refused.error().message(), "no version of step 7 is staged here");
  // And it can still be used.
  EXPECT_EQ(begin({.step = 1, .after = {}}).step, 1U);
  answer(kFirst, arena);
  EXPECT_EQ(opening_.get().value(), kFirst);
}

TEST_F(VersionReaderTest, AnAnswerThatComesAfterTheTimeIsUsedByTheNextCall) {
  SharedArena arena = model_.arena(kFirst);
  const auto late = reader_->open({}, now() + std::chrono::milliseconds(20));
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message(), HasSubstr("no version has been published"));
  peer_.connect();
  connected_ = true;
  (void)peer_.expect<control::ReadVersion>();
  peer_.envelope.request = peer_.last_envelope.request - 1;
  answer(kFirst, arena);
  EXPECT_EQ(reader_->open({}, soon()).value(), kFirst);
  reader_->close();
  // The answer to a question that was given up for another one is not its answer.
  EXPECT_FALSE(reader_->open({.after = kFirst}, now() + std::chrono::milliseconds(20)));
  (void)peer_.expect<control::ReadVersion>();
  const std::uint64_t old = peer_.last_envelope.request;
  opening_ = std::async(std::launch::async, [this] { return reader_->open({.step = 2}, soon()); });
  EXPECT_EQ(peer_.expect<control::ReadVersion>().step, 2U);
  const std::uint64_t newer = peer_.last_envelope.request;
  SharedArena second = model_.arena(kSecond);
  peer_.envelope.request = old - 1;
  answer(kFirst, arena);
  peer_.envelope.request = newer - 1;
  answer(kSecond, second);
  EXPECT_EQ(opening_.get().value(), kSecond);
}

TEST_F(VersionReaderTest, ASidecarThatIsLostIsAskedAgain) {
  SharedArena arena = model_.arena(kFirst);
  begin();
  peer_.hang_up();
  peer_.connect();
  (void)peer_.expect<control::ReadVersion>();
  peer_.envelope.request = peer_.last_envelope.request - 1;
  answer(kFirst, arena);
  EXPECT_EQ(opening_.get().value(), kFirst);
}

}  // namespace
}  // namespace wsync::engine::test
