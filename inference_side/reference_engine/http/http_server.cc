#include "inference_side/reference_engine/http/http_server.h"

#include <utility>

#include "inference_side/reference_engine/http/completions.h"
#include "inference_side/reference_engine/http/control_routes.h"
#include "inference_side/reference_engine/http/replies.h"
#include "shared/observe/http/acceptor.h"

namespace wsync::engine::http {
namespace {

// Beside those of completions, so that an engine whose completions are all taken can be looked at
// and steered.
constexpr std::size_t kControlThreads = 16;

std::vector<Route> all_routes(generation::GenerationService& service, Completions& completions,
                              std::uint32_t world_size) {
  std::vector<Route> routes = control_routes(service, completions, world_size);
  routes.push_back(
      {"POST", "/v1/completions", [&completions](Exchange& e) { completions.answer(e); }});
  return routes;
}

class Server final : public HttpServer {
 public:
  Server(const HttpServerOptions& options, generation::GenerationService& service)
      : completions_({.at_once = options.threads, .has_tokenizer = options.has_tokenizer}, service),
        routes_(all_routes(service, completions_, options.world_size), error_page) {}

  Result<> open(wsync::http::Listener listener, std::size_t threads) {
    acceptor_ = WSYNC_TRY(wsync::http::Acceptor::create(
        std::move(listener), threads,
        [this](Connection& connection) { return routes_.serve(connection); }));
    return {};
  }

  [[nodiscard]] std::uint16_t port() const noexcept override { return acceptor_->port(); }
  void start() override { acceptor_->start(); }
  void stop() override { acceptor_->stop(); }

 private:
  Completions completions_;
  wsync::http::Routes routes_;
  std::unique_ptr<wsync::http::Acceptor> acceptor_;  // stops before the others go
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpServerOptions& options,
                                                       generation::GenerationService& service) {
  if (options.threads == 0)
    return fail(ErrorCode::kInvalidInput, "threads is 0; expected 1 or more completions at once");
  auto listener = WSYNC_TRY(wsync::http::listen_on(options.host, options.port));
  auto server = std::make_unique<Server>(options, service);
  WSYNC_TRY(server->open(std::move(listener), options.threads + kControlThreads));
  return server;
}

}  // namespace wsync::engine::http
