// StatusPages: serves the state of a process over HTTP, on TCP or on a Unix socket.
//
//   GET /metrics   Prometheus' text format 0.0.4
//   GET /healthz   200 while the loop of the process responds, otherwise 503 with the reason
//   GET /readyz    200 when the process is ready, otherwise 503 with the reason as text
//
// The owner can add routes. Any other path gets 404 and any other method 405, as text. On a TCP
// port, a request that names another host (Host) or comes from a web page (Origin) gets 403.
// Response headers forbid loading other resources (Content-Security-Policy; a route may allow
// more), content sniffing and caching. With a token the pages may be served to other hosts; a
// request without it gets 401. The threads of the server read and answer the requests. They
// obtain facts from the loop, with one call per request.
//
// Thread: the loop's. Outlives: loop and registry outlive it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/loop/ask.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/http/http_server.h"
#include "shared/observe/metrics/registry.h"

namespace wsync::metrics {

inline constexpr std::chrono::milliseconds kLoopWaitLimit{5'000};
inline constexpr std::size_t kPageConnections = 64;  // at once; others wait

struct Readiness {
  bool ready = false;
  std::string reason;  // why not ready, one sentence
};

struct StatusPagesOptions {
  // tcp://127.0.0.1:PORT or ipc:///path (http::listen_to).
  std::string address;
  // Replaces a running process that uses the address. A Unix socket file is taken over. A TCP port
  // is retried until it is free, and a warning is logged.
  bool take_over = false;
  std::string role;  // label of wsync_build_info
  // File with the token that clients must show for every page but /healthz, /readyz and those in
  // `open`; empty: none, and then no address beyond this host is accepted.
  std::string token = {};
  std::vector<std::string> open = {};
};

// Data of the pages. Both functions are called on the loop.
struct StatusFacts {
  std::function<std::vector<Reading>()> readings;
  std::function<Readiness()> readiness;
};

class StatusPages {
 public:
  // Starts to listen and serve. Requests wait until the loop runs. `more` returns additional
  // routes. They run on the server's threads and use the Asker to call the loop. Errors: kBusy if
  // the address is in use; others as http::listen_to() and AccessToken::read().
  [[nodiscard]] static Result<std::unique_ptr<StatusPages>> create(
      Loop& loop, const StatusPagesOptions& options, const Registry& registry, StatusFacts facts,
      const std::function<std::vector<http::Route>(Asker& asker)>& more = {});
  // Calls no function of StatusFacts after it has returned.
  ~StatusPages();
  StatusPages(const StatusPages&) = delete;
  StatusPages& operator=(const StatusPages&) = delete;

  // Listening address, such as "127.0.0.1:9108" or a path. Empty while the port is still in use.
  [[nodiscard]] std::string address() const { return server_ ? server_->address() : ""; }

 private:
  StatusPages(Loop& loop, StatusPagesOptions options, std::optional<http::AccessToken> token,
              const Registry& registry, StatusFacts facts,
              const std::function<std::vector<http::Route>(Asker& asker)>& more);
  [[nodiscard]] std::vector<http::Route> routes(
      const std::function<std::vector<http::Route>(Asker& asker)>& more);
  [[nodiscard]] Result<> serve(Result<http::Listener> listener);
  void listen_again();
  [[nodiscard]] Result<http::Listener> listen() const;
  void metrics(http::Exchange& exchange);
  void healthz(http::Exchange& exchange);
  void readyz(http::Exchange& exchange);

  Loop& loop_;
  const StatusPagesOptions options_;
  const std::optional<http::AccessToken> token_;
  const Registry& registry_;
  const StatusFacts facts_;
  Asker asker_;
  const std::vector<http::Route> routes_;
  Timer retry_;
  bool looking_ = false;            // an attempt to listen is running
  std::unique_ptr<Worker> looker_;  // resolves names, reads /proc; null if not needed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<http::HttpServer> server_;  // declared last: its threads end first
};

}  // namespace wsync::metrics
