#include "bench/harness/scrape.h"

#include <charconv>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/observe/http/http_client.h"

namespace wsync::bench {
namespace {

constexpr std::chrono::seconds kScrapeDeadline{10};
constexpr std::size_t kMaxPageBytes = 64 * limits::kMiB;
constexpr std::string_view kOwnSeries = "\nwsync_build_info{";

}  // namespace

Result<std::string> scrape(const std::string& socket) {
  // A new connection for each scrape, as Prometheus may use.
  const auto client = WSYNC_TRY(http::HttpClient::create({.socket_path = socket}));
  auto page = client->ask(
      {.path = "/metrics", .max_bytes = kMaxPageBytes, .deadline = now() + kScrapeDeadline});
  if (!page && page.error().code() == ErrorCode::kInvalidInput)
    return fail(ErrorCode::kInternal, fmt::format("{}: {}", socket, page.error().message()));
  if (!page) return fail(page.error().with_context(socket));
  if (page->status != 200 || page->body.find(kOwnSeries) == std::string::npos)
    return fail(ErrorCode::kInternal,
                fmt::format("{}: expected a page of metrics, found: status {}, {}", socket,
                            page->status, page->body.substr(0, page->body.find('\n'))));
  return std::move(page->body);
}

std::optional<double> metric_value(std::string_view page, std::string_view series) {
  const std::string line_begin = fmt::format("\n{} ", series);
  const std::size_t at = page.find(line_begin);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = page.substr(at + line_begin.size());
  const std::string_view number = rest.substr(0, rest.find('\n'));
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

Scraping::Scraping(std::vector<std::string> sockets, std::chrono::milliseconds interval)
    : sockets_(std::move(sockets)),
      interval_(interval),
      thread_([this](const std::stop_token& stopped) { run(stopped); }) {}

Scraping::~Scraping() = default;

void Scraping::run(const std::stop_token& stopped) {
  for (;;) {
    for (const std::string& socket : sockets_) {
      const auto page = scrape(socket);
      if (!page) {
        failed_ = page.error();
        return;
      }
      ++pages_;
    }
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, stopped, interval_, [&] { return stopped.stop_requested(); })) return;
  }
}

Result<unsigned> Scraping::stop() {
  thread_.request_stop();
  thread_.join();
  if (failed_) return fail(*failed_);
  return pages_;
}

}  // namespace wsync::bench
