// The pages of a process over a real socket, asked by a real client while the loop runs, or does
// not.
#include "shared/observe/metrics/status_pages.h"

#include <atomic>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <latch>
#include <optional>
#include <stdlib.h>
#include <sys/un.h>
#include <thread>

#include "shared/base/format.h"
#include "shared/observe/http/http_client.h"
#include "shared/observe/http/listener.h"
#include "shared/observe/metrics/catalog.h"

namespace wsync::metrics {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Pages : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "wsync-pages-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    loop_ = Loop::create().value();
  }
  void TearDown() override {
    pages_.reset();
    loop_.reset();
    std::filesystem::remove_all(directory_);
  }
  Result<> open(const std::string& address, bool take_over = false, const std::string& token = {},
                const std::vector<std::string>& without = {}) {
    StatusFacts facts;
    facts.readings = [this] {
      return std::vector<Reading>{
          {.what = &kTargetStep, .value = static_cast<double>(++scrapes_), .labels = {}}};
    };
    facts.readiness = [this] { return readiness_; };
    auto pages = StatusPages::create(
        *loop_,
        {.address = address,
         .take_over = take_over,
         .role = "test",
         .token = token,
         .open = without},
        registry_, std::move(facts), [](Asker& asker) {
          return std::vector<http::Route>{
              {"GET", "/more", [&asker](http::Exchange& exchange) {
                 const auto answer = asker.ask<int>([] { return 42; }, kLoopWaitLimit);
                 exchange.response.set_content(std::to_string(answer.value()), "text/plain");
               }}};
        });
    if (!pages) return fail(pages.error());
    pages_ = std::move(*pages);
    return {};
  }
  // Runs the loop until `talk`, on a thread of its own, is done.
  void while_running(const std::function<void()>& talk) {
    std::thread client([&] {
      talk();
      loop_->stop();
    });
    loop_->run();
    client.join();
  }
  [[nodiscard]] std::uint16_t port() const {
    return static_cast<std::uint16_t>(
        std::stoi(pages_->address().substr(pages_->address().rfind(':') + 1)));
  }
  [[nodiscard]] httplib::Client client() const { return httplib::Client("127.0.0.1", port()); }

  std::string directory_;
  std::unique_ptr<Loop> loop_;
  Registry registry_;
  std::atomic<int> scrapes_ = 0;  // counted on the loop, read by those who talk
  Readiness readiness_{.ready = false, .reason = "replica 'a' is tainted: a rank did not load"};
  std::unique_ptr<StatusPages> pages_;
};

TEST_F(Pages, TellMetricsHealthAndReadiness) {
  ASSERT_TRUE(open("tcp://127.0.0.1:0"));
  while_running([&] {
    for (int scrape = 1; scrape <= 2; ++scrape) {
      const auto metrics = client().Get("/metrics");
      ASSERT_TRUE(metrics);
      EXPECT_EQ(metrics->status, 200);
      EXPECT_EQ(metrics->get_header_value("Content-Type"),
                "text/plain; version=0.0.4; charset=utf-8");
      EXPECT_THAT(metrics->body,
                  AllOf(HasSubstr(fmt::format("wsync_target_version_step {}\n", scrape)),
                        HasSubstr("wsync_build_info{version=\""), HasSubstr("role=\"test\"} 1\n"),
                        HasSubstr("process_resident_memory_bytes ")));
    }
    const auto healthy = client().Get("/healthz");
    ASSERT_TRUE(healthy);
    EXPECT_EQ(healthy->status, 200);
    const auto unready = client().Get("/readyz");
    ASSERT_TRUE(unready);
    EXPECT_EQ(unready->status, 503);
    EXPECT_EQ(unready->body, "replica 'a' is tainted: a rank did not load\n");
  });
  readiness_ = {.ready = true, .reason = {}};
  while_running([&] {
    const auto ready = client().Get("/readyz");
    ASSERT_TRUE(ready);
    EXPECT_EQ(ready->status, 200);
    const auto head = client().Head("/readyz");
    ASSERT_TRUE(head);
    EXPECT_EQ(head->status, 200);
    EXPECT_EQ(head->body, "");
    const auto more = client().Get("/more");
    ASSERT_TRUE(more);
    EXPECT_EQ(more->body, "42");
  });
}

