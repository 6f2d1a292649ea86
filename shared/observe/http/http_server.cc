#include "shared/observe/http/http_server.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/weights/json_text.h"

namespace wsync::http {
namespace {

std::string too_large_sentence() {
  return fmt::format("the body is larger than {} bytes; send less in one request", kMaxBodyBytes);
}

// Returns true if the request has exactly one Host header and it names this host, with or without a
// port.
bool names_this_host(const Request& request) {
  if (request.count_headers("Host") != 1) return false;
  std::string host = *request.header("Host");
  const std::size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) host.resize(colon);
  std::ranges::transform(host, host.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return is_loopback(host);
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(Listener listener, std::vector<Route> routes,
                                                       ErrorPage error_page,
                                                       HttpServerOptions options) {
  const std::size_t threads = options.threads;
  const ServerLimits limits = options.limits;
  std::unique_ptr<HttpServer> server(
      new HttpServer(std::move(routes), std::move(error_page), std::move(options)));
  server->acceptor_ = WSYNC_TRY(Acceptor::create(
      std::move(listener), threads,
      [self = server.get()](Connection& connection) { return self->serve(connection); }, limits));
  return server;
}

HttpServer::HttpServer(std::vector<Route> routes, ErrorPage error_page, HttpServerOptions options)
    : routes_(std::move(routes)), error_page_(std::move(error_page)), options_(std::move(options)) {
  for (const Route& route : routes_)
    WSYNC_CHECK(route.method == "GET" || route.method == "POST", "routes are of GET or POST");
}

void HttpServer::set_error(Response& response, int status, std::string_view message,
                           std::string_view code) const {
  Page page = error_page_(status, message, code);
  response.status = status;
  response.stream = nullptr;
  response.set_content(std::move(page.body), page.type);
}

// Serves all requests that have arrived on the connection. Returns false if the connection has
// ended.
bool HttpServer::serve(Connection& connection) {
  do {
    switch (connection.read_head()) {
      case Connection::Next::kGone:
        return false;
      case Connection::Next::kRefused:
        refuse(connection);
        return false;
      case Connection::Next::kRequest:
        break;
    }
    if (!answer(connection)) return false;
  } while (connection.has_more());
  return true;
}

void HttpServer::refuse(Connection& connection) const {
  Response response;
  set_error(response, connection.head().status, connection.head().sentence);
  if (connection.send_all(head_of(response, false, true, true) + response.body))
    connection.linger();
}

// Returns false if no further request can be read from this connection.
bool HttpServer::answer(Connection& connection) {
  Exchange exchange{
      .request = connection.head().request, .response = {}, .connection = connection, .body = {}};
  try {
    handle(exchange);
    if (!send(exchange) || connection.stopping()) return false;
  } catch (const std::exception& error) {
    log_error("an HTTP response ended with an exception: {}", error.what());
    return false;
  }
  if (!connection.reusable()) {
    connection.linger();
    return false;
  }
  return connection.head().keeps_open;
}

void HttpServer::handle(Exchange& exchange) const {
  const Route* route = find_route(exchange);
  if (route == nullptr || (route->method == "POST" && !read_body(exchange))) return;
  std::string problem;
  try {
    route->handle(exchange);
    return;
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = "of an unknown type";
  }
  log_error("an HTTP request ended with an exception: {}", problem);
  set_error(exchange.response, 500, "an internal error; the log of this process has the details",
            "internal_error");
}

// Returns nullptr if the request has no route; the response then holds the error.
const Route* HttpServer::find_route(Exchange& exchange) const {
  const Request& request = exchange.request;
  // An Origin header shows that a web page makes the request. Web pages have no reason to use this
  // server, so such requests are refused.
  if (request.header("Origin")) {
    set_error(exchange.response, 403,
              "this server does not answer requests from web pages (Origin)");
    return nullptr;
  }
  if (options_.loopback_only && !names_this_host(request)) {
    set_error(exchange.response, 403,
              fmt::format("Host is {}; expected localhost or a loopback address",
                          quote_text(request.header("Host").value_or(""))));
    return nullptr;
  }
  if (!check_token(exchange)) return nullptr;
  const std::string_view method =
      request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string allowed;
  for (const Route& route : routes_) {
    if (route.path != request.path) continue;
    if (route.method == method) return &route;
    allowed = route.method == "GET" ? "GET, HEAD" : route.method;
  }
  if (allowed.empty()) {
    set_error(exchange.response, 404,
              fmt::format("this server has no {}", quote_text(request.path)), "not_found");
    return nullptr;
  }
  exchange.response.set_header("Allow", allowed);
  set_error(exchange.response, 405,
            fmt::format("{} was requested with {}; expected {}", quote_text(request.path),
                        request.method, allowed),
            "method_not_allowed");
  return nullptr;
}

// Returns false if the request must show the token and does not; the response then says so.
bool HttpServer::check_token(Exchange& exchange) const {
  if (!options_.token ||
      std::ranges::find(options_.open, exchange.request.path) != options_.open.end() ||
      options_.token->admits(exchange.request))
    return true;
  ++refused_;
  // Browsers ask their user for a name and a password only if Basic is offered.
  exchange.response.set_header("WWW-Authenticate", "Basic realm=\"wsync\", Bearer realm=\"wsync\"");
  set_error(exchange.response, 401,
            exchange.request.header("Authorization")
                ? "the token that this request shows is not that of this server"
                : "this server needs a token: send `Authorization: Bearer TOKEN`, or the token as "
                  "the password of any user",
            "unauthorized");
  return false;
}

// Returns false on an error; the response then holds it.
bool HttpServer::read_body(Exchange& exchange) const {
  switch (exchange.connection.read_body(exchange.body)) {
    case Connection::BodyEnd::kWhole:
      return true;
    case Connection::BodyEnd::kTooLarge:
      set_error(exchange.response, 413, too_large_sentence());
      return false;
    case Connection::BodyEnd::kBroken:
      set_error(exchange.response, 400,
                "the body ended early, arrived too slowly or had an invalid chunk");
      return false;
  }
  return false;
}

std::string HttpServer::head_of(const Response& response, bool chunked, bool sized,
                                bool closes) const {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  for (const auto& [name, value] : options_.headers)
    if (!response.has_header(name)) head += fmt::format("{}: {}\r\n", name, value);
  if (!response.type.empty()) head += fmt::format("Content-Type: {}\r\n", response.type);
  if (sized) head += fmt::format("Content-Length: {}\r\n", response.body.size());
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  if (closes) head += "Connection: close\r\n";
  return head + "\r\n";
}

// Returns false if the response was not sent completely.
bool HttpServer::send(Exchange& exchange) const {
  const Response& response = exchange.response;
  Connection& connection = exchange.connection;
  const bool streams = response.stream != nullptr;
  const bool chunked = streams && !exchange.request.http_1_0;
  // An HTTP/1.0 client detects the end of a streamed body by the end of the connection.
  if (streams && !chunked) connection.close_after();
  const bool closes = !connection.reusable() || !connection.head().keeps_open;
  std::string head = head_of(response, chunked, !streams, closes);
  if (exchange.request.method == "HEAD") return connection.send_all(head);
  if (!streams) return connection.send_all(head + response.body);
  if (!connection.send_all(head)) return false;
  const bool complete = response.stream([&](std::string_view piece) {
    // An empty chunk would end the body (RFC 9112, section 7.1).
    if (piece.empty() || !chunked) return connection.send_all(piece);
    return connection.send_all(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
  });
  return complete && (!chunked || connection.send_all("0\r\n\r\n"));
}

}  // namespace wsync::http
