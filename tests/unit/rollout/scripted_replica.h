// A peer that answers as a test tells it to: a server of completions, and one that speaks no HTTP.
#pragma once

#include <arpa/inet.h>
#include <array>
#include <condition_variable>
#include <functional>
#include <gtest/gtest.h>
#include <httplib.h>
#include <mutex>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "shared/base/unique_fd.h"
#include "shared/weights/version.h"

namespace wsync::rollout::test {

struct Reply {
  int status = 200;
  std::string body;
};

// One answer of a completion, with a span for each version: {tokens, version}.
[[nodiscard]] inline nlohmann::json choice(
    std::size_t index, const std::string& text,
    const std::vector<std::pair<std::uint32_t, Version>>& versions) {
  nlohmann::json tokens = nlohmann::json::array();
  nlohmann::json logprobs = nlohmann::json::array();
  for (const char byte : text) {
    tokens.push_back(static_cast<unsigned char>(byte));
    logprobs.push_back(-0.25 * static_cast<double>(tokens.size()));
  }
  nlohmann::json spans = nlohmann::json::array();
  std::uint32_t at = 0;
  for (const auto& [count, version] : versions) {
    spans.push_back({{"start", at}, {"end", at + count}, {"version", version.to_string()}});
    at += count;
  }
  return {{"index", index},
          {"finish_reason", text.ends_with('\n') ? "stop" : "length"},
          {"token_ids", std::move(tokens)},
          {"logprobs", {{"token_logprobs", std::move(logprobs)}}},
          {"weight_versions", std::move(spans)}};
}

[[nodiscard]] inline std::string prompt_of(const nlohmann::json& question) {
  std::string prompt;
  for (const nlohmann::json& byte : question.at("prompt"))
    prompt += static_cast<char>(byte.get<unsigned char>());
  return prompt;
}
// The right answer of a prompt "reverse 4831=".
[[nodiscard]] inline std::string reversed(const std::string& prompt) {
  const std::size_t first = prompt.find(' ') + 1;
  const std::string digits = prompt.substr(first, prompt.size() - 1 - first);
  return {digits.rbegin(), digits.rend()};
}

// The first answer is right, all others are wrong.
[[nodiscard]] inline Reply answer_by(const nlohmann::json& question, const Version& version) {
  nlohmann::json choices = nlohmann::json::array();
  for (std::size_t i = 0; i < question.at("n").get<std::size_t>(); ++i) {
    const std::string text = (i == 0 ? reversed(prompt_of(question)) : "-") + "\n";
    choices.push_back(choice(i, text, {{static_cast<std::uint32_t>(text.size()), version}}));
  }
  return {.body = nlohmann::json{{"choices", std::move(choices)}}.dump()};
}
[[nodiscard]] inline Reply refused_by(int status, const std::string& message) {
  return {.status = status, .body = nlohmann::json{{"error", {{"message", message}}}}.dump()};
}

// Thread: any. What a script captures outlives it.
class ScriptedReplica {
 public:
  // On a thread of the server.
  using Script = std::function<Reply(const nlohmann::json& question)>;

