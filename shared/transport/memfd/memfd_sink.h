// MemfdSink: takes over the arena of a version from a process of the same host. The connection
// stays open between transfers: its hang-up says that the peer is lost.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/transport/stream.h"

namespace wsync::transport::memfd {

struct MemfdSinkOptions {
  // Told on the owner's thread when the other end has gone (not after disconnect(), and not when
  // this end has closed because it could not take a packet: that fails the transfer alone).
  std::function<void(const Error& why)> on_lost = [](const Error&) {};
  unsigned populate_threads = 2;  // that map an arena's pages
};

// Thread: see BucketSink; a thread of its own waits on the socket, verifies and maps.
class MemfdSink final : public BucketSink {
 public:
  [[nodiscard]] static Result<std::unique_ptr<MemfdSink>> create(Post post,
                                                                 MemfdSinkOptions options = {});
  ~MemfdSink() override;

  // Connects to a MemfdSource and keeps the connection; drops the one to another path. kPeerLost
  // when nobody serves there. receive() does it by itself when needed.
  [[nodiscard]] Result<> connect(const std::string& path);
  // Ends the connection, and the transfer under way, without a callback.
  void disconnect();
  [[nodiscard]] bool is_connected() const;

  [[nodiscard]] Result<> receive(FetchRequest wanted, SinkCallbacks callbacks) override;
  void cancel() override;

 private:
  class Link;
  explicit MemfdSink(std::unique_ptr<Link> link);
  std::unique_ptr<Link> link_;
};

}  // namespace wsync::transport::memfd
