// Error and Result: how every function of wsync reports failure. No exception leaves the folder
// that throws it.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace wsync {

// Kind of a failure. It decides the exit code and how the protocol reacts.
enum class ErrorCode : std::uint8_t {
  kInvalidInput,       // a file, message, config or argument breaks a rule (exit code 2)
  kNotFound,           // something named does not exist
  kRefused,            // the peer or a protocol rule rejects it; nothing changed
  kBusy,               // a resource stayed in use until the deadline
  kDeadline,           // no answer before the deadline
  kPeerLost,           // the other process is gone
  kFenced,             // a higher fence has been seen
  kDigestMismatch,     // bytes differ from what their digest promises
  kResourceExhausted,  // memory, disk or descriptors
  kCancelled,          // stopped on request
  kIo,                 // a system call failed
  kInternal,           // a bug in wsync
  kPartial,            // decided, but not every replica serves it: it continues
};
// The numbers are part of messages, so a new code goes to the end.
inline constexpr ErrorCode kLastErrorCode = ErrorCode::kPartial;

// Returns the stable lower-case name, as printed in JSON ("invalid_input").
[[nodiscard]] std::string_view error_code_name(ErrorCode code) noexcept;

// One failure: a code, one sentence (what, where, expected, found, what to do) and the source line
// that created it.
class Error {
 public:
  Error(ErrorCode code, std::string message,
        std::source_location where = std::source_location::current())
      : code_(code), message_(std::move(message)), where_(where) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::source_location& where() const noexcept { return where_; }
  // Returns the same error with "context: " in front of its sentence.
  [[nodiscard]] Error with_context(std::string_view context) const;

 private:
  ErrorCode code_;
  std::string message_;
  std::source_location where_;
};

template <class T = void>
using Result = tl::expected<T, Error>;

// Creates the failed side of a Result: `return fail(ErrorCode::kIo, "...")`.
[[nodiscard]] inline tl::unexpected<Error> fail(
    ErrorCode code, std::string message,
    std::source_location where = std::source_location::current()) {
  return tl::unexpected<Error>(Error(code, std::move(message), where));
}
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}
// Creates the error of a failed system call: "<what>: <strerror(errno_value)>". ENOMEM, ENOSPC,
// EMFILE and ENFILE become kResourceExhausted, ENOENT becomes kNotFound, and all others become kIo.
[[nodiscard]] tl::unexpected<Error> fail_errno(
    std::string_view what, int errno_value,
    std::source_location where = std::source_location::current());

}  // namespace wsync

namespace wsync::detail {
// Returns the value of a successful Result, or nothing for a Result<void>. The value may be a guard
// whose scope would end at once, so Clang builds reject an unused value.
template <class Value>
[[nodiscard]] constexpr Value take_value(Result<Value>&& result) {
  return *std::move(result);
}
constexpr void take_value(Result<void>&&) {}
}  // namespace wsync::detail

// Evaluates to the value of a Result expression, or returns its error from the enclosing function:
//   const Layout layout = WSYNC_TRY(read_layout(file));
//   WSYNC_TRY(file.sync());
//   (void)WSYNC_TRY(check_layout(file));  // the value is not needed
// This is a statement expression (an extension of GCC and Clang), because no expression of standard
// C++ can return from the enclosing function. __COUNTER__ gives each use its own variable, so that
// one use may be part of the expression of another.
#define WSYNC_TRY(...) WSYNC_TRY_COUNTED(__COUNTER__, __VA_ARGS__)
#define WSYNC_TRY_COUNTED(counter, ...) WSYNC_TRY_NUMBERED(counter, __VA_ARGS__)
#define WSYNC_TRY_NUMBERED(number, ...) WSYNC_TRY_NAMED(wsync_try_result_##number, __VA_ARGS__)
#define WSYNC_TRY_NAMED(name, ...)                               \
  __extension__({                                                \
    auto name = (__VA_ARGS__);                                   \
    if (!name) return ::tl::unexpected(std::move(name).error()); \
    ::wsync::detail::take_value(std::move(name));                \
  })