  // `port`: 0 for any free one.
  explicit ScriptedReplica(int port = 0) {
    script_ = [this](const nlohmann::json& question) { return answer_by(question, served()); };
    server_.new_task_queue = [] { return new httplib::ThreadPool(16); };
    server_.set_keep_alive_timeout(1);
    server_.set_tcp_nodelay(true);
    server_.Post("/v1/completions", [this](const httplib::Request& asked, httplib::Response& told) {
      set(told, answer(asked));
    });
    server_.Get("/ready",
                [this](const httplib::Request&, httplib::Response& told) { set(told, ready()); });
    server_.Get("/weight_info",
                [this](const httplib::Request&, httplib::Response& told) { set(told, weights()); });
    port_ = port;
    if (port == 0)
      port_ = server_.bind_to_any_port("127.0.0.1");
    else
      EXPECT_TRUE(server_.bind_to_port("127.0.0.1", port));
    EXPECT_GT(port_, 0);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() before the loop has begun would be lost.
    httplib::Client("127.0.0.1", port_).Get("/ready");
    const std::lock_guard lock(mutex_);
    looks_ = 0;
  }
  ~ScriptedReplica() {
    release();
    server_.stop();
    thread_.join();
  }
  ScriptedReplica(const ScriptedReplica&) = delete;
  ScriptedReplica& operator=(const ScriptedReplica&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  void script(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void serve(const Version& version) {
    const std::lock_guard lock(mutex_);
    version_ = version;
  }
  [[nodiscard]] Version served() const {
    const std::lock_guard lock(mutex_);
    return version_;
  }
  // /ready is answered so; status 200 is ready.
  void be_ready(int status, const std::string& reason = "") {
    const std::lock_guard lock(mutex_);
    ready_ = {.status = status, .body = nlohmann::json{{"reason", reason}}.dump()};
  }
  // /weight_info is answered so, whatever is served.
  void notify_version(std::string body) {
    const std::lock_guard lock(mutex_);
    told_version_ = std::move(body);
  }

  // All that were asked, in their order, with those that are not answered yet.
  [[nodiscard]] std::vector<nlohmann::json> questions() const {
    const std::lock_guard lock(mutex_);
    return questions_;
  }
  [[nodiscard]] std::vector<int> ports() const {  // of who asked
    const std::lock_guard lock(mutex_);
    return ports_;
  }
  [[nodiscard]] std::size_t looks() const {  // at what it serves
    const std::lock_guard lock(mutex_);
    return looks_;
  }
  void wait_for_questions(std::size_t count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return questions_.size() >= count; });
  }
  void wait_for_looks(std::size_t count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return looks_ >= count; });
  }

  // For scripts: does not return before release().
  void hold() {
    std::unique_lock lock(mutex_);
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
  }
  void wait_for_held(std::size_t count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_ >= count; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  static void set(httplib::Response& told, const Reply& reply) {
    told.status = reply.status;
    told.set_content(reply.body, "application/json");
  }
  Reply answer(const httplib::Request& asked) {
    const nlohmann::json question = nlohmann::json::parse(asked.body);
    Script script;
    {
      const std::lock_guard lock(mutex_);
      questions_.push_back(question);
      ports_.push_back(asked.remote_port);
      script = script_;
      changed_.notify_all();
    }
    return script(question);
  }
  Reply ready() {
    const std::lock_guard lock(mutex_);
    ++looks_;
    changed_.notify_all();
    return ready_;
  }
  Reply weights() {
    const std::lock_guard lock(mutex_);
    if (!told_version_.empty()) return {.body = told_version_};
    return {.body = nlohmann::json{{"version", version_.to_string()}}.dump()};
  }

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;

  mutable std::mutex mutex_;  // of what follows
  mutable std::condition_variable changed_;
  Script script_;
  Version version_{.epoch = 1, .step = 0};
  Reply ready_{.body = "{}"};
  std::string told_version_;
  std::vector<nlohmann::json> questions_;
  std::vector<int> ports_;
  std::size_t looks_ = 0;
  std::size_t held_ = 0;
  bool released_ = false;
};

// Takes connections in and says what it is told to, be it HTTP or not.
class RawPeer {
 public:
  explicit RawPeer(std::function<void(RawPeer&)> script)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, script = std::move(script)] { script(*this); });
  }
  ~RawPeer() { thread_.join(); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // For scripts.
  void accept() { peer_.reset(::accept(listener_.get(), nullptr, nullptr)); }
  void stop_listening() { listener_.reset(); }
  void hang_up() { peer_.reset(); }
  // Reads a GET, which has no body; false: the other side has hung up before.
  bool read_get() { return read_head(); }
  // Reads the head of what is asked; a body is left where it is.
  bool read_head() {
    std::string got;
    std::array<char, 1> byte{};
    while (!got.ends_with("\r\n\r\n")) {
      if (::recv(peer_.get(), byte.data(), 1, 0) <= 0) return false;
      got += byte[0];
    }
    return true;
  }
  void wait_for_end() {
    std::array<char, 4096> bytes{};
    while (::recv(peer_.get(), bytes.data(), bytes.size(), 0) > 0) {
    }
  }
  // False: the other side has hung up.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool send_answer(const std::string& body, const std::string& headers = "") {
    return send("HTTP/1.1 200 OK\r\n" + headers + "Content-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
  }

 private:
  UniqueFd listener_;
  UniqueFd peer_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace wsync::rollout::test
