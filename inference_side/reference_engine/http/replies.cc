#include "inference_side/reference_engine/http/replies.h"

#include <utility>

#include "inference_side/reference_engine/http/openai.h"

namespace wsync::engine::http {
namespace {

constexpr const char* kJsonType = "application/json";

}  // namespace

void reply(Exchange& exchange, const nlohmann::json& body) {
  exchange.response.set_content(json_line(body), kJsonType);
}

wsync::http::Page error_page(int status, std::string_view message, std::string_view code) {
  return {.body = json_line(error_json(status, message, code)), .type = kJsonType};
}

void reply_error(Exchange& exchange, int status, std::string_view message, std::string_view code) {
  wsync::http::Page page = error_page(status, message, code);
  exchange.response.status = status;
  exchange.response.set_content(std::move(page.body), page.type);
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
    case ErrorCode::kPartial:
      break;
  }
  reply_error(exchange, status, error.message(), error_code_name(error.code()));
}

}  // namespace wsync::engine::http
