#include "trainer_side/rollout/completion_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <thread>

#include "shared/base/format.h"
#include "shared/observe/http/http_client.h"
#include "tests/unit/rollout/scripted_replica.h"

namespace wsync::rollout {
namespace {

using namespace std::chrono_literals;
using test::RawPeer;
using test::Reply;
using test::ScriptedReplica;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::chrono::milliseconds kLong = 60s;
constexpr const char* kVersion = R"({"version": "1.3"})";

std::unique_ptr<CompletionClient> client_of(const std::string& url,
                                            std::chrono::milliseconds deadline = kLong) {
  return CompletionClient::create(url, deadline).value();
}

CompletionQuestion question() {
  return {.prompt = "reverse 123=", .answers = 2, .max_tokens = 8, .temperature = 1, .seed = 5};
}

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, const std::string& sentence) {
  ASSERT_FALSE(result);
  EXPECT_EQ(error_code_name(result.error().code()), error_code_name(code))
      << result.error().message();
  EXPECT_THAT(result.error().message(), HasSubstr(sentence));
}

// What served() is told by a peer that answers the first request for it with these bytes.
Result<Version> told(const std::string& bytes, std::chrono::milliseconds deadline = kLong) {
  RawPeer peer([&bytes](RawPeer& self) {
    self.accept();
    if (self.read_get()) self.send(bytes);
    self.hang_up();
    self.stop_listening();
  });
  return client_of(peer.url(), deadline)->served();
}

TEST(CompletionClient, AnAnswerBecomesRollouts) {
  ScriptedReplica replica;
  replica.serve({.epoch = 2, .step = 9});
  const auto client = client_of(replica.url());
  const auto rollouts = client->ask(question());
  ASSERT_TRUE(rollouts) << rollouts.error().message();
  ASSERT_EQ(rollouts->size(), 2U);
  EXPECT_THAT((*rollouts)[0].tokens, ElementsAre('3', '2', '1', '\n'));
  EXPECT_THAT((*rollouts)[0].log_probabilities, ElementsAre(-0.25F, -0.5F, -0.75F, -1));
  EXPECT_THAT((*rollouts)[0].spans,
              ElementsAre(Span{.start = 0, .end = 4, .version = {.epoch = 2, .step = 9}}));
  EXPECT_THAT((*rollouts)[1].tokens, ElementsAre('-', '\n'));
  EXPECT_EQ((*rollouts)[1].replica, replica.url());
  EXPECT_EQ(client->url(), replica.url());
  ASSERT_EQ(replica.questions().size(), 1U);
  EXPECT_EQ(test::prompt_of(replica.questions()[0]), "reverse 123=");
  EXPECT_EQ(replica.questions()[0].at("seed"), 5);
}

// The server closes after as many requests as its library allows on one connection.
TEST(CompletionClient, TheConnectionIsKeptAndMadeAnew) {
  ScriptedReplica replica;
  const auto client = client_of(replica.url());
  constexpr std::size_t kQuestions = 12;
  for (std::size_t i = 0; i < kQuestions; ++i) ASSERT_TRUE(client->ask(question()));
  const std::vector<int> ports = replica.ports();
  ASSERT_EQ(ports.size(), kQuestions);
  EXPECT_EQ(ports[0], ports[1]);
  const std::set<int> connections(ports.begin(), ports.end());
  EXPECT_GT(connections.size(), 1U);
  EXPECT_LT(connections.size(), kQuestions);
}

TEST(CompletionClient, ANameIsLookedUp) {
  ScriptedReplica replica;
  std::string url = replica.url();
  url.replace(url.find("127.0.0.1"), 9, "localhost");
  EXPECT_TRUE(client_of(url)->ask(question()));
  // A label longer than 63 bytes is nobody's name.
  expect_error(client_of("http://" + std::string(100, 'a') + ":80")->served(), ErrorCode::kPeerLost,
               "cannot find host 'aaa");
}

TEST(CompletionClient, TellsWhatIsServed) {
  ScriptedReplica replica;
  replica.serve({.epoch = 3, .step = 14});
  const auto client = client_of(replica.url());
  EXPECT_EQ(client->served().value(), (Version{.epoch = 3, .step = 14}));
  replica.notify_version(R"({"version": null})");
  expect_error(client->served(), ErrorCode::kBusy, "has no weights yet");
  replica.notify_version("{}");
  expect_error(client->served(), ErrorCode::kInvalidInput, "expected a version");
  replica.be_ready(503, "rank 1 is missing");
  expect_error(client->served(), ErrorCode::kBusy,
               replica.url() + ": /ready is not ready: 'rank 1 is missing'");
}

TEST(CompletionClient, StatusesAreTold) {
  ScriptedReplica replica;
  const auto client = client_of(replica.url());
  const auto answered = [&](int status, const std::string& message) {
    replica.script([=](const nlohmann::json&) { return test::refused_by(status, message); });
    return client->ask(question());
  };
  expect_error(answered(503, "ending"), ErrorCode::kBusy,
               replica.url() + ": /v1/completions is not ready: 'ending'");
  expect_error(answered(429, "full"), ErrorCode::kBusy, "is overloaded: 'full'");
  expect_error(answered(400, "n: it is 0"), ErrorCode::kRefused,
               "/v1/completions was answered with status 400: 'n: it is 0'");
  expect_error(answered(404, "no model"), ErrorCode::kRefused, "status 404: 'no model'");
  expect_error(answered(500, "a defect"), ErrorCode::kRefused, "status 500: 'a defect'");
  expect_error(answered(302, "elsewhere"), ErrorCode::kRefused, "status 302");
  replica.script([](const nlohmann::json&) { return Reply{.body = "nonsense"}; });
  expect_error(client->ask(question()), ErrorCode::kInvalidInput,
               replica.url() + ": the answer: expected a JSON object");
  replica.script(
      [&](const nlohmann::json& asked) { return test::answer_by(asked, replica.served()); });
  EXPECT_TRUE(client->ask(question())) << "none of them was the last";
}

TEST(CompletionClient, NobodyListens) {
  std::string url;
  {
    RawPeer gone([](RawPeer& self) { self.stop_listening(); });
    url = gone.url();
  }
  expect_error(client_of(url)->ask(question()), ErrorCode::kPeerLost,
               url + ": cannot connect: Connection refused");
}

TEST(CompletionClient, AnAnswerThatDoesNotComeEndsAtTheDeadline) {
  ScriptedReplica replica;
  replica.script([&](const nlohmann::json& asked) {
    replica.hold();
    return test::answer_by(asked, replica.served());
  });
  const auto client = client_of(replica.url(), 50ms);
  expect_error(client->ask(question()), ErrorCode::kDeadline,
               replica.url() + ": the deadline passed while waiting for the response");
  replica.release();
  EXPECT_TRUE(client_of(replica.url())->ask(question()));
}

TEST(CompletionClient, AHeadThatStopsInTheMiddleEndsAtTheDeadline) {
  RawPeer peer([](RawPeer& self) {
    self.accept();
    self.read_get();
    self.send("HTTP/1.1 200 OK\r\nX-Slow: ");
    self.wait_for_end();
  });
  expect_error(client_of(peer.url(), 50ms)->served(), ErrorCode::kDeadline,
               "while waiting for the response");
}

// Something always comes, so no single wait is long.
TEST(CompletionClient, ABodyThatNeverEndsEndsAtTheDeadline) {
  RawPeer peer([](RawPeer& self) {
    self.accept();
    self.read_get();
    self.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (self.send("1\r\nx\r\n")) {
    }
  });
  const auto served = client_of(peer.url(), 50ms)->served();
  ASSERT_FALSE(served);
  EXPECT_TRUE(served.error().code() == ErrorCode::kDeadline ||
              served.error().code() == ErrorCode::kInvalidInput)
      << served.error().message();
}

TEST(CompletionClient, CancelEndsAQuestionAndEveryLaterOne) {
  ScriptedReplica replica;
  replica.script([&](const nlohmann::json& asked) {
    replica.hold();
    return test::answer_by(asked, replica.served());
  });
  const auto client = client_of(replica.url());
  std::thread canceller([&] {
    replica.wait_for_held(1);
    client->cancel();
  });
  expect_error(client->ask(question()), ErrorCode::kCancelled,
               "cancelled while waiting for the response");
  canceller.join();
  replica.release();
  expect_error(client->ask(question()), ErrorCode::kCancelled,
               "cancelled before the request was sent");
  expect_error(client->served(), ErrorCode::kCancelled, "cancelled before the request was sent");
  EXPECT_EQ(replica.questions().size(), 1U);
}

TEST(CompletionClient, WhoHangsUpIsLost) {
  expect_error(told(""), ErrorCode::kPeerLost,
               "the server closed the connection while waiting for the response");
  expect_error(told("HTTP/1.1 200 OK\r\n"), ErrorCode::kPeerLost,
               "the server closed the connection");
  expect_error(told("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"ver"), ErrorCode::kPeerLost,
               "the server closed the connection");
  expect_error(told("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{}"),
               ErrorCode::kPeerLost, "the server closed the connection");
}

TEST(CompletionClient, WhatIsNoHttpIsRefused) {
  const auto refused = [](const std::string& bytes, const std::string& why) {
    expect_error(told(bytes), ErrorCode::kInvalidInput, why);
  };
  const std::string expected = "expected HTTP/1.1 and a status of 200 or more";
  refused("SSH-2.0-OpenSSH\r\n\r\n", "the response begins with 'SSH-2.0-OpenSSH'; " + expected);
  refused("\r\n\r\n", expected);
  refused("HTTP/2 200\r\n\r\n", expected);
  refused("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", expected);
  refused("HTTP/1.1 two hundred\r\n\r\n", "the response is not valid HTTP");
  refused("HTTP/1.1 200 " + std::string(http::kMaxStatusLineBytes, 'x') + "\r\n\r\n", expected);
  refused("HTTP/1.1 200 " + std::string(1'000'000, 'x') + "\r\n\r\n",
          "the head of the response is longer than 16384 bytes");
  refused("HTTP/1.1 200 OK\r\n" + std::string(1'000'000, 'x'),
          "the head of the response is longer");
}

TEST(CompletionClient, AnAnswerThatIsTooLongIsRefused) {
  const std::string much(1'000'000, ' ');
  const auto refused = [&](const std::string& head) {
    expect_error(told("HTTP/1.1 200 OK\r\n" + head + "\r\n" + much), ErrorCode::kInvalidInput,
                 "the response is longer than");
  };
  refused("Content-Length: 1000000\r\n");
  refused("Content-Length: 18446744073709551615\r\n");
  refused("");
  expect_error(told("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf4240\r\n" + much),
               ErrorCode::kInvalidInput, "the response is longer than");
}

// It would have no limit once it is unpacked.
TEST(CompletionClient, APackedAnswerIsNotUnpacked) {
  RawPeer peer([](RawPeer& self) {
    self.accept();
    self.read_get();
    self.send_answer("{}");
    self.read_get();
    self.send_answer("\x1f\x8b\x08 packed", "Content-Encoding: gzip\r\n");
    self.wait_for_end();
  });
  expect_error(client_of(peer.url())->served(), ErrorCode::kInvalidInput,
               "the answer: expected a JSON object");
}

TEST(CompletionClient, OtherFormsOfAnswersAreRead) {
  RawPeer peer([](RawPeer& self) {
    self.accept();
    self.read_get();
    self.send("HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n");
    self.read_get();
    self.send("HTTP/1.1 200 OK\r\nconnection: Close\r\n\r\n" + std::string(kVersion));
    self.hang_up();
    self.accept();
    self.read_get();
    self.send("HTTP/1.0 200 OK\r\n\r\n{}");
    self.hang_up();
    self.accept();
    self.read_get();
    self.send_answer(kVersion);
    self.wait_for_end();
  });
  const auto client = client_of(peer.url());
  for (int i = 0; i < 2; ++i) {
    const auto served = client->served();
    ASSERT_TRUE(served) << served.error().message();
    EXPECT_EQ(*served, (Version{.epoch = 1, .step = 3}));
  }
}

// Closed while nobody looked, or at the moment when it is used: either way nothing was answered.
TEST(CompletionClient, AKeptConnectionThatIsClosedIsMadeAnew) {
  RawPeer peer([](RawPeer& self) {
    self.accept();
    self.read_get();
    self.send_answer("{}");
    self.read_get();
    self.hang_up();
    self.accept();
    self.read_get();
    self.send_answer(kVersion);
    self.hang_up();
    self.accept();
    self.read_get();
    self.send_answer("{}");
    self.read_get();
    self.send_answer(kVersion);
    self.wait_for_end();
  });
  const auto client = client_of(peer.url());
  for (int i = 0; i < 2; ++i) {
    const auto served = client->served();
    ASSERT_TRUE(served) << served.error().message();
    EXPECT_EQ(*served, (Version{.epoch = 1, .step = 3}));
  }
}

// What nobody asked for would be taken for the next answer.
TEST(CompletionClient, AConnectionThatSaysMoreIsNotUsedAgain) {
  RawPeer peer([](RawPeer& self) {
    self.accept();
    self.read_get();
    self.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n");
    self.accept();
    self.read_get();
    self.send_answer(kVersion);
    self.wait_for_end();
  });
  const auto served = client_of(peer.url())->served();
  ASSERT_TRUE(served) << served.error().message();
}

TEST(CompletionClient, AUrlThatIsNoneIsRefused) {
  expect_error(CompletionClient::create("https://localhost:1", kLong), ErrorCode::kInvalidInput,
               "expected http://HOST:PORT");
}

}  // namespace
}  // namespace wsync::rollout
