// TcpSink: receives the buckets of a version over several TCP connections, straight into the
// staging arena. Each connection asks for a bucket, and for the next one before the first has come;
// every bucket's digest is checked when its last byte has arrived.
#pragma once

#include <memory>

#include "shared/transport/limits.h"
#include "shared/transport/stream.h"
#include "shared/transport/tcp/uv_thread.h"

namespace wsync::transport::tcp {

class Transfer;

struct TcpSinkOptions {
  std::uint64_t streams = limits::kStreamCountDefault;
};

// Thread: see BucketSink. `thread` outlives the sink.
class TcpSink final : public BucketSink {
 public:
  TcpSink(UvThread& thread, Post post, const TcpSinkOptions& options = {});
  ~TcpSink() override;

  [[nodiscard]] Result<> receive(FetchRequest wanted, SinkCallbacks callbacks) override;
  void cancel() override;

 private:
  // Owner's thread only: what a posted callback checks before it runs.
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
