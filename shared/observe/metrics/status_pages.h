// StatusPages: what a process answers about itself over HTTP, on loopback or a Unix socket.
//
//   GET /metrics   Prometheus' text format 0.0.4
//   GET /healthz   200 while the loop of the process answers; 503 with the reason otherwise
//   GET /readyz    200 when it is ready, 503 with the reason as text otherwise
//
// More routes can be given. Everything else is 404 or 405, as text. On a port, a request for
// another host than this one (Host) and one of another page (Origin) are 403. Every answer forbids
// what it need not do (Content-Security-Policy; a route may allow more), to be read as another type
// and to be kept. Requests are read and answered by threads of their own; facts are asked of the
// loop, one question for each request.
//
// Thread: the loop's.
// Outlives: loop and registry outlive it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shared/loop/ask.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/observe/http/http_server.h"
#include "shared/observe/metrics/registry.h"

namespace wsync::metrics {

inline constexpr std::chrono::milliseconds kLoopWaitLimit{5'000};
inline constexpr std::size_t kPageConnections = 64;  // at once; more of them wait

struct Readiness {
  bool ready = false;
  std::string reason;  // why not, one sentence
};

struct StatusPagesOptions {
  // tcp://127.0.0.1:PORT or ipc:///path (http::listen_to).
  std::string address;
  // A process that holds the address and lives is replaced by this one: a socket file is taken
  // over; a port is asked for again until it is free, and the log says so.
  bool take_over = false;
  std::string role;  // of wsync_build_info
};

// What the pages show; both are called on the loop.
struct StatusFacts {
  std::function<std::vector<Reading>()> readings;
  std::function<Readiness()> readiness;
};

class StatusPages {
 public:
  // Listens and answers from then on; questions wait until the loop runs. `more`: routes beside
  // those above; they run on the server's threads and may ask by asker(). kBusy: somebody listens
  // there; other errors as http::listen_to().
  [[nodiscard]] static Result<std::unique_ptr<StatusPages>> create(
      Loop& loop, const StatusPagesOptions& options, const Registry& registry, StatusFacts facts,
      const std::function<std::vector<http::Route>(Asker& asker)>& more = {});
  // No fact is asked for from here on.
  ~StatusPages();
  StatusPages(const StatusPages&) = delete;
  StatusPages& operator=(const StatusPages&) = delete;

  // Where it listens, "127.0.0.1:9108" or a path; empty while the port is not free yet.
  [[nodiscard]] std::string address() const { return server_ ? server_->address() : ""; }

 private:
  StatusPages(Loop& loop, StatusPagesOptions options, const Registry& registry, StatusFacts facts,
              const std::function<std::vector<http::Route>(Asker& asker)>& more);
  [[nodiscard]] std::vector<http::Route> routes(
      const std::function<std::vector<http::Route>(Asker& asker)>& more);
  [[nodiscard]] Result<> serve(Result<http::Listener> listener);
  void listen_again();
  void metrics(http::Exchange& exchange);
  void healthz(http::Exchange& exchange);
  void readyz(http::Exchange& exchange);

  Loop& loop_;
  const StatusPagesOptions options_;
  const Registry& registry_;
  const StatusFacts facts_;
  Asker asker_;
  const std::vector<http::Route> routes_;
  Timer retry_;
  bool looking_ = false;            // whether the port is free
  std::unique_ptr<Worker> looker_;  // resolves names and reads /proc; null: never needed
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<http::HttpServer> server_;  // its threads end before what they use
};

}  // namespace wsync::metrics
