// TcpSource: serves buckets over TCP connections on loopback.
#pragma once

#include <memory>
#include <string>

#include "shared/transport/address.h"
#include "shared/transport/limits.h"
#include "shared/transport/stream.h"
#include "shared/transport/tcp/uv_thread.h"

namespace wsync::transport::tcp {

struct TcpSourceOptions {
  std::string listen = "tcp://127.0.0.1:0";  // port 0: chosen by the system
  std::chrono::milliseconds stall_deadline{limits::kStreamStallMs};
  std::chrono::milliseconds offer_wait{limits::kStreamOfferWaitMs};
};

// The source closes a peer that sends malformed data, that stays silent without an open request, or
// that does not read for stall_deadline. It refuses a request for a version that is not offered
// within offer_wait. A request for a bucket that has not arrived waits, and the sink gets
// keep-alives. Thread: see BucketSource. `thread` must outlive the source.
class TcpSource final : public BucketSource {
 public:
  // kRefused for an address outside of loopback; kIo if the port cannot be bound.
  [[nodiscard]] static Result<std::unique_ptr<TcpSource>> listen(
      UvThread& thread, const TcpSourceOptions& options = {});
  ~TcpSource() override;

  [[nodiscard]] std::string address() const override { return address_.to_string(); }
  void offer(Offer offer) override;
  void bucket_ready(Version version, std::uint64_t bucket, const Digest& digest) override;
  void withdraw(Version version, const std::string& reason) override;
  [[nodiscard]] SourceCounters counters() const override;

 private:
  class Server;
  TcpSource(UvThread& thread, TcpAddress address, std::shared_ptr<Server> server);
  UvThread& thread_;
  TcpAddress address_;
  std::shared_ptr<Server> server_;  // its state belongs to the bulk thread
};

}  // namespace wsync::transport::tcp
