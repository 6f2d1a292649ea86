#include "shared/transport/memfd/memfd_transport.h"

#include <utility>

#include "shared/transport/memfd/memfd_sink.h"
#include "shared/transport/memfd/memfd_source.h"

namespace wsync::transport::memfd {
namespace {

class MemfdTransport final : public Transport {
 public:
  MemfdTransport(Post post, const TransportOptions& options)
      : post_(std::move(post)), options_(options) {}

  [[nodiscard]] const TransportTraits& traits() const noexcept override { return kTraits; }
  [[nodiscard]] Result<std::unique_ptr<BucketSource>> listen() override {
    return WSYNC_TRY(
        MemfdSource::listen({.path = options_.run_dir + "/" + options_.name + "-host.sock",
                             .claim = options_.claim,
                             .advice = options_.advice,
                             .offer_wait = options_.offer_wait},
                            post_));
  }
  [[nodiscard]] Result<std::unique_ptr<BucketSink>> make_sink(SinkOptions options) override {
    return WSYNC_TRY(
        MemfdSink::create(post_, {.on_lost = std::move(options.on_source_lost),
                                  .on_arenas_retired = std::move(options.on_arenas_retired),
                                  .kept = kept_}));
  }

 private:
  const Post post_;
  const TransportOptions options_;
  const std::shared_ptr<KeptMappings> kept_ = std::make_shared<KeptMappings>();
};

}  // namespace

Result<std::unique_ptr<Transport>> make_memfd_transport(Post post,
                                                        const TransportOptions& options) {
  return std::make_unique<MemfdTransport>(std::move(post), options);
}

}  // namespace wsync::transport::memfd
