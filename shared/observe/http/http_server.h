// HttpServer: serves HTTP/1.1 requests on a listening socket by routes. Heads, bodies, waits and
// connections of clients are limited (connection.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/observe/http/acceptor.h"
#include "shared/observe/http/access_token.h"
#include "shared/observe/http/connection.h"
#include "shared/observe/http/http_message.h"
#include "shared/observe/http/listener.h"

namespace wsync::http {

// One request and its response.
struct Exchange {
  const Request& request;
  Response response;
  Connection& connection;
  std::string body;  // body of a POST
};

struct Route {
  std::string method;  // "GET" (also serves HEAD) or "POST"
  std::string path;
  std::function<void(Exchange&)> handle;
};

struct Page {
  std::string body;
  std::string type;  // Content-Type
};
// Formats an error response. `code`: an identifier for programs; may be empty.
using ErrorPage = std::function<Page(int status, std::string_view message, std::string_view code)>;

struct HttpServerOptions {
  // Maximum number of connections served at once; others wait. Threads are created on demand.
  std::size_t threads = 8;
  ServerLimits limits;
  // Refuses requests whose Host header names another host. Otherwise a web page could reach this
  // server through its own domain name that resolves to this address (DNS rebinding).
  bool loopback_only = false;
  // Every request must show this token, except those for the paths in `open`. Without the token no
  // request learns which routes there are. std::nullopt: every client is served.
  std::optional<AccessToken> token = {};
  std::vector<std::string> open = {};
  NamedValues headers;  // added to every response that does not set them
};

// Thread: its owner's. Any thread may call stop(). Handlers run on the server's threads, several at
// once.
class HttpServer {
 public:
  // Serves no requests before start(). Fails if no descriptor is available.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> create(Listener listener,
                                                                  std::vector<Route> routes,
                                                                  ErrorPage error_page,
                                                                  HttpServerOptions options);
  ~HttpServer() { stop(); }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return acceptor_->port(); }
  [[nodiscard]] const std::string& address() const noexcept { return acceptor_->address(); }
  void start() { acceptor_->start(); }
  // Requests that were refused because they did not show the token. Thread: any.
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(); }
  // Stops accepting, closes connections without an active request, and returns when all active
  // requests have ended. Handlers can check Connection::stopping().
  void stop() { acceptor_->stop(); }

 private:
  HttpServer(std::vector<Route> routes, ErrorPage error_page, HttpServerOptions options);

  bool serve(Connection& connection);
  bool answer(Connection& connection);
  void refuse(Connection& connection) const;
  void handle(Exchange& exchange) const;
  [[nodiscard]] const Route* find_route(Exchange& exchange) const;
  [[nodiscard]] bool check_token(Exchange& exchange) const;
  [[nodiscard]] bool read_body(Exchange& exchange) const;
  void set_error(Response& response, int status, std::string_view message,
                 std::string_view code = {}) const;
  [[nodiscard]] bool send(Exchange& exchange) const;
  [[nodiscard]] std::string head_of(const Response& response, bool chunked, bool sized,
                                    bool closes) const;

  const std::vector<Route> routes_;
  const ErrorPage error_page_;
  const HttpServerOptions options_;
  mutable std::atomic<std::uint64_t> refused_ = 0;
  std::unique_ptr<Acceptor> acceptor_;  // declared last: its threads end first
};

}  // namespace wsync::http
