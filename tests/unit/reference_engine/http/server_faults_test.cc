// Requests that are none, or too much.
#include "shared/observe/http/connection.h"
#include "tests/unit/reference_engine/http/server_fixture.h"

namespace wsync::engine::http::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;
using wsync::http::kMaxBodyBytes;

// The last answer of a raw connection is JSON in OpenAI's form with this status and sentence, and
// the connection is closed after it.
void expect_refused(const Served& served, const std::string& bytes, int status,
                    const std::string& sentence) {
  RawClient client(served.port());
  client.send(bytes);
  const std::string got = client.read_all();
  EXPECT_THAT(got, StartsWith(fmt::format("HTTP/1.1 {} ", status))) << bytes.substr(0, 200);
  EXPECT_THAT(got, HasSubstr("Connection: close"));
  const std::size_t body = got.find("\r\n\r\n");
  ASSERT_NE(body, std::string::npos) << got;
  const json error = json::parse(got.substr(body + 4), nullptr, false);
  ASSERT_TRUE(error.is_object() && error.contains("error")) << got;
  EXPECT_THAT(error["error"].value("message", ""), HasSubstr(sentence));
}

TEST(ServerFaults, WhatIsNotThereIsToldInJson) {
  const Served served;
  expect_error(served.get("/"), 404, "this server has no '/'");
  expect_error(served.post("/v1/chat/completions", "{}"), 404,
               "this server has no '/v1/chat/completions'");
  expect_error(served.get("/v1/completions/x%00%ff"), 404, "this server has no '/v1/completions/x");
  expect_error(served.client().Put("/nothing", "{}", "application/json"), 404,
               "this server has no");
  expect_error(served.get("/" + std::string(4000, 'a')), 404, "this server has no '/aaa");
}

TEST(ServerFaults, AnotherMethodIsToldWhichOneIsAllowed) {
  const Served served;
  const auto result = served.get("/v1/completions");
  expect_error(result, 405, "'/v1/completions' was requested with GET; expected POST");
  EXPECT_EQ(result->get_header_value("Allow"), "POST");
  const auto posted = served.post("/health", "{}");
  expect_error(posted, 405, "expected GET, HEAD");
  EXPECT_EQ(posted->get_header_value("Allow"), "GET, HEAD");
  expect_error(served.client().Options("/v1/completions"), 405, "expected POST");
  expect_error(served.client().Delete("/resume"), 405, "expected POST");
}

TEST(ServerFaults, WebPagesAreRefused) {
  const Served served;
  const auto result =
      served.client().Post("/pause", {{"Origin", "http://localhost"}}, "", "text/plain");
  expect_error(result, 403, "this server does not answer requests from web pages (Origin)");
  EXPECT_FALSE(result->has_header("Access-Control-Allow-Origin"));
  EXPECT_EQ(json_of(served.get("/is_paused")), (json{{"is_paused", false}}));
}

TEST(ServerFaults, ABodyThatIsTooLargeIsRefused) {
  const Served served;
  const std::string sentence = "the body is larger than 16777216 bytes";
  expect_error(served.post("/v1/completions", std::string(kMaxBodyBytes + 1, ' ')), 413, sentence);
  // It is not even sent.
  expect_refused(served,
                 "POST /v1/completions HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n",
                 413, sentence);
  expect_refused(served,
                 "POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: "
                 "99999999\r\n\r\n",
                 413, sentence);
  std::string chunked = "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (std::uint64_t sent = 0; sent <= kMaxBodyBytes; sent += 1U << 20U)
    chunked += "100000\r\n" + std::string(1U << 20U, ' ') + "\r\n";
  expect_refused(served, chunked, 413, sentence);
  EXPECT_EQ(json_of(served.get("/health")), json::object());
}

TEST(ServerFaults, ALargeBodyThatIsAllowedArrives) {
  const Served served;
  const std::string body = R"({"prompt": "ab", "max_tokens": 2})";
  const auto result =
      served.post("/v1/completions", body + std::string(kMaxBodyBytes - body.size(), ' '));
  EXPECT_EQ(json_of(result).at("choices").at(0).at("text"), "ba");
}

TEST(ServerFaults, AClientThatExpectsToBeAskedIsAsked) {
  const Served served;
  RawClient client(served.port());
  const std::string body = R"({"prompt": "ab", "max_tokens": 2})";
  client.send(fmt::format(
      "POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
      body.size()));
  client.read_until("HTTP/1.1 100 Continue\r\n\r\n");
  client.send(body);
  EXPECT_THAT(client.read_until("}]"), HasSubstr("\"text\":\"ba\""));
}

