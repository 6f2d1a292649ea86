// Tests the parts that judge a run under load: the spans of an answer, the validation of an
// engine's output, and the report.
#include <array>
#include <atomic>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>

#include "shared/base/format.h"
#include "tests/soak/answer.h"
#include "tests/soak/load.h"
#include "tests/soak/recomputed.h"
#include "tests/soak/torn_report.h"
#include "tests/soak/torn_run.h"
#include "trainer_side/training/sequential.h"

namespace wsync::soak {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr Version kOld{.epoch = 1, .step = 3};

std::string completion(std::string_view spans, std::string_view reason = "length",
                       std::string_view tokens = "7, 8, 9",
                       std::string_view log_probabilities = "-1, -0.5, -2") {
  return fmt::format(R"({{"choices": [{{"token_ids": [{}], "finish_reason": "{}", )"
                     R"("logprobs": {{"token_logprobs": [{}]}}, "weight_versions": [{}]}}]}})",
                     tokens, reason, log_probabilities, spans);
}
std::string span(int start, int end, std::string_view version) {
  return fmt::format(R"({{"start": {}, "end": {}, "version": "{}"}})", start, end, version);
}
Result<Answer> read(const std::string& body) {
  return read_answer(body, {.tokens = 3, .oldest = kOld});
}
void expect_wrong(const std::string& body, const std::string& why) {
  const auto found = read(body);
  ASSERT_FALSE(found.has_value()) << body;
  EXPECT_EQ(found.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(found.error().message(), HasSubstr(why)) << body;
}

TEST(Answer, SpansThatCoverItInOrder) {
  const auto is_span = [](std::uint32_t begin, std::uint32_t end, Version version) {
    return AllOf(Field(&AnsweredSpan::begin, begin), Field(&AnsweredSpan::end, end),
                 Field(&AnsweredSpan::version, version));
  };
  const Answer one = read(completion(span(0, 3, "1.3"))).value();
  EXPECT_THAT(one.tokens, ElementsAre(7, 8, 9));
  EXPECT_THAT(one.log_probabilities, ElementsAre(-1, -0.5, -2));
  EXPECT_THAT(one.spans, ElementsAre(is_span(0, 3, kOld)));
  EXPECT_THAT(
      read(completion(span(0, 1, "1.4") + "," + span(1, 3, "2.0"))).value().spans,
      ElementsAre(is_span(0, 1, {.epoch = 1, .step = 4}), is_span(1, 3, {.epoch = 2, .step = 0})));
}

TEST(Answer, SpansThatDoNot) {
  expect_wrong(completion(""), "its spans end at token 0 of 3");
  expect_wrong(completion(span(0, 2, "1.3")), "its spans end at token 2 of 3");
  expect_wrong(completion(span(0, 4, "1.3")),
               "span 0 has tokens 0 to 4, expected some from 0 on, up to 3");
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
  expect_wrong(completion(span(0, 3, "1.3"), "length", "7, 8, 9", "-1, -1"),
               "it has log-probabilities of 2 for 3 tokens");
  expect_wrong(completion(span(0, 3, "1.3"), "length", "7, 8, 9", "-1, null, -1"),
               "no completion with token_ids, logprobs");
  expect_wrong(R"({"choices": []})", "0 choices");
  expect_wrong(R"({"choices": [{"token_ids": [1, 2, 3], "finish_reason": "length"}]})",
               "weight_versions");
  expect_wrong(completion(R"({"start": "0", "end": 3, "version": "1.3"})"), "no completion");
  expect_wrong("[]", "no completion");
  expect_wrong("{", "no completion");
}

// An answer of two spans from a correct engine, which computed each span with its version's
// weights.
class RecomputedAnswer : public ::testing::Test {
 protected:
  RecomputedAnswer() {
    for (std::uint64_t seed = 1; seed <= 2; ++seed)
      training::initialise(weights_.emplace_back(moe::all_parameters(spec_)), seed, 0.3);
    answer_.tokens = {3, 1, 4, 1, 5, 9, 2, 6};
    answer_.log_probabilities.resize(answer_.tokens.size());
    answer_.spans = {{.begin = 0, .end = 5, .version = {.epoch = 1, .step = 6}},
                     {.begin = 5, .end = 8, .version = {.epoch = 1, .step = 7}}};
    const std::vector<std::uint32_t> text{7, 8, 3, 1, 4, 1, 5, 9, 2, 6};
    for (const AnsweredSpan& span : answer_.spans) {
      const auto computed = training::SequentialModel(spec_, of(span.version), text.size())
                                .log_probabilities({.sequence = text.size() - 1,
                                                    .tokens = {text.begin(), text.end() - 1},
                                                    .targets = {text.begin() + 1, text.end()}});
      for (std::uint32_t i = span.begin; i < span.end; ++i)
        answer_.log_probabilities[i] = computed[1 + i];
    }
  }
  [[nodiscard]] const training::ParameterSet& of(const Version& version) const {
    return weights_[version.step % 2];
  }
  Result<double> difference() {
    return recomputed_.difference(std::vector<std::uint32_t>{7, 8}, answer_);
  }
  void expect_wrong(const std::string& why) {
    const auto found = difference();
    ASSERT_FALSE(found.has_value());
    EXPECT_EQ(found.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(found.error().message(), HasSubstr(why));
  }

  const moe::ModelSpec spec_ = torn_model(1);
  std::vector<training::ParameterSet> weights_;
  Recomputed recomputed_{spec_, [this](const Version& v) -> const auto& { return of(v); }};
  Answer answer_;
};

TEST_F(RecomputedAnswer, OfTheVersionsThatItNames) {
  EXPECT_LT(difference().value(), 1e-5);
  answer_.log_probabilities[6] += 0.5 * kLogProbabilityLimit;
  EXPECT_NEAR(difference().value(), 0.5 * kLogProbabilityLimit, 1e-5);
}

TEST_F(RecomputedAnswer, OfOtherVersions) {
  answer_.spans[1].version.step = 8;
  expect_wrong("by the weights of version 1.8, which is said to have computed it");
  answer_.spans[1].version.step = 7;
  answer_.spans[0].end = answer_.spans[1].begin = 4;
  expect_wrong("token 4 was given");
  answer_.spans[0].end = answer_.spans[1].begin = 6;
  expect_wrong("token 5 was given");
}

TEST_F(RecomputedAnswer, WhoseTokensOrNumbersAreOthers) {
  answer_.log_probabilities[7] += 2 * kLogProbabilityLimit;
  expect_wrong("token 7 was given");
  answer_.log_probabilities[7] = std::nan("");
  expect_wrong("token 7 was given");
  answer_.tokens[2] = spec_.vocabulary;
  expect_wrong("token 32 is none of the 32 of the vocabulary");
}

// Simulates keys and values that were kept: the second span is computed after tokens whose keys and
// values come from the first span's weights. A single changed weight of one matrix is enough to be
// detected.
TEST_F(RecomputedAnswer, OfWeightsOfWhichOneIsAnother) {
  weights_[1].values("model.layers.0.self_attn.k_proj.weight")[5] += 0.5F;
  expect_wrong("token 5 was given");
}

// Accepts one connection after the other, reads a request and sends the same text to each. Then it
// closes the connection or waits until the other side does.
class CannedServer {
 public:
  explicit CannedServer(std::string text, bool hangs_up = true)
      : text_(std::move(text)), hangs_up_(hangs_up) {
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
  [[nodiscard]] int asked() const { return asked_; }

 private:
  void run() {
    for (;;) {
      const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      std::array<char, 1> byte{};
      // The end of the JSON request.
      while (::recv(client.get(), byte.data(), 1, 0) > 0 && byte[0] != '}') {
      }
      if (byte[0] != '}') continue;
      ++asked_;
      EXPECT_EQ(::send(client.get(), text_.data(), text_.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(text_.size()));
      while (!hangs_up_ && ::recv(client.get(), byte.data(), 1, 0) > 0) {
      }
    }
  }
  std::string text_;
  const bool hangs_up_;
  std::atomic<int> asked_ = 0;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

TEST(Load, NobodyThereEndsIt) {
  std::uint16_t port = 0;
  {
    const CannedServer gone("");
    port = gone.port();
  }
  Load load({.port = port, .requests = 2});
  while (!load.ended()) std::this_thread::yield();
  EXPECT_EQ(load.check().error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(load.check().error().message(), HasSubstr("cannot connect"));
}

// The answer to this request never ends.
TEST(Load, EndsWhatRuns) {
  const CannedServer silent("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", false);
  const Load load({.port = silent.port(), .requests = 1});
  while (silent.asked() == 0) std::this_thread::yield();
  EXPECT_TRUE(load.check());
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
  while (load.figures().wrong < 2) std::this_thread::yield();
  load.stop_asking();
  while (!load.ended()) std::this_thread::yield();
  const LoadFigures figures = load.figures();
  EXPECT_EQ(figures.wrong, figures.answers);
  EXPECT_EQ(figures.tokens, 0U);
  ASSERT_GE(figures.faults.size(), 2U);
  EXPECT_EQ(figures.faults[1], "answer 2, of client 0: its spans end at token 2 of 3");
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
  TornResult result{.steps = 10, .layers = 5};
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

TEST(TornReport, CountsLoadsAndAPatchThatFailedFailsTheRun) {
  TornResult result{.loads_by_patch = 6, .loads_in_full = 4};
  EXPECT_TRUE(result.passed());
  EXPECT_THAT(to_text(result), HasSubstr("of ranks, 4 in full, 0 failed"));
  EXPECT_EQ(to_json(result)["loads_by_patch"], 6);
  result.patches_failed = 1;
  EXPECT_FALSE(result.passed());
  EXPECT_THAT(complaint_of(result), HasSubstr("1 patch failed"));
  EXPECT_EQ(to_json(result)["passed"], false);
}

TEST(TornRun, RefusesWhatItCannotRun) {
  const auto interrupt = Interrupt::create().value();
  for (const TornOptions& bad :
       {TornOptions{.steps = 0}, TornOptions{.switch_ms = 0}, TornOptions{.requests = 0},
        TornOptions{.requests = kTornRequestsMax + 1}, TornOptions{.ranks = 0},
        TornOptions{.ranks = kTornRanksMax + 1}})
    EXPECT_EQ(run_torn(bad, interrupt, {}).error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::soak
