#include "trainer_side/rollout/completion_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace wsync::rollout {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

CompletionQuestion question() {
  return {.prompt = "ab", .answers = 2, .max_tokens = 4, .temperature = 0.5, .seed = 77};
}

// As the engine answers it.
json answer() {
  const json logprobs = {{"tokens", {"1", "\n"}},
                         {"token_logprobs", {-0.5, -1.25}},
                         {"top_logprobs", {{{"1", -0.5}}, {{"\n", -1.25}}}},
                         {"text_offset", {0, 1}}};
  const json first = {{"index", 0},
                      {"text", "1"},
                      {"logprobs", logprobs},
                      {"finish_reason", "stop"},
                      {"weight_versions",
                       {{{"start", 0}, {"end", 1}, {"version", "1.4"}},
                        {{"start", 1}, {"end", 2}, {"version", "1.5"}}}},
                      {"prompt_token_ids", {'a', 'b'}},
                      {"token_ids", {'1', '\n'}}};
  json second = first;
  second["index"] = 1;
  second["finish_reason"] = "length";
  second["token_ids"] = {0, 255, 7, 8};
  second["logprobs"]["token_logprobs"] = {-1, -2, 0, -9999.0};
  second["weight_versions"] = {{{"start", 0}, {"end", 4}, {"version", "0.0"}}};
  return {{"id", "cmpl-1"}, {"object", "text_completion"}, {"choices", {first, second}}};
}

Result<std::vector<Rollout>> read(const json& body) {
  return read_answer(body.dump(), question(), "http://one:1");
}

std::string refusal(const std::string& body) {
  const auto rollouts = read_answer(body, question(), "http://one:1");
  EXPECT_FALSE(rollouts) << body;
  if (rollouts) return "not refused";
  EXPECT_EQ(rollouts.error().code(), ErrorCode::kInvalidInput);
  return rollouts.error().message();
}

// The answer with one value changed.
std::string refusal(const std::string& place, const json& value) {
  json body = answer();
  body[json::json_pointer(place)] = value;
  return refusal(body.dump());
}
std::string refusal_without(const std::string& place, const std::string& key) {
  json body = answer();
  EXPECT_EQ(body[json::json_pointer(place)].erase(key), 1U);
  return refusal(body.dump());
}

TEST(QuestionBody, AsksForWhatARolloutNeeds) {
  EXPECT_EQ(json::parse(question_body(question())), (json{{"prompt", {'a', 'b'}},
                                                          {"n", 2},
                                                          {"max_tokens", 4},
                                                          {"temperature", 0.5},
                                                          {"seed", 77},
                                                          {"stop_token_ids", json::array({'\n'})},
                                                          {"ignore_eos", true},
                                                          {"logprobs", 0},
                                                          {"return_token_ids", true}}));
  CompletionQuestion bytes = question();
  bytes.prompt = std::string("\xFF\0", 2);
  bytes.stop = '\xFE';
  EXPECT_EQ(json::parse(question_body(bytes)).at("prompt"), (json{255, 0}));
  EXPECT_EQ(json::parse(question_body(bytes)).at("stop_token_ids"), json::array({254}));
}

TEST(QuestionBody, AnswersHaveALimitThatTheyFitInto) {
  EXPECT_GT(max_answer_bytes(question()), answer().dump().size());
  EXPECT_EQ(max_answer_bytes({.prompt = "a", .answers = ~0U, .max_tokens = ~0U}), kAnswerBytes);
}

TEST(ReadAnswer, ARolloutForEachChoice) {
  const auto rollouts = read(answer());
  ASSERT_TRUE(rollouts) << rollouts.error().message();
  ASSERT_EQ(rollouts->size(), 2U);
  const Rollout& first = (*rollouts)[0];
  EXPECT_THAT(first.tokens, ElementsAre('1', '\n'));
  EXPECT_THAT(first.log_probabilities, ElementsAre(-0.5F, -1.25F));
  EXPECT_THAT(first.spans,
              ElementsAre(Span{.start = 0, .end = 1, .version = {.epoch = 1, .step = 4}},
                          Span{.start = 1, .end = 2, .version = {.epoch = 1, .step = 5}}));
  EXPECT_EQ(first.replica, "http://one:1");
  EXPECT_EQ(first.reward, 0);
  EXPECT_EQ(first.advantage, 0);
  const Rollout& second = (*rollouts)[1];
  EXPECT_THAT(second.tokens, ElementsAre(0, 255, 7, 8));
  EXPECT_THAT(second.log_probabilities, ElementsAre(-1, -2, 0, -9999));
  EXPECT_THAT(second.spans, ElementsAre(Span{.start = 0, .end = 4, .version = {}}));
}

TEST(ReadAnswer, ChoicesComeInAnyOrderAndWithoutPrompts) {
  json body = answer();
  std::swap(body["choices"][0], body["choices"][1]);
  body["choices"][0].erase("prompt_token_ids");
  body["choices"][1]["prompt_token_ids"] = nullptr;
  const auto rollouts = read(body);
  ASSERT_TRUE(rollouts) << rollouts.error().message();
  EXPECT_THAT((*rollouts)[0].tokens, ElementsAre('1', '\n'));
  EXPECT_EQ((*rollouts)[1].tokens.size(), 4U);
}