TEST_F(Pages, RefuseOtherPathsAndMethodsAsText) {
  ASSERT_TRUE(open("tcp://127.0.0.1:0"));
  while_running([&] {
    const auto missing = client().Get("/metricz");
    ASSERT_TRUE(missing);
    EXPECT_EQ(missing->status, 404);
    EXPECT_EQ(missing->body, "this server has no '/metricz'\n");
    const auto posted = client().Post("/metrics", "x", "text/plain");
    ASSERT_TRUE(posted);
    EXPECT_EQ(posted->status, 405);
    EXPECT_EQ(posted->get_header_value("Allow"), "GET, HEAD");
    const auto from_a_page = client().Get("/metrics", {{"Origin", "http://example.org"}});
    ASSERT_TRUE(from_a_page);
    EXPECT_EQ(from_a_page->status, 403);
    EXPECT_EQ(scrapes_, 0) << "nothing was asked of the loop";
  });
}

TEST_F(Pages, OfEveryAddressNeedAToken) {
  const auto refused = open("tcp://0.0.0.0:0");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  const std::string token = directory_ + "/token";
  const auto none = open("tcp://0.0.0.0:0", false, token);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message(), AllOf(HasSubstr("http.token: "), HasSubstr(token)));
  ASSERT_TRUE(http::AccessToken::make(token));
  ASSERT_TRUE(open("tcp://0.0.0.0:0", false, token));
  const httplib::Headers shown = {
      {"Authorization", http::AccessToken::read(token).value().authorization()},
      {"Host", "fleet.example:9190"}};
  while_running([&] {
    for (const char* path : {"/metrics", "/more", "/metricz", "/"}) {
      const auto without = client().Get(path);
      ASSERT_TRUE(without);
      EXPECT_EQ(without->status, 401) << path << ": also of what does not exist";
      EXPECT_EQ(without->get_header_value("WWW-Authenticate"),
                "Basic realm=\"wsync\", Bearer realm=\"wsync\"");
      EXPECT_THAT(without->body, HasSubstr("this server needs a token: send "));
    }
    const auto wrong = client().Get("/more", {{"Authorization", "Bearer 0123456789abcdef"}});
    ASSERT_TRUE(wrong);
    EXPECT_EQ(wrong->status, 401);
    EXPECT_EQ(wrong->body, "the token that this request shows is not that of this server\n");
    EXPECT_EQ(scrapes_, 0) << "nothing was asked of the loop";
    for (const char* path : {"/healthz", "/readyz"}) {
      const auto open_to_all = client().Get(path);
      ASSERT_TRUE(open_to_all);
      EXPECT_NE(open_to_all->status, 401) << path;
    }
    const auto more = client().Get("/more", shown);
    ASSERT_TRUE(more);
    EXPECT_EQ(more->body, "42");
    const auto metrics = client().Get("/metrics", shown);
    ASSERT_TRUE(metrics);
    EXPECT_THAT(metrics->body, HasSubstr("\nwsync_page_refusals_total 5\n"));
  });
}

TEST_F(Pages, MetricsMayBeOpenToAll) {
  const std::string token = directory_ + "/token";
  ASSERT_TRUE(http::AccessToken::make(token));
  ASSERT_TRUE(open("tcp://127.0.0.1:0", false, token, {"/metrics"}));
  while_running([&] {
    const auto metrics = client().Get("/metrics");
    ASSERT_TRUE(metrics);
    EXPECT_EQ(metrics->status, 200);
    const auto more = client().Get("/more");
    ASSERT_TRUE(more);
    EXPECT_EQ(more->status, 401);
  });
}

