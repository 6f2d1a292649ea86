#include "inference_side/reference_engine/peer_watch.h"

#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "shared/base/check.h"

namespace wsync::engine::reference {

PeerWatch::PeerWatch(std::vector<int> sockets, std::function<void(std::size_t)> gone)
    : gone_(std::move(gone)), end_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // Without an eventfd there is no watch. A lost peer is then noticed only at the deadline.
  if (!end_.valid()) return;
  thread_ = std::thread([this, sockets = std::move(sockets)] { run(sockets); });
}

PeerWatch::~PeerWatch() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(end_.get(), &one, sizeof one);
  thread_.join();
}

void PeerWatch::run(const std::vector<int>& sockets) {
  std::vector<pollfd> watched;
  watched.reserve(sockets.size() + 1);
  // Do not poll for POLLIN: the data belongs to the connection's own thread.
  for (const int socket : sockets)
    watched.push_back({.fd = socket, .events = POLLRDHUP, .revents = 0});
  watched.push_back({.fd = end_.get(), .events = POLLIN, .revents = 0});
  for (;;) {
    const int ready = ::poll(watched.data(), watched.size(), -1);
    WSYNC_CHECK(ready > 0 || errno == EINTR || errno == ENOMEM, "poll of sockets that are open");
    if (ready <= 0) continue;
    if (watched.back().revents != 0) return;
    for (std::size_t i = 0; i < sockets.size(); ++i)
      if (watched[i].revents != 0) return gone_(i);
  }
}

}  // namespace wsync::engine::reference
