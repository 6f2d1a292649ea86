#include "bench/sync/scrape.h"

#include <array>
#include <charconv>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/unix_socket.h"

namespace wsync::bench {
namespace {

constexpr std::chrono::seconds kScrapeDeadline{10};
constexpr std::size_t kPageBytesMax = 64 * limits::kMiB;
constexpr std::string_view kQuestion =
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
constexpr std::string_view kGoodHead = "HTTP/1.1 200 ";
constexpr std::string_view kOwnSeries = "\nwsync_build_info{";

Result<> send_all(int socket, std::string_view text, TimePoint deadline) {
  while (!text.empty()) {
    WSYNC_TRY(wait_writable(socket, deadline));
    const auto sent = WSYNC_TRY(send_some(socket, std::as_bytes(std::span(text))));
    text.remove_prefix(sent);
  }
  return {};
}

// What comes until the other side closes.
Result<std::string> receive_all(int socket, TimePoint deadline) {
  std::string text;
  std::array<std::byte, 16 * limits::kKiB> block;
  std::vector<UniqueFd> fds;
  for (;;) {
    WSYNC_TRY(wait_readable(socket, deadline));
    const auto got = receive_some(socket, block, fds);
    if (!got && got.error().code() == ErrorCode::kPeerLost) return text;
    if (!got) return fail(got.error());
    if (text.size() + *got > kPageBytesMax)
      return fail(ErrorCode::kInternal, fmt::format("a page of over {} bytes", kPageBytesMax));
    text.append(reinterpret_cast<const char*>(block.data()), *got);
  }
}

}  // namespace

Result<std::string> scrape(const std::string& socket) {
  const TimePoint deadline = now() + kScrapeDeadline;
  const auto connected = WSYNC_TRY(connect_unix(socket, deadline));
  WSYNC_TRY(send_all(connected.get(), kQuestion, deadline));
  auto page = receive_all(connected.get(), deadline);
  if (!page) return fail(page.error().with_context(socket));
  if (!page->starts_with(kGoodHead) || page->find(kOwnSeries) == std::string::npos)
    return fail(ErrorCode::kInternal, fmt::format("{}: expected a page of metrics, found: {}",
                                                  socket, page->substr(0, page->find('\r'))));
  return page;
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
