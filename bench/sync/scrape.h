// What Prometheus does to a fleet: its pages, read over their Unix sockets.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shared/base/error.h"

namespace wsync::bench {

// The metrics of the process that serves its pages at this socket, read over a connection of its
// own. Errors as connect_unix(); kInternal for an answer that is not a page of wsync's metrics;
// kDeadline after 10 s. Thread: any.
[[nodiscard]] Result<std::string> scrape(const std::string& socket);

// The value of a series as it stands on the page, `wsync_update_bytes_total{stage="load"}`.
[[nodiscard]] std::optional<double> metric_value(std::string_view page, std::string_view series);

// Scrapes from construction on, at once and then in every interval, until it is stopped.
class Scraping {
 public:
  Scraping(std::vector<std::string> sockets, std::chrono::milliseconds interval);
  Scraping(const Scraping&) = delete;
  Scraping& operator=(const Scraping&) = delete;
  ~Scraping();
  // Ends it: how many pages were read, or the first error. Each socket has been scraped at least
  // once, however early this is called. Once.
  [[nodiscard]] Result<unsigned> stop();

 private:
  void run(const std::stop_token& stopped);

  const std::vector<std::string> sockets_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  unsigned pages_ = 0;           // until it has been joined: the thread's
  std::optional<Error> failed_;  // likewise
  std::jthread thread_;          // the last one: it uses all of these
};

}  // namespace wsync::bench
