// Routes: the HTTP library's reading of requests and writing of answers, over our connections; and
// which handler answers what.
#pragma once

#include <functional>
#include <httplib.h>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/engine/http/connection.h"
#include "shared/base/error.h"

namespace wsync::engine::http {

// One request and its answer.
struct Exchange {
  const httplib::Request& request;
  httplib::Response& response;
  Connection& connection;
  std::string body;
};

void reply(Exchange& exchange, const nlohmann::json& body);
// In OpenAI's form.
void reply_error(Exchange& exchange, int status, std::string_view message,
                 std::string_view code = {});
void reply_error(Exchange& exchange, const Error& error);

struct Route {
  std::string method;  // "GET" (and with it HEAD) or "POST"
  std::string path;    // without special characters of regular expressions
  std::function<void(Exchange&)> handle;
};

// Thread: any, several at once.
class Routes final : private httplib::Server {
 public:
  explicit Routes(std::vector<Route> routes);

  // Answers the requests that the connection has. False: it has ended.
  [[nodiscard]] bool serve(Connection& connection);

 private:
  bool answer(Connection& connection);
  void add(const Route& route);
  [[nodiscard]] HandlerResponse check_route(const httplib::Request& request,
                                            httplib::Response& response) const;

  std::vector<Route> routes_;
};

}  // namespace wsync::engine::http
