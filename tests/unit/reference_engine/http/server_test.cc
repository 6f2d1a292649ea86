// Completions over real sockets.
#include <thread>

#include "tests/unit/reference_engine/http/server_fixture.h"

namespace wsync::engine::http::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

std::string texts_of(const std::vector<json>& events, std::size_t index) {
  std::string text;
  for (const json& event : events)
    for (const json& choice : event.at("choices"))
      if (choice.at("index") == index) text += choice.at("text").get<std::string>();
  return text;
}

TEST(Completions, AreAnsweredWhole) {
  const Served served;
  const auto result = served.complete({{"model", "tiny"}, {"prompt", "abc"}, {"max_tokens", 4}});
  const json body = json_of(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_THAT(body.at("id"), StartsWith("cmpl-"));
  EXPECT_EQ(body.at("choices").at(0).at("text"), "cbac");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(body.at("choices").at(0).at("weight_versions"),
            (json{{{"start", 0}, {"end", 4}, {"version", "1.7"}}}));
  EXPECT_EQ(body.at("usage").at("total_tokens"), 7);
  const json again = json_of(served.complete({{"prompt", "abc"}}));
  EXPECT_NE(again.at("id"), body.at("id"));
}

TEST(Completions, AreForThoseWhoShowTheToken) {
  const auto token = wsync::http::AccessToken::parse("a-token-of-this-engine", "t").value();
  const Served served({.info = tiny_model()}, {.token = token});
  expect_error(served.complete({{"prompt", "abc"}}), 401, "this server needs a token");
  expect_error(served.post("/pause?mode=abort"), 401, "this server needs a token");
  EXPECT_EQ(served.get("/health")->status, 200);
  EXPECT_EQ(served.get("/ready")->status, 200);
  auto client = served.client();
  client.set_bearer_token_auth("a-token-of-this-engine");
  EXPECT_EQ(client.Get("/weight_info")->status, 200);
  client.set_bearer_token_auth("a-token-of-another-one");
  expect_error(client.Get("/weight_info"), 401, "is not that of this server");
}

TEST(Completions, NeedATokenBeyondThisHost) {
  ReversingService service({.info = tiny_model()});
  const auto refused = CompletionServer::create({.host = "0.0.0.0", .port = 0}, service);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("start the engine with --http-token FILE"));
  const auto token = wsync::http::AccessToken::parse("a-token-of-this-engine", "t").value();
  EXPECT_TRUE(CompletionServer::create({.host = "0.0.0.0", .port = 0, .token = token}, service));
}

TEST(Completions, OutputIUsesSeedPlusI) {
  const Served served;
  const json body = json_of(served.complete(
      {{"prompt", {"ab", "kl"}}, {"max_tokens", 2}, {"n", 2}, {"seed", 1}, {"logprobs", 0}}));
  ASSERT_EQ(body.at("choices").size(), 4U);
  const std::vector<std::string> expected = {"cb", "dc", "ml", "nm"};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], expected[i]);
    EXPECT_EQ(body["choices"][i]["logprobs"]["token_logprobs"], (json{-0.5, -1.0}));
  }
}

TEST(Completions, ThatAreStreamedComeInEvents) {
  const Served served;
  const auto result = served.complete({{"prompt", "abc"}, {"max_tokens", 5}, {"stream", true}});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
  const std::vector<json> events = events_of(result->body);
  ASSERT_GE(events.size(), 1U);
  EXPECT_EQ(texts_of(events, 0), "cbacb");
  EXPECT_EQ(events.back().at("choices").at(0).at("finish_reason"), "length");
}

TEST(Completions, OutputsOfAStreamAreToldApart) {
  const Served served;
  const auto result = served.complete(
      {{"prompt", "ab"}, {"max_tokens", 3}, {"n", 3}, {"seed", 0}, {"stream", true}});
  ASSERT_TRUE(result);
  const std::vector<json> events = events_of(result->body);
  EXPECT_EQ(texts_of(events, 0), "bab");
  EXPECT_EQ(texts_of(events, 1), "cbc");
  EXPECT_EQ(texts_of(events, 2), "dcd");
}

