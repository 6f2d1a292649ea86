#include "inference_side/reference_engine/http/openai.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

namespace wsync::engine::http {
namespace {

using generation::Delivery;
using generation::FinishReason;
using generation::GeneratedToken;
using generation::Token;
using nlohmann::json;

constexpr Version kFirst{.epoch = 1, .step = 4};
constexpr Version kSecond{.epoch = 1, .step = 5};

const CompletionHead kHead{.id = "cmpl-1", .created = 1700000000, .model = "tiny"};

CompletionRequest asked(std::size_t outputs = 1) {
  CompletionRequest request;
  request.byte_tokens = true;
  request.outputs = static_cast<std::uint32_t>(outputs);
  for (std::size_t i = 0; i < outputs; ++i) {
    request.requests.emplace_back();
    request.requests.back().prompt = {'p', 'q', 'r'};
  }
  return request;
}

std::vector<GeneratedToken> tokens_of(std::string_view bytes, const Version& version = kFirst) {
  std::vector<GeneratedToken> tokens;
  for (const char byte : bytes)
    tokens.push_back({.token = static_cast<unsigned char>(byte), .version = version});
  return tokens;
}

json only_choice(const CompletionRequest& request, const Delivery& output) {
  const json body = completion_json(kHead, request, {output});
  EXPECT_EQ(body.at("choices").size(), 1U);
  return body.at("choices").at(0);
}

TEST(CompletionJson, HasTheFormOfOpenAi) {
  const json body = completion_json(
      kHead, asked(2),
      {{tokens_of("ab"), FinishReason::kStop}, {tokens_of("xyz"), FinishReason::kLength}});
  EXPECT_EQ(body.at("id"), "cmpl-1");
  EXPECT_EQ(body.at("object"), "text_completion");
  EXPECT_EQ(body.at("created"), 1700000000);
  EXPECT_EQ(body.at("model"), "tiny");
  // The prompt of two outputs counts once.
  EXPECT_EQ(body.at("usage"),
            (json{{"prompt_tokens", 3}, {"completion_tokens", 5}, {"total_tokens", 8}}));
  ASSERT_EQ(body.at("choices").size(), 2U);
  EXPECT_EQ(body["choices"][0],
            (json{{"index", 0},
                  {"text", "ab"},
                  {"logprobs", nullptr},
                  {"finish_reason", "stop"},
                  {"weight_versions", {{{"start", 0}, {"end", 2}, {"version", "1.4"}}}}}));
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["choices"][1]["text"], "xyz");
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
}

TEST(CompletionJson, AnAbortedOutputSaysSo) {
  EXPECT_EQ(only_choice(asked(), {{}, FinishReason::kAbort}).at("finish_reason"), "abort");
}

TEST(CompletionJson, SpansTellWhichWeightsComputedWhat) {
  std::vector<GeneratedToken> tokens = tokens_of("ab");
  for (const GeneratedToken& token : tokens_of("cde", kSecond)) tokens.push_back(token);
  EXPECT_EQ(only_choice(asked(), {tokens, FinishReason::kStop}).at("weight_versions"),
            (json{{{"start", 0}, {"end", 2}, {"version", "1.4"}},
                  {{"start", 2}, {"end", 5}, {"version", "1.5"}}}));
}

TEST(CompletionJson, BytesThatAreNoTextAreReplaced) {
  EXPECT_EQ(only_choice(asked(), {tokens_of("a\xFF"
                                            "b\xE2\x82"),
                                  FinishReason::kLength})
                .at("text"),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
}

TEST(CompletionJson, TheEndTokenIsNoText) {
  CompletionRequest request = asked();
  request.requests[0].end_token = Token{0};
  request.return_token_ids = true;
  const json choice =
      only_choice(request, {tokens_of(std::string_view("a\0", 2)), FinishReason::kStop});
  EXPECT_EQ(choice.at("text"), "a");
  EXPECT_EQ(choice.at("token_ids"), (json{'a', 0}));
  EXPECT_EQ(choice.at("prompt_token_ids"), (json{'p', 'q', 'r'}));
}

TEST(CompletionJson, ATokenThatEndsItByRequestIsNoText) {
  CompletionRequest request = asked();
  request.requests[0].end_tokens = {7, '\n'};
  request.return_token_ids = true;
  const json choice = only_choice(request, {tokens_of("a\n"), FinishReason::kStop});
  EXPECT_EQ(choice.at("text"), "a");
  EXPECT_EQ(choice.at("token_ids"), (json{'a', '\n'}));
}

TEST(CompletionJson, LogprobsStandBesideEveryToken) {
  CompletionRequest request = asked();
  request.logprobs = true;
  Delivery output{tokens_of("a\xC3\xA9"), FinishReason::kStop};
  output.tokens[0].logprob = -0.5F;
  output.tokens[0].most_likely = {{.token = 'a', .logprob = -0.5F}, {.token = 7, .logprob = -2}};
  output.tokens[1].logprob = -1;
  output.tokens[1].most_likely = {{.token = '\n', .logprob = -0.25F}};
  output.tokens[2].logprob = -std::numeric_limits<float>::infinity();
  const json logprobs = only_choice(request, output).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens"), (json{"a", "bytes:\\xc3", "bytes:\\xa9"}));
  EXPECT_EQ(logprobs.at("token_logprobs"), (json{-0.5, -1.0, -9999.0}));
  EXPECT_EQ(logprobs.at("top_logprobs"), (json{{{"a", -0.5}, {"bytes:\\x07", -2.0}},
                                               {{"\n", -0.25}, {"bytes:\\xc3", -1.0}},
                                               {{"bytes:\\xa9", -9999.0}}}));
  EXPECT_EQ(logprobs.at("text_offset"), (json{0, 1, 1}));  // two bytes of one character
}

TEST(CompletionJson, ALogprobThatIsNoNumberIsNull) {
  CompletionRequest request = asked();
  request.logprobs = true;
  Delivery output{tokens_of("a"), FinishReason::kStop};
  output.tokens[0].logprob = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(only_choice(request, output).at("logprobs").at("token_logprobs"),
            json::array({nullptr}));
}

TEST(CompletionJson, AModelWithATokenizerGivesTokens) {
  CompletionRequest request = asked();
  request.byte_tokens = false;
  request.logprobs = true;
  Delivery output{tokens_of("ab"), FinishReason::kStop};
  output.tokens[1].token = 150'000;
  const json choice = only_choice(request, output);
  EXPECT_EQ(choice.at("text"), "");
  EXPECT_EQ(choice.at("token_ids"), (json{97, 150'000}));
  EXPECT_EQ(choice.at("logprobs").at("tokens"), (json{"token_id:97", "token_id:150000"}));
  EXPECT_EQ(choice.at("logprobs").at("text_offset"), (json{0, 0}));
}

TEST(CompletionJson, TokensAboveTheBytesHaveNoText) {
  CompletionRequest request = asked();
  request.logprobs = true;
  Delivery output{tokens_of("a\xE2z"), FinishReason::kStop};
  output.tokens[2].token = 260;  // in the middle of a character
  const json choice = only_choice(request, output);
  EXPECT_EQ(choice.at("text"), "a\xEF\xBF\xBD");
  EXPECT_EQ(choice.at("logprobs").at("tokens"), (json{"a", "bytes:\\xe2", "token_id:260"}));
  EXPECT_EQ(choice.at("logprobs").at("text_offset"), (json{0, 1, 2}));
}

TEST(ChunkJson, ACharacterWaitsForItsRest) {
  const CompletionRequest request = asked();
  ChoiceProgress progress;
  const auto text = [&](std::string_view bytes, std::optional<FinishReason> finished = {}) {
    const json chunk = chunk_json(kHead, request, 0, {tokens_of(bytes), finished}, progress);
    return chunk.at("choices").at(0).at("text").get<std::string>();
  };
  EXPECT_EQ(text("a\xE2"), "a");
  EXPECT_EQ(text("\x82"), "");
  EXPECT_EQ(text("\xAC"
                 "b"),
            "\xE2\x82\xAC"
            "b");
  EXPECT_EQ(text("\xF0\x9F"), "");
  EXPECT_EQ(text("", FinishReason::kLength), "\xEF\xBF\xBD");
}

TEST(ChunkJson, PlacesGoOnFromChunkToChunk) {
  CompletionRequest request = asked();
  request.logprobs = request.return_token_ids = true;
  ChoiceProgress progress;
  const json first =
      chunk_json(kHead, request, 0, {tokens_of("ab\xC3"), {}}, progress).at("choices").at(0);
  const json second = chunk_json(kHead, request, 0,
                                 {tokens_of("\xA9"
                                            "d",
                                            kSecond),
                                  FinishReason::kStop},
                                 progress)
                          .at("choices")
                          .at(0);
  EXPECT_EQ(first.at("logprobs").at("text_offset"), (json{0, 1, 2}));
  EXPECT_EQ(second.at("logprobs").at("text_offset"), (json{2, 3}));
  EXPECT_EQ(first.at("weight_versions"), (json{{{"start", 0}, {"end", 3}, {"version", "1.4"}}}));
  EXPECT_EQ(second.at("weight_versions"), (json{{{"start", 3}, {"end", 5}, {"version", "1.5"}}}));
  EXPECT_EQ(first.at("finish_reason"), nullptr);
  EXPECT_EQ(second.at("finish_reason"), "stop");
  EXPECT_EQ(first.at("token_ids"), (json{'a', 'b', 0xC3}));
  EXPECT_EQ(first.at("prompt_token_ids"), (json{'p', 'q', 'r'}));  // in the first one only
  EXPECT_FALSE(second.contains("prompt_token_ids"));
}

TEST(ErrorJson, HasTheFormOfOpenAi) {
  EXPECT_EQ(error_json(400, "why"), (json{{"error",
                                           {{"message", "why"},
                                            {"type", "invalid_request_error"},
                                            {"param", nullptr},
                                            {"code", nullptr}}}}));
  EXPECT_EQ(error_json(404, "why", "model_not_found")["error"]["code"], "model_not_found");
  EXPECT_EQ(error_json(429, "why")["error"]["type"], "rate_limit_error");
  EXPECT_EQ(error_json(503, "why")["error"]["type"], "server_error");
}

TEST(JsonLine, IsAlwaysUtf8OnOneLine) {
  EXPECT_EQ(json_line({{"a", "x\ny\xFF"}}), "{\"a\":\"x\\ny\xEF\xBF\xBD\"}");
}

}  // namespace
}  // namespace wsync::engine::http
