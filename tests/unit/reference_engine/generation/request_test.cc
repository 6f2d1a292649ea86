// What a request may ask for, the finish reasons, and the spans of an output.
#include "inference_side/reference_engine/generation/request.h"

#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>

namespace wsync::engine::generation {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kVocabulary = 100;
constexpr std::uint32_t kPositions = 300;

Request good_request() {
  return {.prompt = {0, 99}, .max_tokens = 298, .sampling = {}, .stops = {{7}}, .end_token = 99};
}

std::string request_refusal(const std::function<void(Request&)>& change) {
  Request request = good_request();
  change(request);
  const Result<> checked = check_request(request, kVocabulary, kPositions);
  if (checked) return "not refused";
  EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidInput);
  return checked.error().message();
}

TEST(Request, TheEdgesOfWhatIsAllowed) {
  EXPECT_EQ(request_refusal([](Request&) {}), "not refused");
  EXPECT_EQ(request_refusal([](Request& r) { r.sampling = {.temperature = 0, .top_p = 1e-9}; }),
            "not refused");
  EXPECT_EQ(request_refusal([](Request& r) { r.logprobs = kMaxLogprobs; }), "not refused");
  EXPECT_EQ(request_refusal([](Request& r) {
              r.stops.assign(kMaxStops, std::vector<Token>(kMaxStopTokens, 99));
            }),
            "not refused");
}

TEST(Request, LengthsAreRefused) {
  EXPECT_THAT(request_refusal([](Request& r) { r.prompt.clear(); }), HasSubstr("prompt:"));
  EXPECT_THAT(request_refusal([](Request& r) { r.max_tokens = 0; }),
              HasSubstr("max_tokens: it is 0"));
  EXPECT_THAT(request_refusal([](Request& r) { r.max_tokens = 299; }),
              HasSubstr("the prompt's 2 tokens and max_tokens 299 make 301 positions; the model "
                        "has 300"));
  EXPECT_THAT(
      request_refusal([](Request& r) { r.max_tokens = std::numeric_limits<std::uint32_t>::max(); }),
      HasSubstr("make 4294967297 positions"));
}

TEST(Request, TokensThatTheModelDoesNotHaveAreRefused) {
  EXPECT_THAT(request_refusal([](Request& r) { r.prompt[1] = 100; }),
              HasSubstr("prompt: token 100 at position 1"));
  EXPECT_THAT(request_refusal([](Request& r) { r.end_token = 100; }),
              HasSubstr("end_token: token 100"));
  EXPECT_THAT(request_refusal([](Request& r) { r.end_tokens = {1, 100}; }),
              HasSubstr("stop_token_ids: token 100 at position 1"));
  EXPECT_THAT(request_refusal([](Request& r) { r.stops.push_back({1, 1, 4000}); }),
              HasSubstr("stop[1]: token 4000 at position 2"));
}

TEST(Request, StopsAndLogprobsAreRefused) {
  EXPECT_THAT(request_refusal([](Request& r) { r.stops.push_back({}); }),
              HasSubstr("stop[1]: it is empty"));
  EXPECT_THAT(request_refusal([](Request& r) { r.stops.assign(kMaxStops + 1, {1}); }),
              HasSubstr("stop: there are 17 sequences; at most 16"));
  EXPECT_THAT(request_refusal([](Request& r) { r.stops[0].assign(kMaxStopTokens + 1, 1); }),
              HasSubstr("stop[0]: it has 257 tokens; at most 256"));
  EXPECT_THAT(request_refusal([](Request& r) { r.end_tokens.assign(kMaxEndTokens + 1, 1); }),
              HasSubstr("stop_token_ids: there are 17; at most 16"));
  EXPECT_THAT(request_refusal([](Request& r) { r.logprobs = kMaxLogprobs + 1; }),
              HasSubstr("logprobs: 21 are requested; at most 20"));
}

TEST(Request, ChoicesThatMeanNothingAreRefused) {
  for (const double temperature : {-0.1, std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_THAT(request_refusal([&](Request& r) { r.sampling.temperature = temperature; }),
                HasSubstr("temperature: it is "));
  for (const double top_p : {0.0, -1.0, 1.0000001, std::nan("")})
    EXPECT_THAT(request_refusal([&](Request& r) { r.sampling.top_p = top_p; }),
                HasSubstr("top_p: it is "));
}

TEST(Request, ReasonsHaveTheNamesOfTheProtocol) {
  EXPECT_STREQ(name_of(FinishReason::kStop), "stop");
  EXPECT_STREQ(name_of(FinishReason::kLength), "length");
  EXPECT_STREQ(name_of(FinishReason::kAbort), "abort");
}

TEST(Request, SpansJoinTokensOfOneVersion) {
  const Version first{.epoch = 1, .step = 1};
  const Version second{.epoch = 1, .step = 2};
  std::vector<VersionSpan> spans;
  for (const Version& version : {first, first, second, second, second, first})
    extend(spans, version);
  EXPECT_EQ(spans, (std::vector<VersionSpan>{{.begin = 0, .end = 2, .version = first},
                                             {.begin = 2, .end = 5, .version = second},
                                             {.begin = 5, .end = 6, .version = first}}));
}

}  // namespace
}  // namespace wsync::engine::generation
