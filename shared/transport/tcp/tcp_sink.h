// TcpSink: receives the buckets of a version over several TCP connections, plain or protected,
// directly into the staging arena. Each connection requests the next bucket before the current one
// has arrived. The digest of a bucket, or of a run of its leaves, is checked when its last byte has
// arrived.
#pragma once

#include <functional>
#include <memory>

#include "shared/transport/limits.h"
#include "shared/transport/stream.h"
#include "shared/transport/tcp/transfer.h"
#include "shared/transport/tcp/uv_thread.h"

namespace wsync::transport::tcp {

// Checks that the source may be connected to for this request, and returns what makes the channels
// of the connections.
using PrepareChannels =
    std::function<Result<ChannelMaker>(const FetchRequest& wanted, const TcpAddress& source)>;

// Plain channels. kRefused for a source beyond loopback, unless the network is trusted.
[[nodiscard]] PrepareChannels plain_channels(bool is_network_trusted);

struct TcpSinkOptions {
  std::uint64_t streams = limits::kStreamCountDefault;
  PrepareChannels prepare = plain_channels(false);
};

// Thread: see BucketSink. `thread` must outlive the sink.
class TcpSink final : public BucketSink {
 public:
  TcpSink(UvThread& thread, Post post, TcpSinkOptions options = {});
  ~TcpSink() override;

  [[nodiscard]] Result<> receive(FetchRequest wanted, SinkCallbacks callbacks) override;
  void cancel() override;

 private:
  // Only for the owner's thread. A posted callback checks it before it runs.
  struct Session {
    SinkCallbacks callbacks;
    bool is_active = true;
  };
  UvThread& thread_;
  Post post_;
  TcpSinkOptions options_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Transfer> transfer_;  // its state belongs to the bulk thread
};

}  // namespace wsync::transport::tcp
