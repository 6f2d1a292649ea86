// The checks of `wsync doctor` that connect to another process.
#include <array>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <vector>

#include "deploy/cli/doctor_checks.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/tcp_address.h"
#include "shared/base/unique_fd.h"
#include "shared/observe/http/access_token.h"

namespace wsync::cli {
namespace {

// Returns 0 if the connection is made before the deadline, otherwise an errno.
int connect_within(const UniqueFd& fd, const sockaddr* address, socklen_t length,
                   std::chrono::milliseconds deadline) {
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), address, length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  const int ready = ::poll(&wait, 1, static_cast<int>(deadline.count()));
  if (ready <= 0) return ready == 0 ? ETIMEDOUT : errno;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

int connect_unix(const std::string& path, std::chrono::milliseconds deadline, UniqueFd& fd) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  fd.reset(::socket(AF_UNIX, kSocketFlags, 0));
  return connect_within(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address, deadline);
}

int connect_tcp(std::string host, const std::string& port, std::chrono::milliseconds deadline,
                UniqueFd& fd) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return EADDRNOTAVAIL;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = found; at != nullptr && error != 0; at = at->ai_next) {
    fd.reset(::socket(at->ai_family, kSocketFlags, 0));
    error = connect_within(fd, at->ai_addr, at->ai_addrlen, deadline);
  }
  ::freeaddrinfo(found);
  return error;
}

// Connects to an ipc:// or tcp:// address. Returns 0 and sets the socket, or returns an errno.
int connect_to(const std::string& address, std::chrono::milliseconds deadline, UniqueFd& fd) {
  constexpr std::string_view kIpc = "ipc://";
  constexpr std::string_view kTcp = "tcp://";
  if (address.starts_with(kIpc)) return connect_unix(address.substr(kIpc.size()), deadline, fd);
  const std::size_t colon = address.rfind(':');
  if (!address.starts_with(kTcp) || colon <= kTcp.size()) return EINVAL;
  return connect_tcp(address.substr(kTcp.size(), colon - kTcp.size()), address.substr(colon + 1),
                     deadline, fd);
}

// Requests the metrics of a server. Returns what has arrived by the deadline, up to kMaxBytes.
// `authorization`: a header field with its line end, or empty.
std::string metrics_answer(const UniqueFd& fd, const std::string& authorization,
                           std::chrono::milliseconds deadline) {
  const std::string request = fmt::format(
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}Connection: close\r\n\r\n", authorization);
  constexpr std::size_t kMaxBytes = 256 * 1024;
  std::string answer;
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return answer;
  const TimePoint end = now() + deadline;
  std::array<char, 4096> piece;
  while (answer.size() < kMaxBytes && now() < end) {
    pollfd wait{.fd = fd.get(), .events = POLLIN, .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now()).count();
    if (::poll(&wait, 1, static_cast<int>(left)) <= 0) break;
    const ssize_t n = ::recv(fd.get(), piece.data(), piece.size(), 0);
    if (n <= 0) break;
    answer.append(piece.data(), static_cast<std::size_t>(n));
  }
  return answer;
}

// Returns the value of a label of wsync_build_info; empty if there is none.
std::string build_label(const std::string& metrics, const std::string& label) {
  const std::size_t line = metrics.find("\nwsync_build_info{");
  if (line == std::string::npos) return {};
  const std::string_view info =
      std::string_view(metrics).substr(line + 1, metrics.find('\n', line + 1) - line - 1);
  const std::size_t at = info.find(label + "=\"");
  if (at == std::string_view::npos) return {};
  const std::string_view value = info.substr(at + label.size() + 2);
  return std::string(value.substr(0, value.find('"')));
}

}  // namespace

Check check_coordinator(const std::string& address, std::chrono::milliseconds deadline) {
  std::vector<std::string> failures;
  for (const std::string_view each : split_addresses(address)) {
    UniqueFd fd;
    const std::string one(each);
    const int error = connect_to(one, deadline, fd);
    if (error == 0) return {"coordinator", CheckStatus::kOk, one + " accepts connections", ""};
    failures.push_back(fmt::format("{}: {}", one, std::strerror(error)));
  }
  return {"coordinator", CheckStatus::kWarn, fmt::format("{}", fmt::join(failures, "; ")),
          "start `wsync trainer`; until it runs, sidecars serve their versions and retry the "
          "connection"};
}

Check check_pages(const config::HttpConfig& pages, const std::string& own_role,
                  std::chrono::milliseconds deadline) {
  constexpr const char* kName = "http";
  const std::string& address = pages.address;
  if (address.empty())
    return {kName, CheckStatus::kOk, "http.address is none: this process serves no pages", ""};
  std::string authorization;
  if (!pages.token.empty()) {
    const auto token = http::AccessToken::read(pages.token);
    if (!token)
      return {kName, CheckStatus::kFail, token.error().with_context("http.token").message(),
              "make a token with `wsync keys token FILE`, and set http.token to that file"};
    authorization = fmt::format("Authorization: {}\r\n", token->authorization());
  }
  if (address.ends_with(":0"))
    return {kName, CheckStatus::kOk, address + ": any free port; the log names it", ""};
  UniqueFd fd;
  const int error = connect_to(address, deadline, fd);
  if (error == ENOENT || error == ECONNREFUSED)
    return {kName, CheckStatus::kOk, address + " is free", ""};
  if (error != 0)
    return {kName, CheckStatus::kWarn, fmt::format("{}: {}", address, std::strerror(error)),
            "set http.address to an address that this user can listen on, or to none"};
  const std::string answer = metrics_answer(fd, authorization, deadline);
  if (const std::string role = build_label(answer, "role"); !role.empty()) {
    // One of the own role may be the process of this configuration.
    const bool free = role == own_role;
    return {
        kName,
        free ? CheckStatus::kOk : CheckStatus::kWarn,
        fmt::format("a wsync {} ({}) answers at {}", role, build_label(answer, "version"), address),
        free ? ""
             : fmt::format("a {} cannot serve its pages there: set http.address to another address "
                           "or to none",
                           own_role),
        {{"role", role}, {"version", build_label(answer, "version")}}};
  }
  return {kName, CheckStatus::kFail,
          fmt::format("{} is in use, and {}", address,
                      answer.empty() ? fmt::format("the process that listens there did not answer "
                                                   "a request for /metrics within {} ms",
                                                   deadline.count())
                                     : std::string("the process that answers there is not wsync")),
          "stop the process that listens there, or set http.address to another address or to none"};
}

}  // namespace wsync::cli