TEST_F(Pages, LiveAtAUnixSocketThatGoesWithThem) {
  const std::string path = directory_ + "/s0.http";
  ASSERT_TRUE(open("ipc://" + path));
  EXPECT_EQ(pages_->address(), path);
  while_running([&] {
    httplib::Client unix_client(path);
    unix_client.set_address_family(AF_UNIX);
    const auto healthy = unix_client.Get("/healthz");
    ASSERT_TRUE(healthy) << httplib::to_string(healthy.error());
    EXPECT_EQ(healthy->body, "ok\n");
    // Our own client as well, twice over one connection.
    const auto ours = http::HttpClient::create({.socket_path = path}).value();
    for (int i = 0; i < 2; ++i) {
      const auto answer = ours->ask(
          {.path = "/healthz", .max_bytes = 10'000, .deadline = now() + std::chrono::seconds(60)});
      ASSERT_TRUE(answer) << answer.error().message();
      EXPECT_EQ(answer->status, 200);
      EXPECT_EQ(answer->body, "ok\n");
    }
    const auto nobody = http::HttpClient::create({.socket_path = path + "x"}).value();
    const auto missing = nobody->ask({.path = "/", .max_bytes = 1, .deadline = now()});
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  });
  EXPECT_TRUE(std::filesystem::exists(path));
  pages_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(Pages, SayWhoHasTheAddress) {
  auto listener = http::listen_on("127.0.0.1", 0);
  ASSERT_TRUE(listener);
  const Result<> port = open(fmt::format("tcp://127.0.0.1:{}", listener->port));
  ASSERT_FALSE(port);
  EXPECT_EQ(port.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(port.error().message(),
              HasSubstr(fmt::format("http.address: 127.0.0.1:{} is in use: process {} (",
                                    listener->port, ::getpid())));
  const std::string path = directory_ + "/s0.http";
  auto other = http::listen_at(path);
  ASSERT_TRUE(other);
  const Result<> socket = open("ipc://" + path);
  ASSERT_FALSE(socket);
  EXPECT_EQ(socket.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(socket.error().message(),
              AllOf(HasSubstr(path), HasSubstr(std::to_string(::getpid()))));
}

TEST_F(Pages, RefuseAddressesThatOthersReachOrThatAreNone) {
  for (const auto* address : {"tcp://0.0.0.0:0", "tcp://192.0.2.7:9190", "tcp://[::]:0"}) {
    const Result<> opened = open(address);
    ASSERT_FALSE(opened) << address;
    EXPECT_EQ(opened.error().code(), ErrorCode::kRefused);
    EXPECT_THAT(opened.error().message(), HasSubstr("can be reached from other hosts"));
  }
  for (const auto* address :
       {"", "127.0.0.1:0", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:70000",
        "tcp://127.0.0.1:80x", "ipc://", "ipc://relative", "http://127.0.0.1:0"}) {
    const Result<> opened = open(address);
    ASSERT_FALSE(opened) << address;
    EXPECT_EQ(opened.error().code(), ErrorCode::kInvalidInput) << opened.error().message();
  }
}

// A coordinator that takes over from one that stands still has its pages as soon as it can.
TEST_F(Pages, AProcessThatTakesOverWaitsForThePortAndTakesTheSocket) {
  const std::string path = directory_ + "/control.http";
  auto left_behind = http::listen_at(path);
  ASSERT_TRUE(left_behind);
  ASSERT_TRUE(open("ipc://" + path, true));
  EXPECT_EQ(pages_->address(), path);
  EXPECT_TRUE(left_behind->path->taken_by().has_value());

  auto listener = http::listen_on("127.0.0.1", 0);
  ASSERT_TRUE(listener);
  const std::uint16_t port = listener->port;
  ASSERT_TRUE(open(fmt::format("tcp://127.0.0.1:{}", port), true));
  EXPECT_EQ(pages_->address(), "");
  listener->socket.reset();
  Timer look(*loop_, [&] {
    if (!pages_->address().empty()) loop_->stop();
  });
  look.start_repeating(std::chrono::milliseconds(5));
  loop_->run();
  EXPECT_EQ(pages_->address(), fmt::format("127.0.0.1:{}", port));
}

TEST_F(Pages, EndWhileSomebodyWaitsForALoopThatDoesNotRun) {
  ASSERT_TRUE(open("tcp://127.0.0.1:0"));
  std::latch asked(1);
  std::optional<httplib::Result> answer;
  std::thread waiting([&] {
    httplib::Client other = client();
    asked.count_down();
    answer.emplace(other.Get("/healthz"));
  });
  asked.wait();
  pages_.reset();
  waiting.join();
  // It may have come before or after the end; it never got an "ok".
  if (*answer) {
    EXPECT_EQ((*answer)->status, 503);
    EXPECT_EQ((*answer)->body, "this process is shutting down\n");
  }
}

TEST_F(Pages, AnAskerThatIsClosedRunsNothing) {
  Asker asker(*loop_);
  bool ran = false;
  const auto late = asker.ask<bool>(
      [&] {
        ran = true;
        return true;
      },
      std::chrono::milliseconds(1));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message(), HasSubstr("has not answered for 1 ms"));
  asker.close();
  const auto closed = asker.ask<bool>([] { return true; }, kLoopWaitLimit);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code(), ErrorCode::kCancelled);
  loop_->stop();
  loop_->run();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace wsync::metrics
