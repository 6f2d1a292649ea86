#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "inference_side/reference_engine/http/openai.h"
#include "shared/base/format.h"

namespace wsync::engine::http {
namespace {

using generation::Token;
using testing::HasSubstr;
using Tokens = std::vector<Token>;

generation::ServiceInfo model_info() {
  return {.model = "tiny",
          .vocabulary = 300,
          .max_positions = 100,
          .end_token = Token{256},
          .has_weights = true};
}

CompletionRequest read(const std::string& body, bool byte_tokens = true) {
  auto request = read_completion(body, model_info(), byte_tokens);
  EXPECT_TRUE(request) << request.error().message();
  return request ? std::move(*request) : CompletionRequest{};
}

TEST(ReadCompletion, DefaultsAreThoseOfOpenAi) {
  const CompletionRequest read_one = read(R"({"prompt": "ab"})");
  ASSERT_EQ(read_one.requests.size(), 1U);
  const generation::Request& request = read_one.requests[0];
  EXPECT_EQ(request.prompt, (Tokens{'a', 'b'}));
  EXPECT_EQ(request.max_tokens, 16U);
  EXPECT_EQ(request.sampling, generation::Sampling{});
  EXPECT_TRUE(request.stops.empty());
  EXPECT_EQ(request.end_token, 256U);
  EXPECT_EQ(request.logprobs, 0U);
  EXPECT_EQ(read_one.outputs, 1U);
  EXPECT_TRUE(read_one.byte_tokens);
  EXPECT_FALSE(read_one.stream || read_one.logprobs || read_one.return_token_ids);
}

TEST(ReadCompletion, EveryFieldArrives) {
  const CompletionRequest all = read(R"({"model": "tiny", "prompt": "é", "n": 2, "max_tokens": 7,
      "temperature": 0.5, "top_p": 0.25, "seed": 18446744073709551615, "stop": ["x", "yz"],
      "stop_token_ids": [10, 299],
      "logprobs": 5, "stream": true, "ignore_eos": true, "return_token_ids": true})");
  ASSERT_EQ(all.requests.size(), 2U);
  for (const generation::Request& request : all.requests) {
    EXPECT_EQ(request.prompt, (Tokens{0xC3, 0xA9}));
    EXPECT_EQ(request.max_tokens, 7U);
    EXPECT_EQ(request.sampling.temperature, 0.5);
    EXPECT_EQ(request.sampling.top_p, 0.25);
    EXPECT_EQ(request.stops, (std::vector<Tokens>{{'x'}, {'y', 'z'}}));
    EXPECT_EQ(request.end_token, std::nullopt);
    EXPECT_EQ(request.end_tokens, (Tokens{10, 299}));
    EXPECT_EQ(request.logprobs, 5U);
  }
  // Output i uses seed + i, around the end of the numbers.
  EXPECT_EQ(all.requests[0].sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(all.requests[1].sampling.seed, 0U);
  EXPECT_EQ(all.outputs, 2U);
  EXPECT_TRUE(all.stream && all.logprobs && all.return_token_ids);
}

TEST(ReadCompletion, PromptsHaveFourForms) {
  const auto prompts = [](const std::string& prompt) {
    std::vector<Tokens> all;
    for (const auto& request : read(R"({"prompt": )" + prompt + "}").requests)
      all.push_back(request.prompt);
    return all;
  };
  EXPECT_EQ(prompts(R"("ab")"), (std::vector<Tokens>{{'a', 'b'}}));
  EXPECT_EQ(prompts(R"(["a", "b"])"), (std::vector<Tokens>{{'a'}, {'b'}}));
  EXPECT_EQ(prompts("[1, 299]"), (std::vector<Tokens>{{1, 299}}));
  EXPECT_EQ(prompts("[[1, 2], [3]]"), (std::vector<Tokens>{{1, 2}, {3}}));
}

TEST(ReadCompletion, OutputsStandPromptByPrompt) {
  const CompletionRequest both = read(R"({"prompt": ["a", "b"], "n": 2, "seed": 10})");
  ASSERT_EQ(both.requests.size(), 4U);
  const std::vector<std::pair<Token, std::uint64_t>> expected = {
      {'a', 10}, {'a', 11}, {'b', 10}, {'b', 11}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(both.requests[i].prompt[0], expected[i].first);
    EXPECT_EQ(both.requests[i].sampling.seed, expected[i].second);
  }
}

TEST(ReadCompletion, NullIsAsIfLeftOut) {
  const CompletionRequest nulls = read(R"({"model": null, "prompt": "a", "n": null,
      "max_tokens": null, "temperature": null, "top_p": null, "seed": null, "stop": null,
      "stop_token_ids": null,
      "logprobs": null, "stream": null, "stream_options": null, "best_of": null, "echo": null,
      "suffix": null, "logit_bias": null, "request_id": null})");
  EXPECT_EQ(nulls.requests.size(), 1U);
  EXPECT_FALSE(nulls.logprobs);
  EXPECT_TRUE(nulls.requests[0].stops.empty());
  EXPECT_TRUE(nulls.requests[0].end_tokens.empty());
}

TEST(ReadCompletion, LogprobsOfNoneButTheChosenToken) {
  EXPECT_TRUE(read(R"({"prompt": "a", "logprobs": 0})").logprobs);
}

TEST(ReadCompletion, StopMayBeOneText) {
  EXPECT_EQ(read(R"({"prompt": "a", "stop": "ab"})").requests[0].stops,
            (std::vector<Tokens>{{'a', 'b'}}));
}

TEST(ReadCompletion, AModelWithATokenizerTakesTokensOnly) {
  EXPECT_FALSE(read(R"({"prompt": [299]})", false).byte_tokens);
  const auto text = read_completion(R"({"prompt": "a"})", model_info(), false);
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().message(),
              HasSubstr("prompt: it is text, which this engine can convert only if the model's "
                        "tokens are bytes; expected a list of tokens"));
  const auto stop = read_completion(R"({"prompt": [1], "stop": "a"})", model_info(), false);
  ASSERT_FALSE(stop);
  EXPECT_THAT(stop.error().message(),
              HasSubstr("stop: this engine can convert text to tokens only if"));
}

