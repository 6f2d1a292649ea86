#include "inference_side/engine/http/routes.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "inference_side/engine/http/openai.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/weights/json_text.h"

namespace wsync::engine::http {
namespace {

constexpr const char* kJsonType = "application/json";

// The connection whose request this thread answers: the library gives its handlers the request
// alone.
thread_local Connection* answered_connection = nullptr;

Connection& current_connection() {
  WSYNC_CHECK(answered_connection != nullptr, "handlers run inside of Routes::serve()");
  return *answered_connection;
}

void set_error(httplib::Response& response, int status, std::string_view message,
               std::string_view code) {
  response.status = status;
  response.set_content(json_line(error_json(status, message, code)), kJsonType);
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

void set_exception(httplib::Response& response, std::exception_ptr failure) {
  std::string what = "of no known kind";
  try {
    std::rethrow_exception(std::move(failure));
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  log_error("an HTTP request ended with an exception: {}", what);
  set_error(response, 500, "an internal error; the engine's log has more", "internal_error");
}

// False: the answer says why.
bool read_body(Exchange& exchange) {
  switch (exchange.connection.read_body(exchange.body)) {
    case Connection::BodyEnd::kWhole:
      return true;
    case Connection::BodyEnd::kTooLarge:
      reply_error(exchange, 413, too_large_sentence());
      return false;
    case Connection::BodyEnd::kBroken:
      reply_error(exchange, 400, "the body ended early, came too slowly or had a bad chunk");
      return false;
  }
  return false;
}

// Refuses a body that is too large before the client sends it.
int expect_continue(const httplib::Request&, httplib::Response& response) {
  if (current_connection().head().body_bytes <= kMaxBodyBytes) return 100;
  response.status = 413;
  return 413;
}

void finish_headers(const httplib::Request&, httplib::Response& response) {
  response.headers.erase("Keep-Alive");  // without promises how long
  if (current_connection().reusable()) return;
  response.headers.erase("Connection");
  response.set_header("Connection", "close");
}

}  // namespace

void reply(Exchange& exchange, const nlohmann::json& body) {
  exchange.response.set_content(json_line(body), kJsonType);
}

void reply_error(Exchange& exchange, int status, std::string_view message, std::string_view code) {
  set_error(exchange.response, status, message, code);
}

void reply_error(Exchange& exchange, const Error& error) {
  int status = 500;
  switch (error.code()) {
    case ErrorCode::kInvalidInput:
      status = 400;
      break;
    case ErrorCode::kNotFound:
      status = 404;
      break;
    case ErrorCode::kResourceExhausted:
      status = 429;
      exchange.response.set_header("Retry-After", "1");
      break;
    case ErrorCode::kCancelled:
    case ErrorCode::kBusy:
      status = 503;
      break;
    case ErrorCode::kDeadline:
      status = 504;
      break;
    case ErrorCode::kRefused:
    case ErrorCode::kPeerLost:
    case ErrorCode::kFenced:
    case ErrorCode::kDigestMismatch:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      break;
  }
  reply_error(exchange, status, error.message(), error_code_name(error.code()));
}

Routes::Routes(std::vector<Route> routes) : routes_(std::move(routes)) {
  // Anything but none: the library writes an answer only while it believes that it listens.
  svr_sock_ = 0;
  for (const Route& route : routes_) add(route);
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    return check_route(request, response);
  });
  set_post_routing_handler(finish_headers);
  set_expect_100_continue_handler(expect_continue);
  set_exception_handler(
      [](const httplib::Request&, httplib::Response& response, std::exception_ptr failure) {
        set_exception(response, std::move(failure));
      });
  set_error_handler(HandlerWithResponse([](const httplib::Request&, httplib::Response& response) {
    if (response.body.empty()) {  // refused by the library itself
      current_connection().close_after();
      set_error(response, response.status, library_sentence(response.status), {});
    }
    return HandlerResponse::Handled;
  }));
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
       [handle = route.handle](const httplib::Request& request, httplib::Response& response,
                               const httplib::ContentReader&) {
         Exchange exchange{request, response, current_connection(), {}};
         if (read_body(exchange)) handle(exchange);
       });
}

httplib::Server::HandlerResponse Routes::check_route(const httplib::Request& request,
                                                     httplib::Response& response) const {
  // Pages in a browser say where they come from; none of them has business here.
  if (request.has_header("Origin")) {
    set_error(response, 403, "this engine answers no requests of web pages (Origin)", {});
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
        const std::string body =
            json_line(error_json(connection.head().status, connection.head().sentence));
        if (connection.send_all(fmt::format(
                "HTTP/1.1 {} Refused\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: "
                "close\r\n\r\n{}",
                connection.head().status, kJsonType, body.size(), body)))
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

}  // namespace wsync::engine::http
