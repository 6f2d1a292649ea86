// MemfdSink: receives the arena of a version from a process of the same host. The connection stays
// open between transfers; its hang-up means that the peer is lost.
//
// An arena is mapped once. Its mapping is kept for the later versions that come in it, until its
// writer frees it or is lost. Sinks of one transport share these mappings.
//
// A version that is wanted as its changes alone comes in sealed memory (sealed_changes.h) if its
// source holds it so, and else as its arena.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/transport/stream.h"

namespace wsync::transport::memfd {

struct MemfdSinkOptions {
  // Called on the owner's thread when the other end is gone. It is not called after unwatch().
  // It is not called either if this end closes the connection because it could not accept a packet:
  // then only the transfer fails.
  std::function<void(const Error& why)> on_lost = [](const Error&) {};
  std::function<void()> on_arenas_retired = [] {};  // see SinkOptions
  unsigned threads = 2;  // that map the pages of an arena, or prove changes
  std::shared_ptr<KeptMappings> kept = std::make_shared<KeptMappings>();
};

// Thread: see BucketSink. A separate thread waits for the socket, verifies and maps.
class MemfdSink final : public BucketSink {
 public:
  [[nodiscard]] static Result<std::unique_ptr<MemfdSink>> create(Post post,
                                                                 MemfdSinkOptions options = {});
  ~MemfdSink() override;

  // `source`: path of a MemfdSource. receive() calls this if necessary.
  [[nodiscard]] Result<> watch(const std::string& source) override;
  void unwatch() override;
  [[nodiscard]] bool is_connected() const;

  [[nodiscard]] Result<> receive(FetchRequest wanted, SinkCallbacks callbacks) override;
  void cancel() override;

 private:
  class Link;
  explicit MemfdSink(std::unique_ptr<Link> link);
  std::unique_ptr<Link> link_;
};

}  // namespace wsync::transport::memfd
