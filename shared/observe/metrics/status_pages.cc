#include "shared/observe/metrics/status_pages.h"

#include <optional>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/observe/metrics/catalog.h"
#include "shared/observe/metrics/process.h"

namespace wsync::metrics {
namespace {

constexpr std::size_t kThreads = 8;  // pages are few and small
constexpr http::ServerLimits kPageLimits{
    .connections = kPageConnections, .idle_ms = 20'000, .head_deadline_ms = 2'000};
constexpr std::chrono::milliseconds kListenAgain{500};
constexpr const char* kText = "text/plain; charset=utf-8";
constexpr const char* kMetricsText = "text/plain; version=0.0.4; charset=utf-8";

void answer(http::Exchange& exchange, int status, const std::string& sentence) {
  exchange.response.status = status;
  exchange.response.set_content(sentence + "\n", kText);
}

Claim claim_of(const StatusPagesOptions& options) {
  return options.take_over ? Claim::kTakeOver : Claim::kIfFree;
}

http::HttpServerOptions server_options(const StatusPagesOptions& options,
                                       const std::optional<http::AccessToken>& token) {
  std::vector<std::string> open = options.open;
  open.insert(open.end(), {"/healthz", "/readyz"});
  return {.threads = kThreads,
          .limits = kPageLimits,
          // Browsers cannot open a Unix socket. A token may be for clients of other hosts, and a
          // web page does not have it.
          .loopback_only = !token && options.address.starts_with("tcp://"),
          .token = token,
          .open = std::move(open),
          .headers = {{"X-Content-Type-Options", "nosniff"},
                      {"Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-store"}}};
}

http::Page text_page(int /*status*/, std::string_view message, std::string_view /*code*/) {
  return {.body = std::string(message) + "\n", .type = kText};
}

}  // namespace

Result<std::unique_ptr<StatusPages>> StatusPages::create(
    Loop& loop, const StatusPagesOptions& options, const Registry& registry, StatusFacts facts,
    const std::function<std::vector<http::Route>(Asker& asker)>& more) {
  std::optional<http::AccessToken> token;
  if (!options.token.empty()) {
    auto read = http::AccessToken::read(options.token);
    if (!read) return fail(read.error().with_context("http.token"));
    token = std::move(*read);
  }
  auto pages = std::unique_ptr<StatusPages>(
      new StatusPages(loop, options, std::move(token), registry, std::move(facts), more));
  const Result<> listens = pages->serve(pages->listen());
  if (!listens && listens.error().code() == ErrorCode::kBusy && options.take_over) {
    log_warning("http.address: {}; wsync retries until the address is free",
                listens.error().message());
    pages->looker_ = std::make_unique<Worker>(loop, WorkerOptions{.name = "pages"});
    pages->retry_.start_repeating(kListenAgain);
  } else if (!listens) {
    return fail(listens.error().with_context("http.address"));
  }
  return pages;
}

StatusPages::StatusPages(Loop& loop, StatusPagesOptions options,
                         std::optional<http::AccessToken> token, const Registry& registry,
                         StatusFacts facts,
                         const std::function<std::vector<http::Route>(Asker& asker)>& more)
    : loop_(loop),
      options_(std::move(options)),
      token_(std::move(token)),
      registry_(registry),
      facts_(std::move(facts)),
      asker_(loop),
      routes_(routes(more)),
      retry_(loop, [this] { listen_again(); }) {}

StatusPages::~StatusPages() {
  // The last line joins the server's threads, and this thread blocks the loop meanwhile. A handler
  // that waits for the loop would delay it by up to kLoopWaitLimit, so close() ends such waits
  // first. The server is not destroyed here, because a handler may still read how many requests it
  // has refused.
  *alive_ = false;
  looker_.reset();
  asker_.close();
  if (server_) server_->stop();
}

std::vector<http::Route> StatusPages::routes(
    const std::function<std::vector<http::Route>(Asker& asker)>& more) {
  std::vector<http::Route> all = {
      {"GET", "/metrics", [this](http::Exchange& exchange) { metrics(exchange); }},
      {"GET", "/healthz", [this](http::Exchange& exchange) { healthz(exchange); }},
      {"GET", "/readyz", [this](http::Exchange& exchange) { readyz(exchange); }}};
  if (more)
    for (http::Route& route : more(asker_)) all.push_back(std::move(route));
  return all;
}

Result<http::Listener> StatusPages::listen() const {
  return http::listen_to(options_.address, claim_of(options_),
                         token_ ? http::Reach::kEverywhere : http::Reach::kThisHost);
}

void StatusPages::listen_again() {
  if (looking_) return;
  auto found = std::make_shared<std::optional<Result<http::Listener>>>();
  const auto submitted = looker_->submit(
      // The worker ends before this object does.
      [found, this] { found->emplace(listen()); },
      [this, found, alive = alive_] {
        if (!*alive) return;
        looking_ = false;
        const Result<> listens = serve(std::move(**found));
        if (!listens && listens.error().code() == ErrorCode::kBusy) return;
        retry_.stop();
        if (!listens) log_warning("http.address: {}", listens.error().message());
      });
  looking_ = submitted.has_value();
}

Result<> StatusPages::serve(Result<http::Listener> listener) {
  if (!listener) return fail(std::move(listener).error());
  server_ = WSYNC_TRY(http::HttpServer::create(std::move(*listener), routes_, text_page,
                                               server_options(options_, token_)));
  server_->start();
  log_info("metrics and health at {}{}", server_->address(),
           token_ ? ", for those who show the token" : "");
  return {};
}

void StatusPages::metrics(http::Exchange& exchange) {
  auto readings = asker_.ask<std::vector<Reading>>(facts_.readings, kLoopWaitLimit);
  if (!readings) return answer(exchange, 503, readings.error().message());
  readings->push_back({.what = &kBuildInfo, .value = 1, .labels = {WSYNC_VERSION, options_.role}});
  const LoopLag lag = loop_.lag();
  readings->push_back({.what = &kLoopLongest, .value = seconds(lag.longest), .labels = {}});
  readings->push_back({.what = &kLoopSlowCallbacks,
                       .value = static_cast<double>(lag.slow_callbacks),
                       .labels = {}});
  if (server_ && token_)
    readings->push_back(
        {.what = &kPageRefusals, .value = static_cast<double>(server_->refused()), .labels = {}});
  for (Reading& reading : process_readings()) readings->push_back(std::move(reading));
  exchange.response.set_content(registry_.text(*readings), kMetricsText);
}

void StatusPages::healthz(http::Exchange& exchange) {
  const auto alive = asker_.ask<bool>([] { return true; }, kLoopWaitLimit);
  if (!alive) return answer(exchange, 503, alive.error().message());
  answer(exchange, 200, "ok");
}

void StatusPages::readyz(http::Exchange& exchange) {
  const auto readiness = asker_.ask<Readiness>(facts_.readiness, kLoopWaitLimit);
  if (!readiness) return answer(exchange, 503, readiness.error().message());
  if (readiness->ready) return answer(exchange, 200, "ready");
  answer(exchange, 503, readiness->reason);
}

}  // namespace wsync::metrics
