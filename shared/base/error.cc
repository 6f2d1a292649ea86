#include "shared/base/error.h"

#include <cerrno>
#include <cstring>

namespace wsync {

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidInput:
      return "invalid_input";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kRefused:
      return "refused";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kDeadline:
      return "deadline";
    case ErrorCode::kPeerLost:
      return "peer_lost";
    case ErrorCode::kFenced:
      return "fenced";
    case ErrorCode::kDigestMismatch:
      return "digest_mismatch";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kPartial:
      return "partial";
  }
  return "unknown";
}

Error Error::with_context(std::string_view context) const {
  return Error(code_, std::string(context) + ": " + message_, where_);
}

tl::unexpected<Error> fail_errno(std::string_view what, int errno_value,
                                 std::source_location where) {
  ErrorCode code = ErrorCode::kIo;
  switch (errno_value) {
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      code = ErrorCode::kResourceExhausted;
      break;
    case ENOENT:
      code = ErrorCode::kNotFound;
      break;
    default:
      break;
  }
  char buffer[128] = {};
  const char* text = strerror_r(errno_value, buffer, sizeof buffer);
  return fail(code, std::string(what) + ": " + text, where);
}

}  // namespace wsync
