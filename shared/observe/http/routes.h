// Routes: the HTTP library's reading of requests and writing of answers, over our connections; and
// which handler answers what.
#pragma once

#include <functional>
#include <httplib.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/observe/http/connection.h"

namespace wsync::http {

// One request and its answer.
struct Exchange {
  const httplib::Request& request;
  httplib::Response& response;
  Connection& connection;
  std::string body;
};

struct Route {
  std::string method;  // "GET" (and with it HEAD) or "POST"
  std::string path;    // without special characters of regular expressions
  std::function<void(Exchange&)> handle;
};

struct Page {
  std::string body;
  std::string type;  // Content-Type
};
// How errors are written. `code`: a word for programs, may be empty.
using ErrorPage = std::function<Page(int status, std::string_view message, std::string_view code)>;

struct RoutesOptions {
  // Requests for another host than this one (Host) are refused: of a web page whose name has been
  // pointed here.
  bool loopback_only = false;
  std::vector<std::pair<std::string, std::string>> headers;  // of every answer
};

// Thread: any, several at once.
class Routes final : private httplib::Server {
 public:
  Routes(std::vector<Route> routes, ErrorPage error_page, RoutesOptions options = {});

  // Answers the requests that the connection has. False: it has ended.
  [[nodiscard]] bool serve(Connection& connection);

 private:
  bool answer(Connection& connection);
  void add(const Route& route);
  [[nodiscard]] bool read_body(Exchange& exchange) const;
  void set_error(httplib::Response& response, int status, std::string_view message,
                 std::string_view code) const;
  void set_exception(httplib::Response& response, std::exception_ptr failure) const;
  [[nodiscard]] HandlerResponse check_route(const httplib::Request& request,
                                            httplib::Response& response) const;

  std::vector<Route> routes_;
  ErrorPage error_page_;
  RoutesOptions options_;
};

}  // namespace wsync::http