TEST(ReadCompletion, AnotherModelIsNotFound) {
  const auto other = read_completion(R"({"model": "big", "prompt": "a"})", model_info(), true);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(other.error().message(),
              HasSubstr("model: 'big' does not exist here; this engine serves 'tiny'"));
}

struct BadBody {
  std::string body;
  std::string sentence;
};

void expect_refused(const std::vector<BadBody>& cases) {
  for (const BadBody& bad : cases) {
    const auto read_one = read_completion(bad.body, model_info(), true);
    ASSERT_FALSE(read_one) << bad.body;
    EXPECT_EQ(read_one.error().code(), ErrorCode::kInvalidInput) << bad.body;
    EXPECT_THAT(read_one.error().message(), HasSubstr(bad.sentence)) << bad.body;
  }
}

TEST(ReadCompletion, WhatIsNoObjectIsRefused) {
  expect_refused({
      {"", "the body is empty; expected a JSON object"},
      {"[]", "the body is a list; expected an object"},
      {"7", "the body is 7; expected an object"},
      {"\"a\"", "the body is 'a'; expected an object"},
      {"null", "the body is null; expected an object"},
      {"{", "the body is not JSON at byte 2"},
      {R"({"prompt": "a"}{})", "the body is not JSON at byte 16"},
      {R"({"prompt": "a",})", "the body is not JSON"},
      {"{\"prompt\": \"\xFF\"}", "the body is not JSON"},
      {R"({"temperature": 1e999, "prompt": "a"})", "the body is not JSON"},
      {"\xEF\xBB\xBF{}", "the body"},
      {std::string("{\"prompt\": \"a\"}\0", 16), "the body"},
      {R"({"prompt": "a", "x": )" + std::string(40, '[') + std::string(40, ']') + "}",
       "the body nests deeper than 32 levels"},
      {R"({"prompt": "a", "prompt": "b"})", "prompt: it occurs twice; expected once"},
      {R"({"prompt": "a", "n": 1, "n": 1})", "n: it occurs twice"},
  });
}

