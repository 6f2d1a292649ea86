// HttpServer: answers HTTP/1.1 requests on a listening socket by routes, with bounds on the heads,
// bodies, times and connections of its clients (connection.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shared/observe/http/acceptor.h"
#include "shared/observe/http/connection.h"
#include "shared/observe/http/http_message.h"
#include "shared/observe/http/listener.h"

namespace wsync::http {

// One request and its response.
struct Exchange {
  const Request& request;
  Response response;
  Connection& connection;
  std::string body;  // of a POST
};

struct Route {
  std::string method;  // "GET" (and with it HEAD) or "POST"
  std::string path;
  std::function<void(Exchange&)> handle;
};

struct Page {
  std::string body;
  std::string type;  // Content-Type
};
// How errors are written. `code`: a word for programs, may be empty.
using ErrorPage = std::function<Page(int status, std::string_view message, std::string_view code)>;

struct HttpServerOptions {
  // Connections that are served at once; others wait. Threads are made when they are needed.
  std::size_t threads = 8;
  ServerLimits limits;
  // Requests for another host than this one (Host) are refused: a web page of another site could
  // reach this server by a name of its own that resolves to this address.
  bool loopback_only = false;
  NamedValues headers;  // of every response that does not set them itself
};

// Thread: its owner's, but for stop(), which any thread may call; handlers run on its own threads,
// several at once.
class HttpServer {
 public:
  // Answers nobody before start(). Errors: no descriptor.
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
  // Accepts no more connections, drops those without a request, and returns when all requests that
  // are served have ended: handlers see Connection::stopping().
  void stop() { acceptor_->stop(); }

 private:
  HttpServer(std::vector<Route> routes, ErrorPage error_page, HttpServerOptions options);

  bool serve(Connection& connection);
  bool answer(Connection& connection);
  void refuse(Connection& connection) const;
  void handle(Exchange& exchange) const;
  [[nodiscard]] const Route* find_route(Exchange& exchange) const;
  [[nodiscard]] bool read_body(Exchange& exchange) const;
  void set_error(Response& response, int status, std::string_view message,
                 std::string_view code = {}) const;
  [[nodiscard]] bool send(Exchange& exchange) const;
  [[nodiscard]] std::string head_of(const Response& response, bool chunked, bool sized,
                                    bool closes) const;

  const std::vector<Route> routes_;
  const ErrorPage error_page_;
  const HttpServerOptions options_;
  std::unique_ptr<Acceptor> acceptor_;  // its threads end before what they use
};

}  // namespace wsync::http
