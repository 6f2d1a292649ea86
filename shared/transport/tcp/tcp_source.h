// TcpSource: serves buckets over TCP connections, plain or protected.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/base/tcp_address.h"
#include "shared/transport/limits.h"
#include "shared/transport/stream.h"
#include "shared/transport/tcp/channel.h"
#include "shared/transport/tcp/uv_thread.h"

namespace wsync::transport::tcp {

// kRefused: plain connections would carry weights beyond this host.
[[nodiscard]] Error beyond_loopback(const TcpAddress& address);

struct TcpSourceOptions {
  std::string listen = "tcp://127.0.0.1:0";  // numeric; port 0: chosen by the system
  // The host by which others reach `listen`; empty: that of `listen`.
  std::string advertise = {};
  // Whether `listen` may be beyond loopback, so that other hosts reach it.
  bool may_leave_host = false;
  // Makes the channel of a connection. Called on the bulk thread.
  std::function<std::shared_ptr<Channel>()> make_channel = [] {
    return std::make_shared<PlainChannel>();
  };
  // The highest fence that the source was told has grown. Called on the bulk thread.
  std::function<void(const StreamFence& fence)> on_fence = [](const StreamFence&) {};
  std::chrono::milliseconds stall_deadline{limits::kStreamStallMs};
  std::chrono::milliseconds offer_wait{limits::kStreamOfferWaitMs};
  std::chrono::milliseconds link_hold{limits::kStreamLinkHoldMs};
};

// The source closes a peer that sends malformed data, that stays silent without an open request, or
// that does not read for stall_deadline. It refuses a request for a version that is not offered
// within offer_wait. A request for a bucket that has not arrived waits, and the sink gets
// keep-alives. Thread: see BucketSource. `thread` must outlive the source.
class TcpSource final : public BucketSource {
 public:
  // kInvalidInput for a name, and for 0.0.0.0 or [::] without `advertise`; kRefused for an address
  // beyond loopback that is not permitted; kIo if the port cannot be bound.
  [[nodiscard]] static Result<std::unique_ptr<TcpSource>> listen(
      UvThread& thread, const TcpSourceOptions& options = {});
  ~TcpSource() override;

  [[nodiscard]] std::string address() const override { return address_.to_string(); }
  void offer(Offer offer) override;
  void bucket_ready(Version version, std::uint64_t bucket, const Digest& digest,
                    std::shared_ptr<const Bytes> changes = nullptr,
                    std::vector<WordSum> sums = {}) override;
  void leaves_ready(Version version, ArrivedLeaves leaves) override;
  void withdraw(Version version, const std::string& reason) override;
  void raise_fence(const StreamFence& fence) override;
  [[nodiscard]] SourceCounters counters() const override;

 private:
  class Server;
  TcpSource(UvThread& thread, TcpAddress address, std::shared_ptr<Server> server);
  UvThread& thread_;
  TcpAddress address_;
  std::shared_ptr<Server> server_;  // its state belongs to the bulk thread
};

}  // namespace wsync::transport::tcp
