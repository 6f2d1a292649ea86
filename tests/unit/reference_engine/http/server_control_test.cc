// The routes that look at an engine or steer it.
#include <thread>

#include "tests/unit/reference_engine/http/server_fixture.h"

namespace wsync::engine::http::test {
namespace {

using nlohmann::json;

TEST(Control, IsReadyWhenItServes) {
  Served served;
  EXPECT_EQ(json_of(served.get("/ready")), (json{{"ready", true}}));
  served.service.change_info([](generation::ServiceInfo& info) { info.has_weights = false; });
  const auto before = served.get("/ready");
  EXPECT_EQ(json_of(before), (json{{"ready", false}, {"reason", "it has no weights yet"}}));
  EXPECT_EQ(before->status, 503);
  EXPECT_EQ(served.get("/health")->status, 200);
}

TEST(Control, AHeadRequestHasNoBody) {
  const Served served;
  const auto result = served.client().Head("/weight_info");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->body, "");
  EXPECT_NE(result->get_header_value("Content-Length"), "0");
}

TEST(Control, TellsTheVersionOfTheWeights) {
  Served served;
  const json expected = {{"weight_version", "1.7"}, {"version", "1.7"}, {"epoch", 1}, {"step", 7}};
  EXPECT_EQ(json_of(served.get("/weight_info")), expected);
  served.service.change_info([](generation::ServiceInfo& info) { info.has_weights = false; });
  for (const json& value : json_of(served.get("/weight_info"))) EXPECT_EQ(value, nullptr);
}

TEST(Control, StatsAreThoseOfTheScheduler) {
  Served served;
  EXPECT_TRUE(served.complete({{"prompt", "abc"}, {"max_tokens", 4}}));
  EXPECT_EQ(json_of(served.get("/stats")), (json{{"waiting", 0},
                                                 {"running", 0},
                                                 {"blocks_used", 0},
                                                 {"blocks_cached", 0},
                                                 {"preempted", 0},
                                                 {"prefix_hit_tokens", 0},
                                                 {"prompt_tokens", 3},
                                                 {"generated_tokens", 4}}));
}

TEST(Pause, AbortsWhatRunsUnlessToldOtherwise) {
  Served served;
  served.service.hold();
  std::thread client([&] {
    const json choice = json_of(served.complete({{"prompt", "ab"}})).at("choices").at(0);
    EXPECT_EQ(choice.at("finish_reason"), "abort");
    EXPECT_EQ(choice.at("text"), "b");
  });
  served.service.wait_submitted(1);
  served.service.allow(1);
  served.service.wait_generated(1);
  EXPECT_EQ(json_of(served.get("/is_paused")), (json{{"is_paused", false}}));
  EXPECT_EQ(json_of(served.post("/pause")), (json{{"status", "paused"}}));
  client.join();
  EXPECT_EQ(json_of(served.get("/is_paused")), (json{{"is_paused", true}}));
  const auto ready = served.get("/ready");
  EXPECT_EQ(ready->status, 503);
  EXPECT_EQ(json_of(ready)["reason"], "a client has paused it");
  EXPECT_EQ(json_of(served.post("/resume")), (json{{"status", "resumed"}}));
  EXPECT_EQ(json_of(served.get("/is_paused")), (json{{"is_paused", false}}));
}

struct PauseCase {
  std::string query;
  PauseMode mode;
  bool clear_cache;
  std::int64_t deadline_ms;
};

TEST(Pause, ReadsItsQuery) {
  const std::vector<PauseCase> cases = {
      {"", PauseMode::kAbort, true, 60'000},
      {"?mode=abort&clear_cache=false", PauseMode::kAbort, false, 60'000},
      {"?mode=wait&timeout_s=5", PauseMode::kWait, true, 5'000},
      {"?mode=wait&timeout_s=0.25&clear_cache=0", PauseMode::kWait, false, 250},
      {"?mode=keep", PauseMode::kKeep, false, 60'000},
      {"?mode=keep&clear_cache=True&timeout_s=600", PauseMode::kKeep, true, 600'000},
  };
  for (const PauseCase& expected : cases) {
    Served served;
    EXPECT_EQ(json_of(served.post("/pause" + expected.query)), (json{{"status", "paused"}}));
    const auto seen = served.service.pause_seen();
    ASSERT_TRUE(seen);
    EXPECT_EQ(seen->mode, expected.mode) << expected.query;
    EXPECT_EQ(seen->clear_cache, expected.clear_cache) << expected.query;
    EXPECT_EQ(seen->deadline.count(), expected.deadline_ms) << expected.query;
  }
}

TEST(Pause, RefusesAQueryThatItDoesNotUnderstand) {
  Served served;
  const auto pause = [&](const std::string& query) { return served.post("/pause?" + query); };
  expect_error(pause("mode=stop"), 400, R"(mode: it is 'stop'; expected abort, wait or keep)");
  expect_error(pause("mode="), 400, "mode: it is ''");
  expect_error(pause("clear_cache=maybe"), 400, R"(clear_cache: it is 'maybe'; expected true or)");
  for (const char* bad : {"0", "-1", "601", "soon", "5s", "nan", "inf", ""})
    expect_error(pause(std::string("timeout_s=") + bad), 400,
                 "timeout_s: it is '" + std::string(bad) +
                     "'; expected a number above 0 and at "
                     "most 600");
  EXPECT_FALSE(served.service.pause_seen());
}

TEST(Pause, ThatWaitsInVainTellsWhatStillRuns) {
  Served served;
  served.service.hold();
  std::thread client([&] {
    EXPECT_EQ(json_of(served.complete({{"prompt", "ab"}, {"max_tokens", 2}}))
                  .at("choices")
                  .at(0)
                  .at("text"),
              "ba");
  });
  served.service.wait_submitted(1);
  served.service.allow(1);
  served.service.wait_generated(1);
  expect_error(served.post("/pause?mode=wait&timeout_s=0.01"), 504, "1 request still running");
  EXPECT_EQ(json_of(served.get("/is_paused")), (json{{"is_paused", false}}));
  served.service.allow(1);
  client.join();
  EXPECT_EQ(json_of(served.post("/pause?mode=wait")), (json{{"status", "paused"}}));
}

TEST(ResetPrefixCache, TellsWhetherAllOfItIsGone) {
  Served served;
  EXPECT_EQ(json_of(served.post("/reset_prefix_cache")), (json{{"success", true}}));
  served.service.hold();
  std::thread client([&] {
    const json choice = json_of(served.complete({{"prompt", "ab"}})).at("choices").at(0);
    EXPECT_EQ(choice.at("finish_reason"), "abort");
  });
  served.service.wait_submitted(1);
  EXPECT_EQ(json_of(served.post("/reset_prefix_cache")), (json{{"success", false}}));
  served.service.abort({});
  client.join();
}

}  // namespace
}  // namespace wsync::engine::http::test
