// Reads the pages of a fleet over their Unix sockets, as Prometheus does.
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

// Reads the metrics of the process that serves its pages at this socket, over a new connection.
// Errors as connect_unix(). kInternal if the answer is not a page of wsync's metrics. kDeadline
// after 10 s. Thread: any.
[[nodiscard]] Result<std::string> scrape(const std::string& socket);

// Returns the value of a series on the page: `wsync_update_bytes_total{stage="load"}`.
[[nodiscard]] std::optional<double> metric_value(std::string_view page, std::string_view series);

// Scrapes immediately on construction and then in every interval, until it is stopped.
class Scraping {
 public:
  Scraping(std::vector<std::string> sockets, std::chrono::milliseconds interval);
  Scraping(const Scraping&) = delete;
  Scraping& operator=(const Scraping&) = delete;
  ~Scraping();
  // Stops the scraping. Returns the number of pages or the first error. Each socket has been
  // scraped at least once, however early this is called. Call it once.
  [[nodiscard]] Result<unsigned> stop();

 private:
  void run(const std::stop_token& stopped);

  const std::vector<std::string> sockets_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  unsigned pages_ = 0;           // used by the thread until it has been joined
  std::optional<Error> failed_;  // used by the thread until it has been joined
  std::jthread thread_;          // last member, because it uses all others
};

}  // namespace wsync::bench
