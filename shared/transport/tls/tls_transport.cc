#include "shared/transport/tls/tls_transport.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/tcp_address.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"
#include "shared/transport/tcp/uv_thread.h"
#include "shared/transport/tls/tls_channel.h"

namespace wsync::transport::tls {
namespace {

using tcp::TcpSink;
using tcp::TcpSource;
using tcp::UvThread;

class TlsTransport final : public Transport {
 public:
  TlsTransport(Post post, TransportOptions options, std::unique_ptr<UvThread> thread,
               std::shared_ptr<TlsContext> context)
      : post_(std::move(post)),
        options_(std::move(options)),
        thread_(std::move(thread)),
        context_(std::move(context)) {}

  [[nodiscard]] const TransportTraits& traits() const noexcept override { return kTraits; }
  [[nodiscard]] std::uint64_t refusals() const override { return context_->refusals(); }

  [[nodiscard]] Result<std::unique_ptr<BucketSource>> listen() override {
    const auto asked = parse_tcp_address(options_.data_address);
    if (!asked) return fail(asked.error().with_context("data_address"));
    tcp::TcpSourceOptions source;
    source.may_leave_host = true;
    source.offer_wait = options_.offer_wait;
    source.link_hold = options_.link_hold;
    // On loopback the address belongs to the kind `tcp`.
    if (!asked->is_loopback()) {
      source.listen = options_.data_address;
      source.advertise = options_.advertise;
    }
    source.make_channel = [context = context_] {
      return std::make_shared<TlsChannel>(context, std::nullopt);
    };
    source.on_fence = [context = context_](const StreamFence& fence) {
      context->raise_fence(fence);
    };
    auto made = TcpSource::listen(*thread_, source);
    if (!made) return fail(made.error().with_context("data_address"));
    return std::move(*made);
  }

  [[nodiscard]] Result<std::unique_ptr<BucketSink>> make_sink(SinkOptions /*options*/) override {
    tcp::TcpSinkOptions sink;
    sink.prepare = [context = context_](const FetchRequest& wanted,
                                        const TcpAddress& source) -> Result<tcp::ChannelMaker> {
      if (!wanted.pair)
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("no key was given to receive version {} from {}",
                                wanted.key.version.to_string(), source.to_string()));
      return [context, key = *wanted.pair] { return std::make_shared<TlsChannel>(context, key); };
    };
    return std::make_unique<TcpSink>(*thread_, post_, std::move(sink));
  }

 private:
  const Post post_;
  const TransportOptions options_;
  const std::unique_ptr<UvThread> thread_;
  const std::shared_ptr<TlsContext> context_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_tls_transport(Post post, const TransportOptions& options) {
  if (!options.secret)
    return fail(ErrorCode::kRefused,
                "the transport 'tls' needs a fleet with keys: `wsync keys init` makes them");
  auto context = WSYNC_TRY(TlsContext::create(*options.secret));
  auto thread = WSYNC_TRY(UvThread::start());
  return std::make_unique<TlsTransport>(std::move(post), options, std::move(thread),
                                        std::move(context));
}

}  // namespace wsync::transport::tls
