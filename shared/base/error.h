// Error and Result: how every function of wsync reports failure. No exceptions cross a folder.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace wsync {

// What kind of failure an Error is; decides exit codes and what the protocol does next.
enum class ErrorCode : std::uint8_t {
  kInvalidInput,       // a file, message, config or argument breaks a rule (exit code 2)
  kNotFound,           // something named does not exist
  kRefused,            // the peer, or a rule of the protocol, says no; nothing changed
  kBusy,               // a resource stayed in use until the deadline
  kDeadline,           // no answer before the deadline
  kPeerLost,           // the other process went away
  kFenced,             // a higher fence has been seen
  kDigestMismatch,     // bytes differ from what their digest promises
  kResourceExhausted,  // memory, disk or descriptors
  kCancelled,          // stopped on request
  kIo,                 // a system call failed
  kInternal,           // a defect of wsync
};

// The code's stable lower-case name, as printed in JSON ("invalid_input").
[[nodiscard]] std::string_view error_code_name(ErrorCode code) noexcept;

// One failure: a code, one sentence (what, where, expected, found, what to do) and the source line
// that made it.
class Error {
 public:
  Error(ErrorCode code, std::string message,
        std::source_location where = std::source_location::current())
      : code_(code), message_(std::move(message)), where_(where) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::source_location& where() const noexcept { return where_; }
  // The same error with "context: " put before its sentence.
  [[nodiscard]] Error with_context(std::string_view context) const;

 private:
  ErrorCode code_;
  std::string message_;
  std::source_location where_;
};

template <class T = void>
using Result = tl::expected<T, Error>;

// Makes the failed side of a Result: `return fail(ErrorCode::kIo, "...")`.
[[nodiscard]] inline tl::unexpected<Error> fail(
    ErrorCode code, std::string message,
    std::source_location where = std::source_location::current()) {
  return tl::unexpected<Error>(Error(code, std::move(message), where));
}
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}
// A failed system call: "<what>: <strerror(errno_value)>". ENOMEM, ENOSPC, EMFILE and ENFILE become
// kResourceExhausted, ENOENT kNotFound, the rest kIo.
[[nodiscard]] tl::unexpected<Error> fail_errno(
    std::string_view what, int errno_value,
    std::source_location where = std::source_location::current());

}  // namespace wsync

namespace wsync::detail {
// The value of a Result that has one; nothing of a Result<void>. A value that is not used may be a
// guard whose work ends at once, so Clang's builds refuse to drop it.
template <class Value>
[[nodiscard]] constexpr Value take_value(Result<Value>&& result) {
  return *std::move(result);
}
constexpr void take_value(Result<void>&&) {}
}  // namespace wsync::detail

// Yields the value of a Result expression, or returns its error from the enclosing function:
//   const Layout layout = WSYNC_TRY(read_layout(file));
//   WSYNC_TRY(file.sync());
//   (void)WSYNC_TRY(check_layout(file));  // a value that is not needed
// A statement expression of GCC and Clang: standard C++ has no expression that returns from the
// function around it. __COUNTER__ gives each use a variable of its own, so that one use may stand
// in the expression of another.
#define WSYNC_TRY(...) WSYNC_TRY_COUNTED(__COUNTER__, __VA_ARGS__)
#define WSYNC_TRY_COUNTED(counter, ...) WSYNC_TRY_NUMBERED(counter, __VA_ARGS__)
#define WSYNC_TRY_NUMBERED(number, ...) WSYNC_TRY_NAMED(wsync_try_result_##number, __VA_ARGS__)
#define WSYNC_TRY_NAMED(name, ...)                               \
  __extension__({                                                \
    auto name = (__VA_ARGS__);                                   \
    if (!name) return ::tl::unexpected(std::move(name).error()); \
    ::wsync::detail::take_value(std::move(name));                \
  })
