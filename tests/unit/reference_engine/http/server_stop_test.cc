// Where a server listens, and how it ends.
#include <fstream>
#include <thread>

#include "tests/unit/reference_engine/http/server_fixture.h"

namespace wsync::engine::http::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Result<std::unique_ptr<CompletionServer>> try_to_serve(ReversingService& service,
                                                       const std::string& host,
                                                       std::uint16_t port) {
  CompletionServerOptions options;
  options.host = host;
  options.port = port;
  return CompletionServer::create(options, service);
}

void expect_no_server(const Result<std::unique_ptr<CompletionServer>>& server, ErrorCode code,
                      const std::string& sentence) {
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code(), code) << server.error().message();
  EXPECT_THAT(server.error().message(), HasSubstr(sentence));
}

TEST(Listening, TwoServersDoNotShareAPort) {
  Served served;
  expect_no_server(
      try_to_serve(served.service, "127.0.0.1", served.port()), ErrorCode::kBusy,
      fmt::format("127.0.0.1:{} is in use: process {} (unit_engine_htt) listens there; stop that "
                  "process, or choose another port (0: any free port)",
                  served.port(), ::getpid()));
  EXPECT_EQ(json_of(served.get("/health")), json::object());
}

TEST(Listening, APortIsFreeAgainAtOnce) {
  ReversingService service({.info = tiny_model()});
  auto first = try_to_serve(service, "127.0.0.1", 0);
  ASSERT_TRUE(first);
  (*first)->start();
  const std::uint16_t port = (*first)->port();
  EXPECT_NE(port, 0);
  EXPECT_TRUE(httplib::Client("127.0.0.1", port).Get("/health"));
  first->reset();
  EXPECT_FALSE(httplib::Client("127.0.0.1", port).Get("/health"));
  EXPECT_TRUE(try_to_serve(service, "127.0.0.1", port));
}

TEST(Listening, AnAddressMustBeOneOfThisHost) {
  ReversingService service({.info = tiny_model()});
  expect_no_server(try_to_serve(service, "", 0), ErrorCode::kInvalidInput,
                   "host is empty; name an address to listen on, such as 127.0.0.1 or ::1");
  expect_no_server(try_to_serve(service, "192.0.2.1", 8000), ErrorCode::kInvalidInput,
                   "192.0.2.1:8000: this host has no such address; name an address of this host");
  expect_no_server(try_to_serve(service, "no such host", 0), ErrorCode::kInvalidInput,
                   "host no such host has no address");
  expect_no_server(try_to_serve(service, "127.0.0.1:80", 0), ErrorCode::kInvalidInput,
                   "host 127.0.0.1:80 has no address");
}

TEST(Listening, NobodyIsAnsweredWithoutThreads) {
  ReversingService service({.info = tiny_model()});
  CompletionServerOptions options;
  options.threads = 0;
  expect_no_server(CompletionServer::create(options, service), ErrorCode::kInvalidInput,
                   "threads is 0; expected 1 or more");
}

TEST(Listening, IPv6AddressesWork) {
  if (!std::ifstream("/proc/net/if_inet6").good() ||
      std::ifstream("/proc/net/if_inet6").peek() == EOF)
    GTEST_SKIP() << "this host has no IPv6";
  ReversingService service({.info = tiny_model()});
  for (const std::string host : {"::1", "[::1]"}) {
    auto server = try_to_serve(service, host, 0);
    ASSERT_TRUE(server) << server.error().message();
    (*server)->start();
    EXPECT_EQ(json_of(httplib::Client("::1", (*server)->port()).Get("/health")), json::object());
    expect_no_server(try_to_serve(service, host, (*server)->port()), ErrorCode::kBusy,
                     fmt::format("[::1]:{} is in use", (*server)->port()));
  }
}

TEST(Listening, AServerThatIsNotStartedEndsAsWell) {
  ReversingService service({.info = tiny_model()});
  auto server = try_to_serve(service, "127.0.0.1", 0);
  ASSERT_TRUE(server);
  RawClient client((*server)->port());
  client.send("GET /health HTTP/1.1\r\n\r\n");
  (*server)->stop();
  (*server)->stop();
  EXPECT_EQ(client.read_all(), "");
}

