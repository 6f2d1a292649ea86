// The routes that look at an engine or steer it.
#include <thread>

#include "tests/unit/reference_engine/http/server_fixture.h"

namespace wsync::engine::http::test {
namespace {

using nlohmann::json;

TEST(Control, TellsWhatIsServed) {
  const Served served;
  const json models = json_of(served.get("/v1/models"));
  EXPECT_EQ(models.at("object"), "list");
  ASSERT_EQ(models.at("data").size(), 1U);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["max_model_len"], 1U << 20U);
  EXPECT_EQ(json_of(served.get("/health")), json::object());
  EXPECT_EQ(json_of(served.get("/get_world_size?include_dp=true")), (json{{"world_size", 1}}));
}

TEST(Control, TellsTheWorldSizeItIsGiven) {
  CompletionServerOptions options;
  options.world_size = 4;
  const Served served({.info = tiny_model()}, options);
  EXPECT_EQ(json_of(served.get("/get_world_size")), (json{{"world_size", 4}}));
}

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

TEST(Control, TellsTheVersionOfTheWeightsAndItsLabel) {
  Served served;
  json expected = {{"weight_version", "1.7"}, {"version", "1.7"}, {"epoch", 1}, {"step", 7}};
  EXPECT_EQ(json_of(served.get("/weight_info")), expected);
  EXPECT_EQ(json_of(served.post("/update_weight_version", R"({"new_version": "step-7"})")),
            (json{{"weight_version", "step-7"}}));
  expected["weight_version"] = "step-7";
  EXPECT_EQ(json_of(served.get("/weight_info")), expected);
  served.service.change_info([](generation::ServiceInfo& info) { info.has_weights = false; });
  for (const json& value : json_of(served.get("/weight_info"))) EXPECT_EQ(value, nullptr);
}

TEST(Control, ALabelMustBeShortText) {
  const Served served;
  const auto label = [&](const std::string& body) {
    return served.post("/update_weight_version", body);
  };
  expect_error(label(""), 400, "new_version: it is not there or not text");
  expect_error(label("{}"), 400, R"(expected {"new_version": "..."})");
  expect_error(label(R"({"new_version": 7})"), 400, "new_version: it is not there or not text");
  expect_error(label("[]"), 400, "the body is not a JSON object; expected one");
  expect_error(label("{\"new_version"), 400, "the body is not a JSON object");
  expect_error(label(R"({"new_version": ""})"), 400, "it has 0 bytes; expected 1 to 256");
  expect_error(label(R"({"new_version": ")" + std::string(257, 'a') + "\"}"), 400,
               "it has 257 bytes; expected 1 to 256");
  expect_error(label(std::string(5000, ' ')), 400, "the body has 5000 bytes; at most");
  EXPECT_EQ(json_of(served.get("/weight_info"))["weight_version"], "1.7");
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
      {"?wait_for_inflight_requests=true", PauseMode::kWait, true, 60'000},
      {"?wait_for_inflight_requests=false", PauseMode::kAbort, true, 60'000},
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
  expect_error(pause("wait_for_inflight_requests=x"), 400, "wait_for_inflight_requests: it is");
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

// Runs completions that wait for a step, under these names.
struct Waiting {
  Waiting(Served& served, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      clients.emplace_back([&served, name] {
        const json choice =
            json_of(served.complete({{"prompt", "ab"}, {"request_id", name}})).at("choices").at(0);
        EXPECT_EQ(choice.at("finish_reason"), "abort") << name;
      });
    served.service.wait_submitted(names.size());
  }
  void join() {
    for (std::thread& client : clients) client.join();
  }
  std::vector<std::thread> clients;
};

TEST(AbortRequests, EndsThoseThatAreNamed) {
  Served served;
  served.service.hold();
  Waiting waiting(served, {"one", "two", "three"});
  EXPECT_EQ(json_of(served.post("/abort_requests", R"({"request_ids": ["one", "cmpl-two"]})")),
            (json{{"unknown", json::array()}}));
  waiting.clients[0].join();
  waiting.clients[1].join();
  EXPECT_EQ(served.service.stats().running, 1U);
  EXPECT_EQ(json_of(served.post("/abort_requests", R"({"request_ids": ["one", "four"]})")),
            (json{{"unknown", {"one", "four"}}}));
  EXPECT_EQ(served.service.stats().running, 1U);
  EXPECT_EQ(json_of(served.post("/abort_requests")), (json{{"unknown", json::array()}}));
  waiting.clients[2].join();
}

TEST(AbortRequests, WithoutNamesEndsAll) {
  for (const std::string body : {"", "{}", R"({"request_ids": []})"}) {
    Served served;
    served.service.hold();
    Waiting waiting(served, {"one", "two"});
    EXPECT_EQ(json_of(served.post("/abort_requests", body)), (json{{"unknown", json::array()}}));
    waiting.join();
  }
}

TEST(AbortRequests, RefusesWhatIsNoListOfNames) {
  Served served;
  served.service.hold();
  Waiting waiting(served, {"one"});
  for (const std::string body : {R"({"ids": ["one"]})", R"({"request_ids": "one"})",
                                 R"({"request_ids": [1]})", R"({"request_ids": null})"})
    expect_error(served.post("/abort_requests", body), 400,
                 "request_ids: expected a list of ids, each text, and 4096 at most");
  expect_error(served.post("/abort_requests", "7"), 400, "the body is not a JSON object");
  EXPECT_EQ(served.service.stats().running, 1U);
  served.service.abort({});
  waiting.join();
}

TEST(ResetPrefixCache, TellsWhetherAllOfItIsGone) {
  Served served;
  EXPECT_EQ(json_of(served.post("/reset_prefix_cache")), (json{{"success", true}}));
  served.service.hold();
  Waiting waiting(served, {"one"});
  EXPECT_EQ(json_of(served.post("/reset_prefix_cache")), (json{{"success", false}}));
  served.service.abort({});
  waiting.join();
}

}  // namespace
}  // namespace wsync::engine::http::test
