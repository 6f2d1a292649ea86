#include "deploy/cli/own_address.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <optional>
#include <sys/socket.h>

#include "shared/base/format.h"
#include "shared/base/tcp_address.h"
#include "shared/base/unique_fd.h"

namespace wsync::cli {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

// A datagram socket that is connected sends nothing, and the kernel chooses its own address.
std::optional<std::string> own_address_of(const addrinfo& target) {
  const UniqueFd socket(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), target.ai_addr, target.ai_addrlen) != 0)
    return std::nullopt;
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return std::nullopt;
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, host.data(), host.size(),
                    nullptr, 0, NI_NUMERICHOST) != 0)
    return std::nullopt;
  return host.data();
}

Result<std::string> own_address_towards_one(const std::string& address) {
  if (address.starts_with("ipc://")) return std::string();
  const TcpAddress target = WSYNC_TRY(parse_tcp_address(address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(target.port);
  if (const int code = ::getaddrinfo(target.host.c_str(), port.c_str(), &hints, &found); code != 0)
    return fail(ErrorCode::kNotFound, fmt::format("{}: the name '{}' has no address: {}", address,
                                                  target.host, ::gai_strerror(code)));
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  int why = 0;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    const auto own = own_address_of(*one);
    if (!own) {
      why = errno;
      continue;
    }
    const TcpAddress own_tcp{.host = *own, .port = 0};
    return own_tcp.is_loopback() ? std::string() : *own;
  }
  return fail(ErrorCode::kIo, fmt::format("{}: this host has no way to '{}': {}", address,
                                          target.host, std::strerror(why)));
}

}  // namespace

Result<std::string> own_address_towards(const std::string& addresses) {
  Result<std::string> own = fail(ErrorCode::kInvalidInput, "an address is missing");
  for (const std::string_view address : split_addresses(addresses))
    if (own = own_address_towards_one(std::string(address)); own) return own;
  return own;
}

}  // namespace wsync::cli