TEST(Stopping, AnOpenStreamIsToldThatItIsAborted) {
  Served served;
  served.service.hold();
  RawClient client(served.port());
  client.send(raw_post("/v1/completions", R"({"prompt": "ab", "n": 2, "stream": true})"));
  served.service.wait_submitted(2);
  served.service.allow(1);
  client.read_until("\"text\":\"b\"");
  served.server->stop();
  const std::string got = client.read_all();
  EXPECT_THAT(got, HasSubstr("\"finish_reason\":\"abort\""));
  EXPECT_THAT(got, HasSubstr("data: [DONE]\n\n"));
  EXPECT_TRUE(got.ends_with("0\r\n\r\n")) << "the last chunk is there";
}

TEST(Stopping, AClientThatWaitsIsToldThatItIsAborted) {
  Served served;
  served.service.hold();
  std::thread client([&] {
    const auto result = served.complete({{"prompt", "ab"}});
    EXPECT_EQ(json_of(result).at("choices").at(0).at("finish_reason"), "abort");
    EXPECT_EQ(result->get_header_value("Connection"), "close");
  });
  served.service.wait_submitted(1);
  served.server->stop();
  client.join();
}

TEST(Stopping, APauseThatWaitsForCompletionsIsNotWaitedFor) {
  Served served;
  served.service.hold();
  std::thread client([&] {
    EXPECT_EQ(json_of(served.complete({{"prompt", "ab"}})).at("choices").at(0).at("finish_reason"),
              "abort");
  });
  served.service.wait_submitted(1);
  served.service.allow(1);
  served.service.wait_generated(1);
  std::thread pausing([&] {
    EXPECT_EQ(json_of(served.post("/pause?mode=wait&timeout_s=600")).at("status"), "paused");
  });
  served.service.wait_pausing();
  served.server->stop();
  client.join();
  pausing.join();
}

// An engine that does not end what it is asked to end holds nobody up.
TEST(Stopping, ACompletionThatDoesNotEndIsLeft) {
  Served served({.info = tiny_model(), .deaf = true});
  served.service.hold();
  RawClient streams(served.port());
  streams.send(raw_post("/v1/completions", R"({"prompt": "ab", "stream": true})"));
  RawClient waits(served.port());
  waits.send(raw_post("/v1/completions", R"({"prompt": "ab"})"));
  served.service.wait_submitted(2);
  served.server->stop();
  EXPECT_THAT(waits.read_all(),
              HasSubstr("the engine is shutting down and did not finish this completion"));
  EXPECT_EQ(streams.read_all().find("[DONE]"), std::string::npos);
  served.service.wait_cancelled(2);
}

TEST(Stopping, ConnectionsWithoutARequestAreClosed) {
  Served served;
  RawClient idle(served.port());
  idle.send("GET /health HTTP/1.1\r\n\r\n");
  idle.read_until("{}");
  RawClient half(served.port());
  half.send("POST /resume HTTP/1.1\r\nContent-Length: 5\r\n\r\n{");
  served.server->stop();
  idle.read_all();
  half.read_all();
  EXPECT_FALSE(served.get("/health"));
}

TEST(Stopping, AClientThatReadsNothingHoldsNobodyUp) {
  Served served;
  constexpr std::uint64_t kTokens = 60'000;  // more events than sockets hold
  RawClient client(served.port());
  client.send(raw_post(
      "/v1/completions",
      json{{"prompt", "ab"}, {"max_tokens", kTokens}, {"stream", true}, {"logprobs", 0}}.dump()));
  served.service.wait_generated(kTokens);
  served.server->stop();
  EXPECT_EQ(client.read_all().find("[DONE]"), std::string::npos);
}

TEST(Stopping, FromSeveralThreadsAtOnceIsTheSame) {
  Served served;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { served.server->stop(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(served.get("/health"));
}

}  // namespace
}  // namespace wsync::engine::http::test
