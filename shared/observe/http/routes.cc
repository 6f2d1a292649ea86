#include "shared/observe/http/routes.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/observe/http/listener.h"
#include "shared/weights/json_text.h"

namespace wsync::http {
namespace {

// The connection whose request this thread answers: the library gives its handlers the request
// alone.
thread_local Connection* answered_connection = nullptr;

Connection& current_connection() {
  WSYNC_CHECK(answered_connection != nullptr, "handlers run inside of Routes::serve()");
  return *answered_connection;
}

std::string too_large_sentence() {
  return fmt::format("the body is larger than {} bytes; send less in one request", kMaxBodyBytes);
}

// For what the library refuses by itself.
std::string library_sentence(int status) {
  if (status == 413) return too_large_sentence();
  if (status == 400) return "the request is not HTTP/1.1 as this server reads it";
  return "the request could not be answered";
}

// Refuses a body that is too large before the client sends it.
int expect_continue(const httplib::Request&, httplib::Response& response) {
  if (current_connection().head().body_bytes <= kMaxBodyBytes) return 100;
  response.status = 413;
  return 413;
}

// By the one Host header, with or without a port.
bool names_this_host(const httplib::Request& request) {
  if (request.get_header_value_count("Host") != 1) return false;
  std::string host = request.get_header_value("Host");
  const std::size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) host.resize(colon);
  std::ranges::transform(host, host.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return is_loopback(host);
}

void finish_headers(const httplib::Request&, httplib::Response& response) {
  response.headers.erase("Keep-Alive");  // without promises how long
  if (current_connection().reusable()) return;
  response.headers.erase("Connection");
  response.set_header("Connection", "close");
}

}  // namespace

Routes::Routes(std::vector<Route> routes, ErrorPage error_page, RoutesOptions options)
    : routes_(std::move(routes)), error_page_(std::move(error_page)), options_(std::move(options)) {
  // Anything but none: the library writes an answer only while it believes that it listens.
  svr_sock_ = 0;
  for (const Route& route : routes_) add(route);
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    return check_route(request, response);
  });
  set_post_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    for (const auto& [name, value] : options_.headers)
      if (!response.has_header(name)) response.set_header(name, value);
    finish_headers(request, response);
  });
  set_expect_100_continue_handler(expect_continue);
  set_exception_handler(
      [this](const httplib::Request&, httplib::Response& response, std::exception_ptr failure) {
        set_exception(response, std::move(failure));
      });
  set_error_handler(
      HandlerWithResponse([this](const httplib::Request&, httplib::Response& response) {
        if (response.body.empty()) {  // refused by the library itself
          current_connection().close_after();
          set_error(response, response.status, library_sentence(response.status), {});
        }
        return HandlerResponse::Handled;
      }));
}

void Routes::set_error(httplib::Response& response, int status, std::string_view message,
                       std::string_view code) const {
  Page page = error_page_(status, message, code);
  response.status = status;
  response.set_content(std::move(page.body), page.type);
}

void Routes::set_exception(httplib::Response& response, std::exception_ptr failure) const {
  std::string what = "of no known kind";
  try {
    std::rethrow_exception(std::move(failure));
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  log_error("an HTTP request ended with an exception: {}", what);
  set_error(response, 500, "an internal error; the log of this process has more", "internal_error");
}

// False: the answer says why.
bool Routes::read_body(Exchange& exchange) const {
  switch (exchange.connection.read_body(exchange.body)) {
    case Connection::BodyEnd::kWhole:
      return true;
    case Connection::BodyEnd::kTooLarge:
      set_error(exchange.response, 413, too_large_sentence(), {});
      return false;
    case Connection::BodyEnd::kBroken:
      set_error(exchange.response, 400, "the body ended early, came too slowly or had a bad chunk",
                {});
      return false;
  }
  return false;
}

void Routes::add(const Route& route) {
  if (route.method == "GET") {
    Get(route.path,
        [handle = route.handle](const httplib::Request& request, httplib::Response& response) {
          Exchange exchange{request, response, current_connection(), {}};
          handle(exchange);
        });
    return;
  }
  WSYNC_CHECK(route.method == "POST", "routes are of GET or POST");
  // With a reader, which is not used, or the library would read the body: without a limit, and
  // chunks that are none as well.
  Post(route.path,
       [this, handle = route.handle](const httplib::Request& request, httplib::Response& response,
                                     const httplib::ContentReader&) {
         Exchange exchange{request, response, current_connection(), {}};
         if (read_body(exchange)) handle(exchange);
       });
}

httplib::Server::HandlerResponse Routes::check_route(const httplib::Request& request,
                                                     httplib::Response& response) const {
  // Pages in a browser say where they come from; none of them has business here.
  if (request.has_header("Origin")) {
    set_error(response, 403, "this server answers no requests of web pages (Origin)", {});
    return HandlerResponse::Handled;
  }
  if (options_.loopback_only && !names_this_host(request)) {
    set_error(response, 403,
              fmt::format("Host is {}; expected localhost or a loopback address",
                          quote_text(request.get_header_value("Host"))),
              {});
    return HandlerResponse::Handled;
  }
  const std::string_view method =
      request.method == "HEAD" ? "GET" : std::string_view(request.method);
  std::string allowed;
  for (const Route& route : routes_) {
    if (route.path != request.path) continue;
    if (route.method == method) return HandlerResponse::Unhandled;
    allowed = route.method == "GET" ? "GET, HEAD" : route.method;
  }
  if (allowed.empty()) {
    set_error(response, 404, fmt::format("there is no {} here", quote_text(request.path)),
              "not_found");
    return HandlerResponse::Handled;
  }
  response.set_header("Allow", allowed);
  set_error(response, 405,
            fmt::format("{} is asked for with {}; expected {}", quote_text(request.path),
                        request.method, allowed),
            "method_not_allowed");
  return HandlerResponse::Handled;
}

bool Routes::serve(Connection& connection) {
  do {
    switch (connection.read_head()) {
      case Connection::Next::kGone:
        return false;
      case Connection::Next::kRefused: {
        const Page page = error_page_(connection.head().status, connection.head().sentence, {});
        std::string headers;
        for (const auto& [name, value] : options_.headers)
          headers += fmt::format("{}: {}\r\n", name, value);
        if (connection.send_all(fmt::format(
                "HTTP/1.1 {} Refused\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: "
                "close\r\n\r\n{}",
                connection.head().status, page.type, page.body.size(), headers, page.body)))
          connection.linger();
        return false;
      }
      case Connection::Next::kRequest:
        break;
    }
    if (!answer(connection)) return false;
  } while (connection.has_more());
  return true;
}

bool Routes::answer(Connection& connection) {
  bool closed = false;
  bool written = false;
  answered_connection = &connection;
  try {
    written = process_request(connection, connection.closes(), closed,
                              [](httplib::Request& request) { request.ranges.clear(); });
  } catch (const std::exception& error) {
    log_error("an HTTP answer ended with an exception: {}", error.what());
  }
  answered_connection = nullptr;
  if (!written || connection.stopping()) return false;
  if (connection.reusable() && !closed) return true;
  if (!connection.reusable()) connection.linger();
  return false;
}

}  // namespace wsync::http
