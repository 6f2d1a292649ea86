#include "shared/transport/tcp/tcp_transport.h"

#include <utility>

#include "shared/base/tcp_address.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"
#include "shared/transport/tcp/uv_thread.h"

namespace wsync::transport::tcp {
namespace {

class TcpTransport final : public Transport {
 public:
  TcpTransport(Post post, const TransportOptions& options, std::unique_ptr<UvThread> thread)
      : post_(std::move(post)), options_(options), thread_(std::move(thread)) {}

  [[nodiscard]] const TransportTraits& traits() const noexcept override { return kTraits; }
  [[nodiscard]] Result<std::unique_ptr<BucketSource>> listen() override {
    const auto asked = parse_tcp_address(options_.data_address);
    if (!asked) return fail(asked.error().with_context("data_address"));
    TcpSourceOptions wanted;
    wanted.offer_wait = options_.offer_wait;
    wanted.link_hold = options_.link_hold;
    wanted.may_leave_host = is_trusted_;
    if (is_trusted_ || asked->is_loopback()) {
      wanted.listen = options_.data_address;
      wanted.advertise = options_.advertise;
    }
    auto source = TcpSource::listen(*thread_, wanted);
    if (!source) return fail(source.error().with_context("data_address"));
    return std::move(*source);
  }
  [[nodiscard]] Result<std::unique_ptr<BucketSink>> make_sink(SinkOptions /*options*/) override {
    return std::make_unique<TcpSink>(*thread_, post_,
                                     TcpSinkOptions{.prepare = plain_channels(is_trusted_)});
  }

 private:
  const Post post_;
  const TransportOptions options_;
  const bool is_trusted_ = options_.security == DataSecurity::kTrustedNetwork;
  const std::unique_ptr<UvThread> thread_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_tcp_transport(Post post, const TransportOptions& options) {
  auto thread = WSYNC_TRY(UvThread::start());
  return std::make_unique<TcpTransport>(std::move(post), options, std::move(thread));
}

}  // namespace wsync::transport::tcp
