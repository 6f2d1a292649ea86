// A server over a reversing service, and how to talk to it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "inference_side/reference_engine/http/completion_server.h"
#include "tests/unit/observe/http/raw_client.h"
#include "tests/unit/reference_engine/http/reversing_service.h"

namespace wsync::engine::http::test {

[[nodiscard]] inline generation::ServiceInfo tiny_model() {
  return {.model = "tiny",
          .vocabulary = 256,
          .max_positions = 1U << 20U,
          .end_token = std::nullopt,
          .has_weights = true,
          .version = {.epoch = 1, .step = 7}};
}

struct Served {
  explicit Served(ReversingService::Options service_options = {.info = tiny_model()},
                  CompletionServerOptions options = {})
      : service(std::move(service_options)) {
    options.port = 0;
    server = CompletionServer::create(options, service).value();
    server->start();
  }

  [[nodiscard]] std::uint16_t port() const { return server->port(); }
  [[nodiscard]] httplib::Client client() const {
    httplib::Client client("127.0.0.1", port());
    client.set_read_timeout(60);
    return client;
  }
  [[nodiscard]] httplib::Result post(const std::string& path, const std::string& body = "") const {
    return client().Post(path, body, "application/json");
  }
  [[nodiscard]] httplib::Result get(const std::string& path) const { return client().Get(path); }
  [[nodiscard]] httplib::Result complete(const nlohmann::json& body) const {
    return post("/v1/completions", body.dump());
  }

  ReversingService service;
  std::unique_ptr<CompletionServer> server;  // before the service
};

[[nodiscard]] inline nlohmann::json json_of(const httplib::Result& result) {
  EXPECT_TRUE(result) << httplib::to_string(result.error());
  if (!result) return {};
  EXPECT_EQ(result->get_header_value("Content-Type"), "application/json");
  nlohmann::json body = nlohmann::json::parse(result->body, nullptr, false);
  EXPECT_FALSE(body.is_discarded()) << result->body;
  return body;
}

// An error in OpenAI's form, with this status and this in its sentence.
inline void expect_error(const httplib::Result& result, int status, const std::string& sentence) {
  const nlohmann::json body = json_of(result);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, status) << result->body;
  ASSERT_TRUE(body.contains("error")) << result->body;
  EXPECT_THAT(body["error"].value("message", ""), testing::HasSubstr(sentence));
  EXPECT_TRUE(body["error"].contains("type") && body["error"].contains("code"));
}

// The events of a stream; [DONE] is checked and left out.
[[nodiscard]] inline std::vector<nlohmann::json> events_of(std::string_view stream) {
  std::vector<nlohmann::json> events;
  bool done = false;
  while (!stream.empty()) {
    const std::size_t end = stream.find("\n\n");
    EXPECT_TRUE(stream.starts_with("data: ")) << stream;
    EXPECT_FALSE(done) << "after [DONE]: " << stream;
    if (end == std::string_view::npos || !stream.starts_with("data: ")) break;
    const std::string_view data = stream.substr(6, end - 6);
    done = data == "[DONE]";
    if (!done) events.push_back(nlohmann::json::parse(data));
    stream.remove_prefix(end + 2);
  }
  EXPECT_TRUE(done);
  return events;
}

// A request as a raw client sends it.
[[nodiscard]] inline std::string raw_post(const std::string& path, const std::string& body,
                                          const std::string& headers = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n{}\r\n{}", path,
                     body.size(), headers, body);
}

}  // namespace wsync::engine::http::test
