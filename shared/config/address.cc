#include "shared/config/address.h"

#include <algorithm>
#include <string>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/tcp_address.h"

namespace wsync::config {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kIpc = "ipc://";
// The path in a Unix socket address holds at most 107 bytes. The rest is reserved for the suffix of
// the lock file beside the socket.
constexpr std::size_t kSocketPathBytes = 100;

Result<> malformed(std::string_view address) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("expected tcp://HOST:PORT (0 to 65535), such as tcp://127.0.0.1:7000, "
                          "tcp://[::1]:7000 or tcp://trainer0:7000, found '{}'",
                          address));
}

}  // namespace

Result<> check_data_address(std::string_view address) {
  const auto parsed = parse_tcp_address(address);
  if (!parsed) return malformed(address);
  if (!parsed->numeric())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("expected a numeric address at which this process can listen, found "
                            "'{}': a name goes into `advertise`",
                            address));
  return {};
}

Result<> check_control_address(std::string_view address) {
  if (address.starts_with(kTcp))
    return parse_tcp_address(address) ? Result<>() : malformed(address);
  const std::string_view path =
      address.starts_with(kIpc) ? address.substr(kIpc.size()) : std::string_view{};
  if (path.empty() || path.front() != '/' || path.size() > kSocketPathBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("expected ipc:///ABSOLUTE/PATH (at most {} bytes) or "
                            "tcp://HOST:PORT, found '{}'",
                            kSocketPathBytes, address));
  return {};
}

Result<> check_coordinator_addresses(std::string_view addresses) {
  const std::vector<std::string_view> all = split_addresses(addresses);
  if (all.size() == 1) return check_control_address(addresses);
  for (const std::string_view each : all) {
    if (!each.starts_with(kTcp))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("expected tcp://HOST:PORT in a list of several addresses, found '{}' "
                              "in '{}'",
                              each, addresses));
    WSYNC_TRY(check_control_address(each));
  }
  return {};
}

Result<> check_pages_address(std::string_view address, bool has_token) {
  WSYNC_TRY(check_control_address(address));
  if (has_token || !is_beyond_this_host(address)) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("'{}' can be reached from other hosts, whose clients must show a token: "
                          "make one with `wsync keys token FILE` and set http.token to that file, "
                          "or use ipc:// or a loopback address (127.0.0.1, localhost, [::1])",
                          address));
}

Result<> check_advertised_host(std::string_view host) {
  const std::string parsed = WSYNC_TRY(parse_host(host));
  const TcpAddress address{parsed, 0};
  if (!address.is_any() && !address.is_loopback()) return {};
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("expected a name or an address by which other hosts reach this one, found "
                  "'{}'",
                  host));
}

bool is_beyond_this_host(std::string_view address) {
  return std::ranges::any_of(split_addresses(address), [](std::string_view each) {
    const auto parsed = parse_tcp_address(each);
    return parsed && !parsed->is_loopback();
  });
}

}  // namespace wsync::config
