#include "shared/transport/tcp/channel.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstring>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/transport/limits.h"
#include "shared/transport/tcp/uv_thread.h"

namespace wsync::transport::tcp {
namespace {

Channel* channel_of(void* data) { return static_cast<Channel*>(data); }

uv_buf_t buffer_of(std::span<const std::byte> bytes) {
  // libuv does not write through the pointer of an outgoing buffer.
  auto* base = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
  return uv_buf_init(base, static_cast<unsigned>(bytes.size()));
}

}  // namespace

void Channel::open_handle(uv_loop_t* loop) {
  handle_ = new uv_tcp_t;  // freed by the callback of uv_close()
  WSYNC_CHECK(uv_tcp_init(loop, handle_) == 0, "a TCP handle can be initialised");
  handle_->data = this;
  write_.data = this;
}

void Channel::close_handle() {
  uv_tcp_t* handle = std::exchange(handle_, nullptr);
  handle->data = nullptr;
  uv_close(reinterpret_cast<uv_handle_t*>(handle), [](uv_handle_t* closed) {
    const std::unique_ptr<uv_tcp_t> freed(reinterpret_cast<uv_tcp_t*>(closed));
  });
}

bool Channel::accept(uv_loop_t* loop, uv_stream_t* listener, ChannelEvents events) {
  events_ = std::move(events);
  self_ = shared_from_this();
  loop_ = loop;
  open_handle(loop);
  if (uv_accept(listener, reinterpret_cast<uv_stream_t*>(handle_)) != 0 ||
      uv_tcp_nodelay(handle_, 1) != 0) {
    close();
    return false;
  }
  start_reading();
  if (!is_closing_) connected();
  return !is_closing_;
}

void Channel::connect(uv_loop_t* loop, const TcpAddress& address, ChannelEvents events) {
  events_ = std::move(events);
  self_ = shared_from_this();
  loop_ = loop;
  connect_.data = this;
  lookup_.data = this;
  open_handle(loop);
  if (const auto numeric = address.numeric(); numeric) {
    addresses_ = {*numeric};
    return connect_next("");
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int rc = uv_getaddrinfo(
      loop, &lookup_,
      [](uv_getaddrinfo_t* lookup, int status, addrinfo* found) {
        channel_of(lookup->data)->resolved(status, found);
      },
      address.host.c_str(), std::to_string(address.port).c_str(), &hints);
  is_resolving_ = rc == 0;
  if (rc != 0)
    end(Error(ErrorCode::kPeerLost, uv_sentence(fmt::format("look up {}", address.host), rc)));
}

void Channel::resolved(int status, addrinfo* found) {
  is_resolving_ = false;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    sockaddr_storage where{};
    std::memcpy(&where, each->ai_addr, std::min<std::size_t>(each->ai_addrlen, sizeof where));
    addresses_.push_back(where);
  }
  uv_freeaddrinfo(found);
  std::ranges::reverse(addresses_);
  if (is_closing_) return left_loop();
  if (status != 0)
    return end(Error(ErrorCode::kPeerLost, uv_sentence("look up the name of the peer", status)));
  connect_next("no address belongs to the name of the peer");
}

void Channel::connect_next(const std::string& why) {
  if (addresses_.empty()) return end(Error(ErrorCode::kPeerLost, why));
  const sockaddr_storage where = addresses_.back();
  addresses_.pop_back();
  // A handle connects once.
  if (std::exchange(has_tried_, true)) {
    close_handle();
    open_handle(loop_);
  }
  const auto on_connected = [](uv_connect_t* request, int status) {
    auto* self = channel_of(request->data);
    if (self->is_closing_) return;
    if (status != 0) return self->connect_next(uv_sentence("connect", status));
    uv_tcp_nodelay(self->handle_, 1);
    self->start_reading();
    if (!self->is_closing_) self->connected();
  };
  const int rc =
      uv_tcp_connect(&connect_, handle_, reinterpret_cast<const sockaddr*>(&where), on_connected);
  if (rc != 0) connect_next(uv_sentence("connect", rc));
}

void Channel::start_reading() {
  const auto allocate = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    *buffer = buffer_of(channel_of(handle->data)->place());
  };
  const auto on_data = [](uv_stream_t* from, ssize_t n, const uv_buf_t*) {
    auto* self = channel_of(from->data);
    if (self == nullptr || self->is_closing_ || n == 0) return;
    if (n == UV_EOF) return self->ended();
    if (n < 0)
      return self->end(Error(ErrorCode::kPeerLost, uv_sentence("read", static_cast<int>(n))));
    self->arrived(static_cast<std::size_t>(n));
  };
  const int rc = uv_read_start(reinterpret_cast<uv_stream_t*>(handle_), allocate, on_data);
  if (rc != 0) end(Error(ErrorCode::kIo, uv_sentence("read", rc)));
}

void Channel::send(std::span<const std::span<const std::byte>> pieces) {
  std::array<uv_buf_t, 4> buffers{};
  WSYNC_CHECK(pieces.size() <= buffers.size(), "a message has few pieces");
  std::ranges::transform(pieces, buffers.begin(), buffer_of);
  const int rc =
      uv_write(&write_, reinterpret_cast<uv_stream_t*>(handle_), buffers.data(),
               static_cast<unsigned>(pieces.size()), [](uv_write_t* request, int status) {
                 auto* self = channel_of(request->data);
                 if (self->is_closing_) return;
                 if (status == 0) return self->sent();
                 self->end(Error(ErrorCode::kPeerLost, uv_sentence("send", status)));
               });
  if (rc != 0) end(Error(ErrorCode::kPeerLost, uv_sentence("send", rc)));
}

void Channel::try_send(std::span<const std::byte> bytes) {
  const uv_buf_t buffer = buffer_of(bytes);
  (void)uv_try_write(reinterpret_cast<uv_stream_t*>(handle_), &buffer, 1);
}

void Channel::end(Error why) {
  if (is_closing_ || std::exchange(has_ended_, true)) return;
  events_.on_end(why);
}

void Channel::close() {
  if (is_closing_) return;
  if (self_) closing();
  is_closing_ = true;
  if (!self_) return;  // never opened
  if (is_resolving_) (void)uv_cancel(reinterpret_cast<uv_req_t*>(&lookup_));
  uv_close(reinterpret_cast<uv_handle_t*>(handle_), [](uv_handle_t* closed) {
    const std::unique_ptr<uv_tcp_t> freed(reinterpret_cast<uv_tcp_t*>(closed));
    auto* self = channel_of(closed->data);
    self->handle_ = nullptr;
    self->left_loop();
  });
}

void Channel::left_loop() {
  if (handle_ != nullptr || is_resolving_) return;
  const auto keep = std::move(self_);
  events_.on_closed();
}

std::string Channel::peer_name() const {
  sockaddr_storage where{};
  int length = sizeof where;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (handle_ == nullptr ||
      uv_tcp_getpeername(handle_, reinterpret_cast<sockaddr*>(&where), &length) != 0)
    return "a peer that is gone";
  if (where.ss_family == AF_INET6)
    uv_ip6_name(reinterpret_cast<const sockaddr_in6*>(&where), text.data(), text.size());
  else
    uv_ip4_name(reinterpret_cast<const sockaddr_in*>(&where), text.data(), text.size());
  return text.data();
}

std::span<std::byte> PlainChannel::place() {
  const std::span<std::byte> next = events().next();
  // Small slices are still in the cache when they are summed.
  return next.first(std::min<std::size_t>(next.size(), limits::kStreamSliceBytes));
}

}  // namespace wsync::transport::tcp
