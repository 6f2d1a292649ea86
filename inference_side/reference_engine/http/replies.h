// Answers of an engine's routes: JSON, and errors in OpenAI's form.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "shared/base/error.h"
#include "shared/observe/http/http_server.h"

namespace wsync::engine::http {

using wsync::http::Connection;
using wsync::http::Exchange;
using wsync::http::kPollMs;
using wsync::http::kStopGraceMs;
using wsync::http::Route;

void reply(Exchange& exchange, const nlohmann::json& body);
// Sends an error in OpenAI's form.
void reply_error(Exchange& exchange, int status, std::string_view message,
                 std::string_view code = {});
void reply_error(Exchange& exchange, const Error& error);
// An error page in OpenAI's form, for requests that match no route.
[[nodiscard]] wsync::http::Page error_page(int status, std::string_view message,
                                           std::string_view code);

}  // namespace wsync::engine::http