// The last token that is allowed may be the end.
TEST(ReadAnswer, AnEndAtTheLimitMayBeCalledALength) {
  json body = answer();
  body["choices"][1]["token_ids"] = {1, 2, 3, '\n'};
  EXPECT_TRUE(read(body));
}

TEST(ReadAnswer, AnAbortedChoiceIsABusyEngine) {
  json body = answer();
  body["choices"][1]["finish_reason"] = "abort";
  body["choices"][1]["token_ids"] = json::array();
  const auto rollouts = read(body);
  ASSERT_FALSE(rollouts);
  EXPECT_EQ(rollouts.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(rollouts.error().message(), HasSubstr("choice 1 was aborted by the engine"));
}

TEST(ReadAnswer, WhatIsNoAnswerIsRefused) {
  EXPECT_THAT(refusal(""), HasSubstr("expected a JSON object, found 0 bytes"));
  EXPECT_THAT(refusal("nonsense"), HasSubstr("found 8 bytes that begin with 'nonsense'"));
  EXPECT_THAT(refusal("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal("7"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal("\xEF\xBB\xBF{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(refusal(std::string("{\0}", 3)), HasSubstr("NUL"));
  EXPECT_THAT(refusal("{\"a\": \"\xFF\"}"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("choices: expected a list of 2, found nothing"));
  const std::string whole = answer().dump();
  for (std::size_t kept = 0; kept < whole.size(); ++kept)
    EXPECT_NE(refusal(whole.substr(0, kept)), "not refused") << kept;
  EXPECT_THAT(refusal(whole + "x"), HasSubstr("expected a JSON object"));
}

TEST(ReadAnswer, DepthHasALimit) {
  const auto nested = [](std::size_t depth) {
    std::string body = answer().dump();
    body.pop_back();
    return body + R"(,"more":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(read_answer(nested(20), question(), ""));
  EXPECT_THAT(refusal(nested(40)), HasSubstr("it nests deeper than 32 levels"));
  EXPECT_THAT(refusal(nested(1'000'000)), HasSubstr("it nests deeper than 32 levels"));
}

TEST(ReadAnswer, ChoicesAreThoseAskedFor) {
  EXPECT_THAT(refusal("/choices", 7), HasSubstr("choices: expected a list of 2, found 7"));
  EXPECT_THAT(refusal("/choices", json::array({7})), HasSubstr("found a list of 1"));
  EXPECT_THAT(refusal("/choices/1", 7),
              HasSubstr("choices, index: expected each of 0 to 1 once, found nothing"));
  EXPECT_THAT(refusal("/choices/1/index", 0), HasSubstr("once, found 0"));
  EXPECT_THAT(refusal("/choices/1/index", 2), HasSubstr("once, found 2"));
  EXPECT_THAT(refusal("/choices/1/index", -1), HasSubstr("once, found -1"));
  EXPECT_THAT(refusal("/choices/1/index", "1"), HasSubstr("once, found '1'"));
  EXPECT_THAT(refusal("/choices/0/finish_reason", nullptr),
              HasSubstr("choice 0, finish_reason: expected 'stop', 'length' or 'abort', found "
                        "null"));
  EXPECT_THAT(refusal("/choices/0/finish_reason", "tired"), HasSubstr("found 'tired'"));
  EXPECT_THAT(refusal_without("/choices/0", "finish_reason"), HasSubstr("found nothing"));
}

TEST(ReadAnswer, ThePromptIsTheOneAsked) {
  const std::string expected =
      "prompt_token_ids: expected the 2 tokens of the prompt that was sent";
  EXPECT_THAT(refusal("/choices/0/prompt_token_ids", {'a'}), HasSubstr(expected));
  EXPECT_THAT(refusal("/choices/0/prompt_token_ids", {'a', 'c'}), HasSubstr(expected));
  EXPECT_THAT(refusal("/choices/0/prompt_token_ids", {'a', 'b' + 256}), HasSubstr(expected));
  EXPECT_THAT(refusal("/choices/0/prompt_token_ids", "ab"), HasSubstr(expected));
}

TEST(ReadAnswer, TokensAreBytesAndNotTooMany) {
  EXPECT_THAT(refusal_without("/choices/0", "token_ids"),
              HasSubstr("choice 0, token_ids: expected a list of 1 to 4, found nothing"));
  EXPECT_THAT(refusal("/choices/0/token_ids", json::array()), HasSubstr("found a list of 0"));
  EXPECT_THAT(refusal("/choices/0/token_ids", {1, 2, 3, 4, '\n'}), HasSubstr("found a list of 5"));
  EXPECT_THAT(refusal("/choices/0/token_ids/0", 256),
              HasSubstr("token_ids[0]: expected a byte, 0 to 255, found 256"));
  EXPECT_THAT(refusal("/choices/0/token_ids/0", -1), HasSubstr("found -1"));
  EXPECT_THAT(refusal("/choices/0/token_ids/0", 1.5), HasSubstr("found 1.5"));
  EXPECT_THAT(refusal("/choices/0/token_ids/0", json::object()), HasSubstr("found an object"));
}

TEST(ReadAnswer, TheStopIsWhereTheAnswerEndsAndNowhereElse) {
  EXPECT_THAT(refusal("/choices/0/token_ids", {'1', '2'}), HasSubstr("found none in 2 tokens"));
  EXPECT_THAT(refusal("/choices/0/token_ids", {'\n', '2'}),
              HasSubstr("found the first at 0 in 2 tokens"));
  EXPECT_THAT(refusal("/choices/1/token_ids", {1, '\n', 2, '\n'}),
              HasSubstr("found the first at 1 in 4 tokens"));
}

TEST(ReadAnswer, LogProbabilitiesAreFiniteAndOnePerToken) {
  const std::string field = "/choices/0/logprobs";
  EXPECT_THAT(refusal(field, nullptr),
              HasSubstr("logprobs.token_logprobs: expected a list of 2, found nothing"));
  EXPECT_THAT(refusal(field + "/token_logprobs", {-1}), HasSubstr("found a list of 1"));
  EXPECT_THAT(refusal(field + "/token_logprobs", {-1, -1, -1}), HasSubstr("found a list of 3"));
  EXPECT_THAT(refusal(field + "/token_logprobs/1", nullptr),
              HasSubstr("token_logprobs[1]: expected a finite number of at most 0, found null"));
  EXPECT_THAT(refusal(field + "/token_logprobs/1", 0.5), HasSubstr("found 0.5"));
  EXPECT_THAT(refusal(field + "/token_logprobs/1", "-1"), HasSubstr("found '-1'"));
  EXPECT_THAT(refusal(field + "/token_logprobs/1", -1e300), HasSubstr("a finite number"));
  json body = answer();
  body[json::json_pointer(field + "/token_logprobs/1")] = 1e-7;  // as rounding makes it
  EXPECT_TRUE(read(body));
}

TEST(ReadAnswer, SpansCoverTheTokensInOrder) {
  const std::string field = "/choices/0/weight_versions";
  EXPECT_THAT(refusal_without("/choices/0", "weight_versions"),
              HasSubstr("weight_versions: expected 1 to 2 spans, found nothing"));
  EXPECT_THAT(refusal(field, json::array()), HasSubstr("found a list of 0"));
  EXPECT_THAT(refusal(field, "1.4"), HasSubstr("found '1.4'"));
  EXPECT_THAT(refusal(field + "/0", 7), HasSubstr("weight_versions[0].start: expected 0"));
  EXPECT_THAT(refusal(field + "/0/start", 1), HasSubstr("[0].start: expected 0, found 1"));
  EXPECT_THAT(refusal(field + "/1/start", 0), HasSubstr("[1].start: expected 1, found 0"));
  EXPECT_THAT(refusal(field + "/0/end", 0), HasSubstr("[0].end: expected 1 to 2, found 0"));
  EXPECT_THAT(refusal(field + "/1/end", 3), HasSubstr("[1].end: expected 2 to 2, found 3"));
  EXPECT_THAT(refusal(field + "/0/end", "1"), HasSubstr("[0].end: expected 1 to 2, found '1'"));
  EXPECT_THAT(refusal(field, {{{"start", 0}, {"end", 1}, {"version", "1.4"}}}),
              HasSubstr("expected spans of all 2 tokens, found 1 covered"));
  EXPECT_THAT(refusal(field + "/1/version", "five"),
              HasSubstr("[1].version: expected a version, EPOCH.STEP, found 'five'"));
  EXPECT_THAT(refusal(field + "/1/version", 1.5), HasSubstr("found 1.5"));
}

TEST(ReadServed, TellsTheVersion) {
  EXPECT_EQ(read_served(R"({"version": "2.17", "step": 17})").value(),
            (Version{.epoch = 2, .step = 17}));
  const auto none = read_served(R"({"version": null})");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kBusy);
  for (const char* body : {"", "{}", "[]", R"({"version": 7})", R"({"version": "latest"})"}) {
    const auto wrong = read_served(body);
    ASSERT_FALSE(wrong) << body;
    EXPECT_EQ(wrong.error().code(), ErrorCode::kInvalidInput);
  }
}

TEST(ReadRefusal, FindsWhatWasSaid) {
  EXPECT_EQ(read_refusal(R"({"error": {"message": "too many"}})"), "'too many'");
  EXPECT_EQ(read_refusal(R"({"ready": false, "reason": "no weights"})"), "'no weights'");
  EXPECT_EQ(read_refusal(R"({"error": "x"})"), R"('{"error": "x"}')");
  EXPECT_EQ(read_refusal(R"({"error": {"message": 7}})"), R"('{"error": {"message": 7}}')");
  EXPECT_EQ(read_refusal("<html>\r\n"), "'<html>\\x0d\\x0a'");
  EXPECT_EQ(read_refusal(""), "nothing");
}

}  // namespace
}  // namespace wsync::rollout
