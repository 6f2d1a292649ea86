// How the requests of one completion are waited for.
#include "inference_side/reference_engine/http/completion_run.h"

#include <gtest/gtest.h>

#include "tests/unit/reference_engine/http/server_fixture.h"

namespace wsync::engine::http::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

std::vector<generation::Request> two_requests() {
  return {{.prompt = {1, 2, 3}, .max_tokens = 5}, {.prompt = {4}, .max_tokens = 2}};
}

struct Taken {
  std::size_t tokens = 0;
  std::size_t finished = 0;
};
Taken take(CompletionRun& run, milliseconds wait) {
  Taken taken;
  for (const auto& [index, delivery] : run.take(wait)) {
    taken.tokens += delivery.tokens.size();
    if (delivery.finished) ++taken.finished;
  }
  return taken;
}

TEST(CompletionRun, WhatIsNewIsTakenAsItComes) {
  ReversingService service({.info = tiny_model()});
  service.hold();
  const auto run = CompletionRun::start(service, two_requests()).value();
  service.allow(1);
  Taken all;
  while (all.tokens < 2) all.tokens += take(*run, hours(1)).tokens;
  EXPECT_EQ(all.tokens, 2U);
  EXPECT_FALSE(run->finished());
}

TEST(CompletionRun, AWholeAnswerIsTakenAtOnceWhenAllHaveFinished) {
  ReversingService service({.info = tiny_model()});
  service.hold();
  const auto run =
      CompletionRun::start(service, two_requests(), CompletionRun::Until::kAllFinished).value();
  service.allow(5);
  const Taken taken = take(*run, hours(1));
  EXPECT_EQ(taken.tokens, 7U);
  EXPECT_EQ(taken.finished, 2U);
  EXPECT_TRUE(run->finished());
}

TEST(CompletionRun, AWholeAnswerGivesWhatThereIsWhenTheTimeIsOver) {
  ReversingService service({.info = tiny_model()});
  service.hold();
  const auto run =
      CompletionRun::start(service, two_requests(), CompletionRun::Until::kAllFinished).value();
  service.allow(2);
  service.wait_generated(4);
  Taken all = take(*run, milliseconds(0));
  EXPECT_FALSE(run->finished());
  service.allow(3);
  const Taken rest = take(*run, hours(1));
  EXPECT_EQ(all.tokens + rest.tokens, 7U);
  EXPECT_EQ(all.finished + rest.finished, 2U);
  EXPECT_TRUE(run->finished());
}

TEST(CompletionRun, AnAbortEndsTheWaitForAWholeAnswer) {
  ReversingService service({.info = tiny_model()});
  service.hold();
  const auto run =
      CompletionRun::start(service, two_requests(), CompletionRun::Until::kAllFinished).value();
  run->abort();
  Taken taken = take(*run, hours(1));
  EXPECT_EQ(taken.finished, 2U);
  EXPECT_TRUE(run->finished());
}

}  // namespace
}  // namespace wsync::engine::http::test