TEST(ReadCompletion, BadPromptsAreRefused) {
  const std::string expected = "expected text, a list of tokens, or a list of either";
  expect_refused({
      {"{}", "prompt: it is missing; " + expected},
      {R"({"prompt": null})", "prompt: it is missing"},
      {R"({"prompt": 7})", "prompt: it is 7; " + expected},
      {R"({"prompt": {"a": 1}})", "prompt: it is an object; " + expected},
      {R"({"prompt": true})", "prompt: it is true"},
      {R"({"prompt": []})", "prompt: it is an empty list; " + expected},
      {R"({"prompt": ""})", "prompt: it has no tokens"},
      {R"({"prompt": [[]]})", "prompt: it has no tokens"},
      {R"({"prompt": ["a", ""]})", "prompt 1: prompt: it has no tokens"},
      {R"({"prompt": [1, "a"]})", "prompt: 'a' is in its list; " + expected},
      {R"({"prompt": ["a", 1]})", "prompt: 1 is in its list"},
      {R"({"prompt": [1, [2]]})", "prompt: a list is in its list"},
      {R"({"prompt": [[1], 2]})", "prompt: 2 is in its list"},
      {R"({"prompt": [[1], "a"]})", "prompt: 'a' is in its list"},
      {R"({"prompt": [["a"]]})", "prompt: 'a' is in its list"},
      {R"({"prompt": [[[1]]]})", "prompt: a list is in its list"},
      {R"({"prompt": [{}]})", "prompt: an object is in its list"},
      {R"({"prompt": [null]})", "prompt: null is in its list"},
      {R"({"prompt": [-1]})", "prompt: -1 is in its list"},
      {R"({"prompt": [1.5]})", "prompt: 1.5 is in its list"},
      {R"({"prompt": [4294967296]})", "prompt: 4294967296 is in its list"},
      {R"({"prompt": [300]})", "prompt: token 300 at position 0"},
      {R"({"prompt": [[1], [2, 300]]})", "prompt 1: prompt: token 300 at position 1"},
  });
}

TEST(ReadCompletion, BadFieldsAreRefused) {
  const auto with = [](const std::string& field) { return R"({"prompt": "a", )" + field + "}"; };
  expect_refused({
      {with(R"("model": 7)"), "model: it is 7; expected the model's name"},
      {with(R"("n": 0)"), "n: it is 0; expected a whole number from 1 to 128"},
      {with(R"("n": 129)"), "n: it is 129; expected a whole number from 1 to 128"},
      {with(R"("n": "2")"), "n: it is '2'; expected a whole number"},
      {with(R"("n": 1.5)"), "n: it is 1.5; expected a whole number"},
      {with(R"("n": [1])"), "n: it is a list; expected a whole number"},
      {with(R"("n": {"a": 1})"), "n: it is an object; expected a whole number"},
      {with(R"("max_tokens": -1)"), "max_tokens: it is -1; expected a whole number from 0"},
      {with(R"("max_tokens": 4294967296)"), "max_tokens: it is 4294967296"},
      {with(R"("max_tokens": 0)"), "max_tokens: it is 0; at least 1"},
      {with(R"("max_tokens": 100)"), "max_tokens"},
      {with(R"("temperature": "hot")"), "temperature: it is 'hot'; expected a number"},
      {with(R"("temperature": true)"), "temperature: it is true; expected a number"},
      {with(R"("temperature": -0.5)"), "temperature: it is -0.5"},
      {with(R"("top_p": 0)"), "top_p: it is 0"},
      {with(R"("top_p": 1.5)"), "top_p: it is 1.5"},
      {with(R"("top_p": [])"), "top_p: it is a list; expected a number"},
      {with(R"("seed": -1)"), "seed: it is -1; expected a whole number from 0"},
      {with(R"("seed": 18446744073709551616)"), "seed: it is 1.8446744073709552e+19"},
      {with(R"("stop": 7)"), "stop: it is 7; expected text or a list of texts"},
      {with(R"("stop": {})"), "stop: it is an object; expected text or a list of texts"},
      {with(R"("stop": [7])"), "stop: 7 is in its list; expected text or a list of texts"},
      {with(R"("stop": [["a"]])"), "stop: a list is in its list"},
      {with(R"("stop": ["a", null])"), "stop: null is in its list"},
      {with(R"("stop": "")"), "stop[0]: it is empty"},
      {with(R"("stop": ["a", ""])"), "stop[1]: it is empty"},
      {with(R"("stop_token_ids": 7)"),
       "stop_token_ids: it is 7; expected a list of tokens, whole numbers"},
      {with(R"("stop_token_ids": {})"), "stop_token_ids: it is an object; expected a list"},
      {with(R"("stop_token_ids": ["a"])"), "stop_token_ids: 'a' is in its list; expected a list"},
      {with(R"("stop_token_ids": [-1])"), "stop_token_ids: -1 is in its list"},
      {with(R"("stop_token_ids": [4294967296])"), "stop_token_ids: 4294967296 is in its list"},
      {with(R"("stop_token_ids": [[1]])"), "stop_token_ids: a list is in its list"},
      {with(R"("stop_token_ids": [300])"), "stop_token_ids: token 300 at position 0"},
      {with(R"("stop_token_ids": [1], "stop_token_ids": [2])"), "stop_token_ids: it occurs twice"},
      {with(R"("logprobs": 21)"), "logprobs: it is 21; expected a whole number from 0 to 20"},
      {with(R"("logprobs": true)"), "logprobs: it is true; expected a whole number from 0 to 20"},
      {with(R"("stream": "yes")"), "stream: it is 'yes'; expected true or false"},
      {with(R"("stream": 1)"), "stream: it is 1; expected true or false"},
      {with(R"("ignore_eos": 1)"), "ignore_eos: it is 1; expected true or false"},
      {with(R"("return_token_ids": "a")"), "return_token_ids: it is 'a'"},
  });
}

