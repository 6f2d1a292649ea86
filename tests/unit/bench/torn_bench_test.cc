// What a run under load is judged by: the spans of an answer, what an engine may send, the report.
#include "bench/recovery/torn_bench.h"

#include <array>
#include <atomic>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>

#include "bench/recovery/answer.h"
#include "bench/recovery/http_client.h"
#include "bench/recovery/load.h"
#include "bench/recovery/torn_report.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Version kOld{.epoch = 1, .step = 3};

std::string completion(std::string_view spans, std::string_view reason = "length",
                       std::string_view tokens = "7, 8, 9") {
  return fmt::format(R"({{"choices": [{{"token_ids": [{}], "finish_reason": "{}", )"
                     R"("weight_versions": [{}]}}]}})",
                     tokens, reason, spans);
}
std::string span(int start, int end, std::string_view version) {
  return fmt::format(R"({{"start": {}, "end": {}, "version": "{}"}})", start, end, version);
}
Result<std::vector<Version>> versions_of(const std::string& body) {
  return versions_of_answer(body, {.tokens = 3, .oldest = kOld});
}
void expect_wrong(const std::string& body, const std::string& why) {
  const auto found = versions_of(body);
  ASSERT_FALSE(found.has_value()) << body;
  EXPECT_EQ(found.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(found.error().message(), HasSubstr(why)) << body;
}

TEST(Answer, SpansThatCoverItInOrder) {
  EXPECT_THAT(versions_of(completion(span(0, 3, "1.3"))).value(), ElementsAre(kOld));
  EXPECT_THAT(versions_of(completion(span(0, 1, "1.4") + "," + span(1, 3, "2.0"))).value(),
              ElementsAre(Version{.epoch = 1, .step = 4}, Version{.epoch = 2, .step = 0}));
}

TEST(Answer, SpansThatDoNot) {
  expect_wrong(completion(""), "its spans end at token 0 of 3");
  expect_wrong(completion(span(0, 2, "1.3")), "its spans end at token 2 of 3");
  expect_wrong(completion(span(0, 4, "1.3")), "its spans end at token 4 of 3");
  expect_wrong(completion(span(1, 3, "1.3")), "span 0 has tokens 1 to 3, expected some from 0 on");
  expect_wrong(completion(span(0, 1, "1.3") + "," + span(2, 3, "1.4")),
               "span 1 has tokens 2 to 3, expected some from 1 on");
  expect_wrong(completion(span(0, 2, "1.3") + "," + span(1, 3, "1.4")), "span 1");
  expect_wrong(completion(span(0, 3, "1.3") + "," + span(3, 3, "1.4")), "span 1");
  expect_wrong(completion(span(0, 1, "1.4") + "," + span(1, 3, "1.3")),
               "span 1 is of version 1.3, expected more than 1.4");
  expect_wrong(completion(span(0, 1, "1.4") + "," + span(1, 3, "1.4")), "expected more than 1.4");
  expect_wrong(completion(span(0, 3, "1.2")), "span 0 is of version 1.2, expected at least 1.3");
}

TEST(Answer, WhatIsNone) {
  expect_wrong(completion(span(0, 3, "1.3"), "abort"), R"(finish_reason "abort")");
  expect_wrong(completion(span(0, 3, "1.3"), "length", "7, 8"), "2 tokens");
  expect_wrong(completion(span(0, 3, "latest")), "version 'latest'");
  expect_wrong(R"({"choices": []})", "0 choices");
  expect_wrong(R"({"choices": [{"token_ids": [1, 2, 3], "finish_reason": "length"}]})",
               "weight_versions");
  expect_wrong(completion(R"({"start": "0", "end": 3, "version": "1.3"})"), "no completion");
  expect_wrong("[]", "no completion");
  expect_wrong("{", "no completion");
}

// Takes one connection after the other, reads what comes and sends the same text to each.
class CannedServer {
 public:
  explicit CannedServer(std::string text) : text_(std::move(text)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* bound = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), bound, length), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listener_.get(), bound, &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~CannedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  void run() {
    for (;;) {
      const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      std::array<char, 4096> bytes{};
      if (::recv(client.get(), bytes.data(), bytes.size(), 0) <= 0) continue;
      EXPECT_EQ(::send(client.get(), text_.data(), text_.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(text_.size()));
    }
  }
  std::string text_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

TimePoint in_a_minute() { return now() + std::chrono::minutes(1); }

Result<HttpReply> reply_to(const std::string& text) {
  const CannedServer server(text);
  const auto client = HttpClient::connect(server.port());
  if (!client) return fail(client.error());
  return (*client)->post("/v1/completions", "{}", in_a_minute());
}

TEST(HttpClient, AnAnswerIsReadWhole) {
  const auto reply =
      reply_to("HTTP/1.1 503 Unavailable\r\ncontent-LENGTH: 5 \r\nA: b\r\n\r\nhello");
  ASSERT_TRUE(reply.has_value()) << reply.error().message();
  EXPECT_EQ(reply->status, 503U);
  EXPECT_EQ(reply->body, "hello");
}

TEST(HttpClient, AnswersFollowEachOther) {
  const CannedServer server(
      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\n"
      "Content-Length: 0\r\n\r\n");
  const auto client = HttpClient::connect(server.port()).value();
  EXPECT_EQ(client->post("/", "{}", in_a_minute()).value().body, "a");
  // The second one is there already; the server has gone, which is not noticed before a third.
  EXPECT_EQ(client->post("/", "{}", in_a_minute()).value().body, "");
}

TEST(HttpClient, WhatIsNoAnswerIsRefused) {
  const auto refused = [](const std::string& text, ErrorCode code, const std::string& why) {
    const auto reply = reply_to(text);
    ASSERT_FALSE(reply.has_value()) << text;
    EXPECT_EQ(reply.error().code(), code) << reply.error().message();
    EXPECT_THAT(reply.error().message(), HasSubstr(why));
  };
  refused("", ErrorCode::kPeerLost, "ended the connection");
  refused("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", ErrorCode::kPeerLost, "ended");
  refused("SSH-2.0\r\n\r\n", ErrorCode::kInvalidInput, "'SSH-2.0'");
  refused("HTTP/1.1 2OO OK\r\n\r\n", ErrorCode::kInvalidInput, "a status");
  refused("HTTP/1.1 200 OK\r\n\r\n", ErrorCode::kInvalidInput, "no Content-Length");
  refused("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ErrorCode::kInvalidInput, "-1");
  refused("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", ErrorCode::kInvalidInput,
          "at most 16777216 bytes");
  refused("HTTP/1.1 200 OK\r\nA: " + std::string(2 * kReplyHeadBytes, 'a'),
          ErrorCode::kInvalidInput, "its head is longer than 65536 bytes");
}

TEST(HttpClient, NobodyThereAndDeadlines) {
  std::uint16_t port = 0;
  {
    const CannedServer server("");
    port = server.port();
    const auto client = HttpClient::connect(port).value();
    EXPECT_EQ(client->post("/", "{}", TimePoint{}).error().code(), ErrorCode::kDeadline);
    client->cancel();
    EXPECT_EQ(client->post("/", "{}", in_a_minute()).error().code(), ErrorCode::kPeerLost);
  }
  EXPECT_EQ(HttpClient::connect(port).error().code(), ErrorCode::kPeerLost);
}

TEST(Load, AnEngineThatRefusesEndsIt) {
  const CannedServer server("HTTP/1.1 503 Unavailable\r\nContent-Length: 4\r\n\r\nbusy");
  Load load({.port = server.port(), .requests = 2});
  while (!load.ended()) std::this_thread::yield();
  const auto checked = load.check();
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(checked.error().message(), HasSubstr("the engine answered 503: busy"));
  EXPECT_EQ(load.figures().answers, 0U);
}

TEST(Load, WrongAnswersAreCountedAndTold) {
  const std::string body = completion(span(0, 2, "1.3"));
  const CannedServer server(
      fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  Load load({.port = server.port(), .requests = 1, .shortest = 3, .longest = 3});
  while (!load.ended()) std::this_thread::yield();  // the server hangs up after each
  const LoadFigures figures = load.figures();
  EXPECT_EQ(figures.wrong, 1U);
  EXPECT_EQ(figures.tokens, 0U);
  EXPECT_THAT(figures.faults, ElementsAre(HasSubstr("client 0: its spans end at token 2 of 3")));
}

TEST(TornModel, EveryNumberOfRanksCanShareIt) {
  for (unsigned ranks = 1; ranks <= kTornRanksMax; ++ranks) {
    const moe::ModelSpec spec = torn_model(ranks);
    EXPECT_TRUE(moe::check_spec(spec).has_value()) << ranks;
    for (const auto size : {spec.vocabulary, spec.heads, spec.key_value_heads, spec.expert_hidden})
      EXPECT_EQ(size % ranks, 0U) << ranks;
  }
}

TEST(TornReport, SaysWhatWasTornAndWhere) {
  TornBenchResult result{.steps = 10, .layers = 5};
  result.load.answers = 4;
  EXPECT_TRUE(result.passed());
  EXPECT_EQ(complaint_of(result), "");
  EXPECT_EQ(to_json(result)["passed"], true);
  result.torn = 2;
  result.torn_told = {"step 3, rank 1: layer 0"};
  EXPECT_FALSE(result.passed());
  EXPECT_EQ(complaint_of(result),
            "2 of 10 steps were torn, the first of them:\n  step 3, rank 1: layer 0\n");
  result.torn = 0;
  result.torn_told = {};
  result.load.wrong = 1;
  result.load.faults = {"answer 2, of client 0: a gap"};
  EXPECT_FALSE(result.passed());
  EXPECT_THAT(complaint_of(result), HasSubstr("1 of 4 answers were wrong"));
  EXPECT_EQ(to_json(result)["wrong_told"].at(0), "answer 2, of client 0: a gap");
}

TEST(TornBench, RefusesWhatItCannotRun) {
  const auto interrupt = Interrupt::create().value();
  for (const TornBenchOptions& bad :
       {TornBenchOptions{.steps = 0}, TornBenchOptions{.switch_ms = 0},
        TornBenchOptions{.requests = 0}, TornBenchOptions{.requests = kTornRequestsMax + 1},
        TornBenchOptions{.ranks = 0}, TornBenchOptions{.ranks = kTornRanksMax + 1}})
    EXPECT_EQ(run_torn_bench(bad, interrupt, {}).error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::bench