// Every step is one event here, so characters are cut at every byte.
TEST(Completions, AStreamNeverCutsACharacter) {
  Served served;
  served.service.hold();
  const std::string text = "\xE2\x82\xAC\xC3\xA9\xF0\x9F\x98\x80";
  const std::string prompt(text.rbegin(), text.rend());
  json tokens = json::array();
  for (const char byte : prompt) tokens.push_back(static_cast<unsigned char>(byte));
  RawClient client(served.port());
  client.send(raw_post("/v1/completions",
                       json{{"prompt", tokens}, {"max_tokens", 9}, {"stream", true}}.dump()));
  for (std::uint64_t step = 1; step <= text.size(); ++step) {
    served.service.allow(1);
    client.read_until(fmt::format("\"start\":{}", step - 1));
  }
  const std::string got = client.read_until("[DONE]");
  EXPECT_EQ(got.find("\xEF\xBF\xBD"), std::string::npos);
  for (const std::string character : {"\xE2\x82\xAC", "\xC3\xA9", "\xF0\x9F\x98\x80"})
    EXPECT_THAT(got, HasSubstr("\"text\":\"" + character + "\""));
}

TEST(Completions, AStreamToAnOldClientEndsWithTheConnection) {
  const Served served;
  RawClient client(served.port());
  const std::string body = R"({"prompt": "ab", "max_tokens": 2, "stream": true})";
  client.send(fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}",
                          body.size(), body));
  const std::string got = client.read_all();
  EXPECT_EQ(got.find("chunked"), std::string::npos);
  const std::size_t begin = got.find("\r\n\r\n");
  ASSERT_NE(begin, std::string::npos) << got;
  EXPECT_EQ(texts_of(events_of(got.substr(begin + 4)), 0), "ba");
}

TEST(Completions, ManyAtOnceAreEachAnsweredRight) {
  const Served served;
  std::vector<std::thread> clients;
  for (int i = 0; i < 24; ++i)
    clients.emplace_back([&served, i] {
      const std::string prompt = fmt::format("prompt {}", i);
      const auto result = served.complete(
          {{"prompt", prompt}, {"max_tokens", prompt.size()}, {"stream", i % 2 == 0}});
      ASSERT_TRUE(result);
      const std::string text =
          i % 2 == 0 ? texts_of(events_of(result->body), 0)
                     : json_of(result).at("choices").at(0).at("text").get<std::string>();
      EXPECT_EQ(text, std::string(prompt.rbegin(), prompt.rend()));
    });
  for (std::thread& client : clients) client.join();
}

TEST(Completions, ALateRestOfTheRequestIsWaitedFor) {
  const Served served;
  const std::string request = raw_post("/v1/completions", R"({"prompt": "ab", "max_tokens": 2})");
  RawClient client(served.port());
  for (const char byte : request) client.send(std::string_view(&byte, 1));
  EXPECT_THAT(client.read_until("}]"), HasSubstr("\"text\":\"ba\""));
}

TEST(Completions, ABodyInChunksIsRead) {
  const Served served;
  RawClient client(served.port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
      "c\r\n{\"prompt\": \"\r\n1\r\na\r\nb;x=y\r\nb\", \"n\": 1}\r\n"
      "0\r\n\r\nGET /health HTTP/1.1\r\n\r\n");
  const std::string got = client.read_until("\r\n\r\n{}");
  EXPECT_THAT(got, HasSubstr("\"text\":\"bababa"));
}

TEST(Completions, OfAModelWithATokenizerAreTokens) {
  CompletionServerOptions options;
  options.has_tokenizer = true;
  const Served served({.info = tiny_model()}, options);
  const json body = json_of(served.complete({{"prompt", {5, 6}}, {"max_tokens", 3}}));
  EXPECT_EQ(body.at("choices").at(0).at("token_ids"), (json{6, 5, 6}));
  EXPECT_EQ(body.at("choices").at(0).at("text"), "");
  expect_error(served.complete({{"prompt", "a"}}), 400, "prompt: it is text");
}