TEST(ReadCompletion, FieldsThatAreNotSupportedAreRefused) {
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"user", "\"someone\""},
      {"best_of", "1"},
      {"stream_options", "{}"},
      {"presence_penalty", "0"},
      {"echo", "true"},
      {"suffix", "\"a\""},
      {"logit_bias", R"({"50": 1})"},
      {"presence_penalty", "0.5"},
      {"frequency_penalty", "-1"},
      {"repetition_penalty", "1.1"},
      {"top_k", "5"},
      {"min_p", "0.1"},
      {"min_tokens", "1"},
      {"priority", "3"},
      {"use_beam_search", "true"},
      {"include_stop_str_in_output", "true"},
      {"bad_words", "[\"a\"]"},
      {"allowed_token_ids", "[[]]"},
      {"logprob_token_ids", "[1]"},
      {"prompt_logprobs", "0"},
      {"truncate_prompt_tokens", "-1"},
      {"prompt_embeds", "\"aa\""},
      {"response_format", R"({"type": "json_object"})"},
      {"structured_outputs", R"({"regex": "a"})"},
      {"guided_json", "\"{}\""},
      {"guided_regex", "\"a\""},
      {"guided_choice", "[\"a\"]"},
      {"guided_grammar", "\"a\""},
  };
  std::vector<BadBody> cases;
  for (const auto& [name, value] : fields)
    cases.push_back(
        {fmt::format(R"({{"prompt": "a", "{}": {}}})", name, value), name + ": it is "});
  expect_refused(cases);
  expect_refused({{R"({"prompt": "a", "echo": true})",
                   "echo: it is true, which this engine does not support; leave it out"},
                  {R"({"prompt": "a", "A B": 1})", "'A B': it is 1, which this engine"}});
}

TEST(ReadCompletion, TooMuchIsRefused) {
  const auto list = [](std::size_t count, const std::string& element) {
    std::string text = "[" + element;
    for (std::size_t i = 1; i < count; ++i) text += "," + element;
    return text + "]";
  };
  const auto prompt = [](const std::string& value, const std::string& rest = "") {
    return R"({"prompt": )" + value + rest + "}";
  };
  EXPECT_EQ(read(prompt(list(kMaxPrompts, "\"a\""))).requests.size(), kMaxPrompts);
  expect_refused({
      {prompt(list(kMaxPrompts + 1, "\"a\"")),
       "prompt: its list is longer than the maximum of 1024"},
      {prompt(list(kMaxPrompts + 1, "[1]")), "prompt: its list is longer than the maximum of 1024"},
      {prompt(list(600, "[1]"), R"(, "n": 2)"),
       "n: 600 prompts with 2 each make 1200 outputs; at most 1024 are allowed"},
      {prompt("\"a\"", R"(, "stop": )" + list(17, "\"a\"")),
       "stop: its list is longer than the maximum of 16"},
      {prompt("\"a\"", R"(, "stop_token_ids": )" + list(17, "1")),
       "stop_token_ids: its list is longer than the maximum of 16"},
      {prompt(list(8, "[1]"), R"(, "n": 128, "max_tokens": 49, "logprobs": 20)"),
       "may have 1053696 tokens and log-probabilities; at most 1048576 are allowed"},
  });
  EXPECT_EQ(read(prompt(list(8, "[1]"), R"(, "n": 128, "max_tokens": 48, "logprobs": 20)"))
                .requests.size(),
            1024U);
  generation::ServiceInfo long_model = model_info();
  long_model.max_positions = 1U << 30U;
  const auto much = read_completion(prompt(list(kMaxPromptTokens / 128 + 1, "1"), R"(, "n": 128)"),
                                    long_model, true);
  ASSERT_FALSE(much);
  EXPECT_THAT(
      much.error().message(),
      HasSubstr(
          "prompt: the prompts of all outputs together have 16777344 tokens; at most 16777216"));
}

}  // namespace
}  // namespace wsync::engine::http
