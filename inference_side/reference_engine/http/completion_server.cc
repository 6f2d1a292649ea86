#include "inference_side/reference_engine/http/completion_server.h"

#include <utility>

#include "inference_side/reference_engine/http/completions.h"
#include "inference_side/reference_engine/http/control_routes.h"
#include "inference_side/reference_engine/http/replies.h"
#include "shared/base/format.h"
#include "shared/observe/http/http_server.h"
#include "shared/observe/http/listener.h"

namespace wsync::engine::http {
namespace {

// Additional threads for the control routes, so that an engine with the maximum number of
// completions can still be observed and controlled.
constexpr std::size_t kControlThreads = 16;

std::vector<Route> all_routes(generation::GenerationService& service, Completions& completions) {
  std::vector<Route> routes = control_routes(service);
  routes.push_back(
      {"POST", "/v1/completions", [&completions](Exchange& e) { completions.answer(e); }});
  return routes;
}

}  // namespace

Result<std::unique_ptr<CompletionServer>> CompletionServer::create(
    const CompletionServerOptions& options, generation::GenerationService& service) {
  if (options.threads == 0)
    return fail(ErrorCode::kInvalidInput, "threads is 0; expected 1 or more completions at once");
  auto listener = WSYNC_TRY(wsync::http::listen_on(options.host, options.port));
  if (!options.token && !wsync::http::is_loopback(options.host))
    return fail(ErrorCode::kRefused,
                fmt::format("{} can be reached from other hosts, whose clients must show a token: "
                            "make one with `wsync keys token FILE` and start the engine with "
                            "--http-token FILE, or use a loopback address such as 127.0.0.1",
                            options.host));
  auto completions = std::make_unique<Completions>(
      CompletionOptions{.at_once = options.threads, .has_tokenizer = options.has_tokenizer},
      service);
  auto routes = all_routes(service, *completions);
  auto server =
      WSYNC_TRY(wsync::http::HttpServer::create(std::move(listener), std::move(routes), error_page,
                                                {.threads = options.threads + kControlThreads,
                                                 .token = options.token,
                                                 .open = {"/health", "/ready"}}));
  return std::unique_ptr<CompletionServer>(
      new CompletionServer(std::move(completions), std::move(server)));
}

CompletionServer::CompletionServer(std::unique_ptr<Completions> completions,
                                   std::unique_ptr<wsync::http::HttpServer> server)
    : completions_(std::move(completions)), server_(std::move(server)) {}

CompletionServer::~CompletionServer() = default;

std::uint16_t CompletionServer::port() const noexcept { return server_->port(); }
void CompletionServer::start() { server_->start(); }
void CompletionServer::stop() { server_->stop(); }

}  // namespace wsync::engine::http
