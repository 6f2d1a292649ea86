// Channel: one TCP connection of a source or of a sink. What travels in it is plain (PlainChannel)
// or protected (tls/tls_channel.h). Only for the bulk thread, except for its construction.
#pragma once

#include <functional>
#include <memory>
#include <netdb.h>
#include <span>
#include <sys/socket.h>
#include <uv.h>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/tcp_address.h"
#include "shared/transport/stream.h"

namespace wsync::transport::tcp {

// What the owner of a channel is told, on the bulk thread. Nothing but on_closed is called after
// close().
struct ChannelEvents {
  // Once: the peer may be written to. A protected channel has proven both ends by then.
  std::function<void()> on_open = [] {};
  // Returns the place for the next bytes of the peer; never empty.
  std::function<std::span<std::byte>()> next;
  // So many bytes have arrived there.
  std::function<void(std::size_t bytes)> on_read;
  // What write() was given has left this process.
  std::function<void()> on_written;
  // Once: the connection is of no use any more (kPeerLost, kIo). The owner closes the channel.
  std::function<void(const Error& why)> on_end;
  // The last call: the channel has left the loop.
  std::function<void()> on_closed;
};

// Keeps itself alive from accept() or connect() until it has left the loop.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  Channel() = default;
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Takes the pending connection of a listener. Returns false if it is already gone; on_closed
  // follows then.
  [[nodiscard]] bool accept(uv_loop_t* loop, uv_stream_t* listener, ChannelEvents events);
  // Connects. A name is resolved by a thread of libuv, and its addresses are tried one by one.
  void connect(uv_loop_t* loop, const TcpAddress& address, ChannelEvents events);
  // Sends the pieces, one behind the other. They must stay as they are until on_written, and
  // nothing else may be written before it.
  virtual void write(std::span<const std::span<const std::byte>> pieces) = 0;
  // Ends the connection. From here on no byte is written to what next() has returned.
  void close();
  // Whether the key of the peer belongs to an older fence. Never, if the channel has no keys.
  [[nodiscard]] virtual bool is_older_than(const StreamFence& /*fence*/) const { return false; }

 protected:
  // For the kinds of channels. The connection is there.
  virtual void connected() = 0;
  // The place for bytes of the connection, and what has arrived there.
  [[nodiscard]] virtual std::span<std::byte> place() = 0;
  virtual void arrived(std::size_t bytes) = 0;
  // What send() was given has left.
  virtual void sent() = 0;
  // The peer has closed its end.
  virtual void ended() { end(Error(ErrorCode::kPeerLost, "the peer closed the connection")); }
  // About to close: the last chance to send something with try_send().
  virtual void closing() {}

  void send(std::span<const std::span<const std::byte>> pieces);
  void try_send(std::span<const std::byte> bytes);
  void end(Error why);
  [[nodiscard]] const ChannelEvents& events() const noexcept { return events_; }
  [[nodiscard]] bool is_closing() const noexcept { return is_closing_; }
  // The address of the peer, for sentences.
  [[nodiscard]] std::string peer_name() const;

 private:
  void open_handle(uv_loop_t* loop);
  void close_handle();
  void resolved(int status, addrinfo* found);
  void connect_next(const std::string& why);
  void start_reading();
  void left_loop();

  ChannelEvents events_;
  std::shared_ptr<Channel> self_;
  uv_loop_t* loop_ = nullptr;
  uv_tcp_t* handle_ = nullptr;  // on the heap: one that could not connect is closed on its own
  uv_connect_t connect_{};
  uv_getaddrinfo_t lookup_{};
  uv_write_t write_{};
  std::vector<sockaddr_storage> addresses_;  // that were not tried yet, the last one first
  bool is_resolving_ = false;
  bool has_tried_ = false;
  bool is_closing_ = false;
  bool has_ended_ = false;
};

class PlainChannel final : public Channel {
 public:
  void write(std::span<const std::span<const std::byte>> pieces) override { send(pieces); }

 protected:
  void connected() override { events().on_open(); }
  [[nodiscard]] std::span<std::byte> place() override;
  void arrived(std::size_t bytes) override { events().on_read(bytes); }
  void sent() override { events().on_written(); }
};

}  // namespace wsync::transport::tcp
