#include "shared/control/link.h"

#include <sys/socket.h>
#include <utility>

#include "shared/base/units.h"

namespace wsync::control {
namespace {
constexpr std::size_t kReceiveBytes = 64 * limits::kKiB;
}

Result<Link> Link::connect(const std::string& path, TimePoint deadline) {
  auto socket = WSYNC_TRY(connect_unix(path, deadline));
  return Link(std::move(socket));
}

Link::Link(UniqueFd socket) : socket_(std::move(socket)), buffer_(kReceiveBytes) {}

Result<> Link::send(const Envelope& envelope, const Message& message, std::vector<UniqueFd> fds,
                    TimePoint deadline) {
  WSYNC_TRY(writer_.push(envelope, message, std::move(fds)));
  for (;;) {
    const auto done = WSYNC_TRY(writer_.flush(socket_.get()));
    if (done) return {};
    if (const auto ready = wait_writable(socket_.get(), deadline); !ready) {
      // The peer cannot find the next frame after a partial one, so the connection cannot be used.
      if (writer_.in_the_middle()) shut_down();
      writer_.clear_unsent();
      return fail(ready.error().with_context(message_name(type_of(message))));
    }
  }
}

Result<Frame> Link::receive(TimePoint deadline) {
  for (;;) {
    auto frame = WSYNC_TRY(reader_.next());
    if (frame.has_value()) return std::move(*frame);
    std::vector<UniqueFd> fds;
    const auto n = WSYNC_TRY(receive_some(socket_.get(), buffer_, fds));
    if (n == 0) {
      WSYNC_TRY(wait_readable(socket_.get(), deadline));
      continue;
    }
    WSYNC_TRY(reader_.feed(std::span(buffer_).first(n), std::move(fds)));
  }
}

void Link::shut_down() noexcept { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace wsync::control
