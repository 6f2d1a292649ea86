#include "shared/config/address.h"

#include <arpa/inet.h>
#include <charconv>
#include <string>

#include "shared/base/format.h"

namespace wsync::config {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kIpc = "ipc://";
// The path in a Unix socket address holds at most 107 bytes. The rest is reserved for the suffix of
// the lock file beside the socket.
constexpr std::size_t kSocketPathBytes = 100;

bool is_loopback(std::string_view host) {
  if (host == "localhost" || host == "[::1]") return true;
  in_addr address{};
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 &&
         (ntohl(address.s_addr) >> 24U) == 127;
}

}  // namespace

Result<> check_data_address(std::string_view address) {
  const auto malformed = [&] {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("expected tcp://127.0.0.1:PORT (0 to 65535), found '{}'", address));
  };
  if (!address.starts_with(kTcp)) return malformed();
  const std::string_view rest = address.substr(kTcp.size());
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return malformed();
  const std::string_view port_text = rest.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc{} || end != port_text.data() + port_text.size()) return malformed();
  if (!is_loopback(rest.substr(0, colon)))
    return fail(
        ErrorCode::kRefused,
        fmt::format(
            "'{}' is not a loopback address; other hosts are refused, because weights would travel "
            "there without encryption; use ipc:// or a loopback address (127.0.0.1, localhost, "
            "[::1])",
            address));
  return {};
}

Result<> check_pages_address(std::string_view address, bool has_token) {
  const Result<> local = check_control_address(address);
  if (local || local.error().code() != ErrorCode::kRefused || has_token) {
    if (!local && local.error().code() == ErrorCode::kRefused) return {};
    return local;
  }
  return fail(ErrorCode::kRefused,
              fmt::format("'{}' can be reached from other hosts, whose clients must show a token: "
                          "make one with `wsync keys token FILE` and set http.token to that file, "
                          "or use ipc:// or a loopback address (127.0.0.1, localhost, [::1])",
                          address));
}

Result<> check_control_address(std::string_view address) {
  if (address.starts_with(kTcp)) return check_data_address(address);
  const std::string_view path =
      address.starts_with(kIpc) ? address.substr(kIpc.size()) : std::string_view{};
  if (path.empty() || path.front() != '/' || path.size() > kSocketPathBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("expected ipc:///ABSOLUTE/PATH (at most {} bytes) or "
                            "tcp://127.0.0.1:PORT, found '{}'",
                            kSocketPathBytes, address));
  return {};
}

}  // namespace wsync::config