TEST(Completions, OfFewerTokensThanBytesAreTokens) {
  generation::ServiceInfo info = tiny_model();
  info.vocabulary = 255;
  const Served served({.info = info});
  expect_error(served.complete({{"prompt", "a"}}), 400, "prompt: it is text");
}

TEST(Completions, BadOnesAreRefused) {
  const Served served;
  expect_error(served.post("/v1/completions", "{"), 400, "the body is not JSON at byte 2");
  expect_error(served.post("/v1/completions"), 400, "the body is empty");
  expect_error(served.complete({{"prompt", "a"}, {"n", 0}}), 400, "n: it is 0");
  expect_error(served.complete({{"prompt", "a"}, {"n", 0}, {"stream", true}}), 400, "n: it is 0");
  const auto other = served.complete({{"prompt", "a"}, {"model", "big"}});
  expect_error(other, 404, "model: 'big' does not exist here");
  EXPECT_EQ(json_of(other)["error"]["code"], "model_not_found");
}

TEST(Completions, AFullQueueIsToldAndNothingOfTheRequestStays) {
  Served served({.info = tiny_model(), .capacity = 2});
  served.service.hold();
  const auto full = served.complete({{"prompt", "a"}, {"n", 3}});
  expect_error(full, 429, "2 wait already; try again later");
  EXPECT_EQ(full->get_header_value("Retry-After"), "1");
  EXPECT_EQ(served.service.stats().running, 0U);
  expect_error(served.complete({{"prompt", "a"}, {"n", 3}, {"stream", true}}), 429, "try again");
}

TEST(Completions, MoreThanAreAnsweredAtOnceAreRefusedAndTheOtherRoutesAnswer) {
  CompletionServerOptions options;
  options.threads = 1;
  Served served({.info = tiny_model()}, options);
  served.service.hold();
  std::thread first([&] {
    EXPECT_EQ(json_of(served.complete({{"prompt", "ab"}, {"max_tokens", 1}}))
                  .at("choices")
                  .at(0)
                  .at("text"),
              "b");
  });
  served.service.wait_submitted(1);
  expect_error(
      served.complete({{"prompt", "a"}}), 429,
      "this engine already answers its maximum number of completions at once (1); try again");
  EXPECT_EQ(json_of(served.get("/health")), json::object());
  served.service.allow(1);
  first.join();
}

TEST(Completions, AreCancelledWhenTheClientOfAStreamGoes) {
  Served served;
  served.service.hold();
  RawClient client(served.port());
  client.send(raw_post("/v1/completions", R"({"prompt": "ab", "n": 2, "stream": true})"));
  served.service.wait_submitted(2);
  served.service.allow(1);
  client.read_until("data: ");
  client.close();
  served.service.wait_cancelled(2);
  EXPECT_EQ(served.service.stats().running, 0U);
}

TEST(Completions, AreCancelledWhenAClientThatWaitsGoes) {
  Served served;
  served.service.hold();
  RawClient client(served.port());
  client.send(raw_post("/v1/completions", R"({"prompt": "ab"})"));
  served.service.wait_submitted(1);
  client.close();
  served.service.wait_cancelled(1);
  RawClient half(served.port());
  half.send(raw_post("/v1/completions", R"({"prompt": "ab"})"));
  served.service.wait_submitted(2);
  half.end_sending();
  served.service.wait_cancelled(2);
}

TEST(Completions, WaitWhileTheEngineIsPaused) {
  Served served;
  EXPECT_EQ(json_of(served.post("/pause?mode=keep")).at("status"), "paused");
  std::thread client([&] {
    EXPECT_EQ(json_of(served.complete({{"prompt", "ab"}, {"max_tokens", 1}}))
                  .at("choices")
                  .at(0)
                  .at("text"),
              "b");
  });
  served.service.wait_submitted(1);
  EXPECT_EQ(json_of(served.post("/resume")).at("status"), "resumed");
  client.join();
}

}  // namespace
}  // namespace wsync::engine::http::test