TEST(ServerFaults, WhatIsNoHttpIsRefused) {
  const Served served;
  const std::string chunked = "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  expect_refused(served, std::string("\x16\x03\x01\x02\x00\x01", 6), 400,
                 "this is not an HTTP request");
  expect_refused(served, "\xFF\xFE\x00", 400, "this is not an HTTP request");
  expect_refused(served, "SSH-2.0-OpenSSH_9.2\r\n", 400, "this is not an HTTP request");
  expect_refused(served, "GET / HTTP/1.1\nHost: x\n\n", 400, "bare LF");
  expect_refused(served, "GET\r\n\r\n", 400, "this is not an HTTP request");
  expect_refused(served, "GET /health HTTP/2.0\r\n\r\n", 400, "the request is not valid HTTP/1.1");
  expect_refused(served, "BREW /pot HTTP/1.1\r\n\r\n", 400, "the request is not valid HTTP/1.1");
  expect_refused(served, "GET / / HTTP/1.1\r\n\r\n", 400, "the request is not valid HTTP/1.1");
  expect_refused(served, "GET /?a=b?c HTTP/1.1\r\n\r\n", 400, "the request is not valid HTTP/1.1");
  expect_refused(served, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400,
                 "the request is not valid HTTP/1.1");
  expect_refused(served, "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n", 414,
                 "the request line is longer than 8000 bytes");
  expect_refused(served, "GET / HTTP/1.1\r\nA: " + std::string(20'000, 'a') + "\r\n\r\n", 431,
                 "the request's head is longer than 16384 bytes");
  expect_refused(served, "GET / HTTP/1.1\r\n: x\r\n\r\n", 400, "has no name");
  expect_refused(served, "POST /resume HTTP/1.1\r\nContent-Encoding: gzip\r\n\r\n", 415,
                 "Content-Encoding is 'gzip'");
  expect_refused(served, chunked + "zz\r\n", 400, "the body ended early, arrived too slowly or");
  expect_refused(served, chunked + "2\r\nabXX\r\n", 400, "the body ended early");
  EXPECT_EQ(json_of(served.get("/health")), json::object());
}

TEST(ServerFaults, AClientThatGoesInTheMiddleOfItsRequestHarmsNobody) {
  const Served served;
  const std::string request = raw_post("/v1/completions", R"({"prompt": "ab"})");
  for (std::size_t n = 0; n < request.size(); n += 7) {
    RawClient client(served.port());
    client.send(request.substr(0, n));
  }
  RawClient half(served.port());
  half.send(request.substr(0, request.size() - 1));
  half.end_sending();
  EXPECT_THAT(half.read_all(), HasSubstr("the body ended early"));
  EXPECT_EQ(json_of(served.get("/health")), json::object());
  EXPECT_EQ(json_of(served.get("/stats")).at("prompt_tokens"), 0);
}

TEST(ServerFaults, ARouteWithoutABodyNeedsNone) {
  const Served served;
  RawClient client(served.port());
  client.send("POST /resume HTTP/1.1\r\n\r\n");
  client.read_until("{\"status\":\"resumed\"}");
}

TEST(ServerFaults, ABodyThatNobodyReadIsNoRequest) {
  const Served served;
  const std::string inner = "GET /health HTTP/1.1\r\n\r\n";
  for (const std::string path : {"/nothing", "/health"}) {
    RawClient client(served.port());
    client.send(
        fmt::format("GET {} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", path, inner.size(), inner));
    const std::string got = client.read_all();
    EXPECT_EQ(got.find("HTTP/1.1"), got.rfind("HTTP/1.1")) << got;
  }
}

TEST(ServerFaults, RequestsThatComeTogetherAreAnsweredInTheirOrder) {
  const Served served;
  RawClient client(served.port());
  client.send("GET /is_paused HTTP/1.1\r\n\r\n" + raw_post("/resume", "{}") +
              "GET /weight_info HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string got = client.read_all();
  const std::size_t first = got.find("is_paused");
  const std::size_t second = got.find("resumed");
  const std::size_t third = got.find("weight_version");
  ASSERT_NE(third, std::string::npos) << got;
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
}

TEST(ServerFaults, AConnectionServesManyRequests) {
  const Served served;
  httplib::Client client = served.client();
  client.set_keep_alive(true);
  for (int i = 0; i < 50; ++i) {
    const auto result = client.Get("/health");
    EXPECT_EQ(json_of(result), json::object());
    EXPECT_FALSE(result->has_header("Connection"));
  }
}

TEST(ServerFaults, AnswersAreWholeAndPlain) {
  const Served served;
  std::string ranges = "bytes=0-0";
  while (ranges.size() < 7900) ranges += ",1-2";
  for (const std::string& range : {std::string("bytes=0-0"), ranges, std::string("x")}) {
    const auto result =
        served.client().Get("/weight_info", {{"Range", range}, {"Accept-Encoding", "gzip, br"}});
    EXPECT_EQ(result->status, 200);
    EXPECT_FALSE(result->has_header("Content-Encoding"));
    EXPECT_EQ(json_of(result).at("version"), "1.7");
  }
}

}  // namespace
}  // namespace wsync::engine::http::test
