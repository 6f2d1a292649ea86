// What the ends of the kind `tls` do with peers that have no key, another key or an old one, and
// with somebody between them who changes what they say. Nothing false arrives, and each is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "shared/transport/frame.h"
#include "shared/transport/limits.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"
#include "shared/transport/tls/tls_channel.h"
#include "tests/contract/transport/stream_fixture.h"
#include "tests/contract/transport/tamper_proxy.h"

namespace wsync::transport {
namespace {

using ::testing::HasSubstr;
constexpr std::chrono::milliseconds kTlsShort{900};

struct FreeOpenSsl {
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
  void operator()(SSL* p) const { SSL_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
};
template <class T>
using OpenSsl = std::unique_ptr<T, FreeOpenSsl>;

// Both ends of the kind, with what the factory hides: deadlines and counters of each.
class TlsPeer : public ::testing::Test {
 protected:
  OwnerLoop loop_;
  TestVersion version_{1};
  std::unique_ptr<tcp::UvThread> thread_ = std::move(*tcp::UvThread::start());
  std::shared_ptr<tls::TlsContext> source_context_ = *tls::TlsContext::create(kTestSecret);
  std::shared_ptr<tls::TlsContext> sink_context_ = *tls::TlsContext::create(make_pair_secret());
  std::unique_ptr<tcp::TcpSource> source_ = make_source(tls::kKeyBytesDefault);
  Receiver receiver_{make_sink(limits::kStreamCountDefault), version_.data().size()};

  [[nodiscard]] std::unique_ptr<tcp::TcpSource> make_source(std::uint64_t key_bytes) {
    tcp::TcpSourceOptions options;
    options.stall_deadline = options.offer_wait = kTlsShort;
    options.make_channel = [context = source_context_, key_bytes] {
      return std::make_shared<tls::TlsChannel>(context, std::nullopt, key_bytes);
    };
    options.on_fence = [context = source_context_](const StreamFence& fence) {
      context->raise_fence(fence);
    };
    return std::move(*tcp::TcpSource::listen(*thread_, options));
  }
  [[nodiscard]] std::unique_ptr<BucketSink> make_sink(std::uint64_t streams) {
    tcp::TcpSinkOptions options;
    options.streams = streams;
    options.prepare = [context = sink_context_](const FetchRequest& wanted, const TcpAddress&) {
      return Result<tcp::ChannelMaker>(
          [context, key = wanted.pair] { return std::make_shared<tls::TlsChannel>(context, key); });
    };
    return std::make_unique<tcp::TcpSink>(*thread_, loop_.post(), options);
  }
  void fetch(FetchRequest wanted) {
    ASSERT_TRUE(receiver_.receive(std::move(wanted)).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
  }
  [[nodiscard]] FetchRequest wanted(const std::string& from) const {
    return receiver_.wanted(version_, from);
  }
  [[nodiscard]] FetchRequest wanted() const { return wanted(source_->address()); }
  // With the key of `identity`, made of this secret.
  [[nodiscard]] FetchRequest wanted(const PairSecret& secret, PairIdentity identity) const {
    FetchRequest request = wanted();
    request.pair = derive_pair_key(secret, std::move(identity));
    return request;
  }
  [[nodiscard]] PairIdentity identity(std::string name = "receiver") const {
    return {.fence = version_.key().fence, .receiver = std::move(name)};
  }
  void expect_refused_by_the_source() {
    ASSERT_TRUE(receiver_.failure.has_value()) << "it was let in";
    EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(receiver_.failure_text(), HasSubstr("it has another key"));
    EXPECT_TRUE(receiver_.buckets.empty());
    (void)source_->counters();  // has passed the same queue
    EXPECT_GE(source_context_->refusals(), 1U);
    EXPECT_EQ(source_->counters().buckets, 0U);
  }
  // The source serves others as before.
  void expect_served() {
    receiver_.failure.reset();
    receiver_.done = 0;
    fetch(wanted());
    EXPECT_TRUE(receiver_.holds(version_)) << receiver_.failure_text();
  }
  [[nodiscard]] bool is_closed(int fd) const {
    std::array<char, 4096> buffer;
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    while (::poll(&waiting, 1, 10'000) == 1)
      if (::read(fd, buffer.data(), buffer.size()) <= 0) return true;
    return false;
  }
  // One handshake of a client of OpenSSL that was set up otherwise. Returns whether it succeeded.
  [[nodiscard]] bool handshake(const std::function<void(SSL_CTX&)>& set_up) const {
    const OpenSsl<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
    set_up(*context);
    const UniqueFd fd = connect_to(source_->address());
    const OpenSsl<SSL> ssl(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), fd.get());
    char byte = 0;
    return SSL_connect(ssl.get()) == 1 && SSL_read(ssl.get(), &byte, 1) == 1;
  }
};

TEST_F(TlsPeer, AReceiverWithAnotherKeyIsRefusedAtBothEnds) {
  source_->offer(version_.offer());
  fetch(wanted(make_pair_secret(), identity()));
  expect_refused_by_the_source();
  EXPECT_GE(sink_context_->refusals(), 1U);
  expect_served();
}

TEST_F(TlsPeer, AKeyIsGoodForItsReceiverOnly) {
  source_->offer(version_.offer());
  FetchRequest stolen = wanted(kTestSecret, identity("another"));
  stolen.pair->identity.receiver = "receiver";
  fetch(std::move(stolen));
  expect_refused_by_the_source();
  expect_served();
}

TEST_F(TlsPeer, AKeyIsGoodForItsFenceOnly) {
  source_->offer(version_.offer());
  FetchRequest moved = wanted(kTestSecret, identity());
  moved.pair->identity.fence.epoch += 1;
  fetch(std::move(moved));
  expect_refused_by_the_source();
}

TEST_F(TlsPeer, AKeyOfAnEarlierFenceIsRefusedOnceAHigherOneIsInForce) {
  source_->offer(version_.offer());
  expect_served();
  StreamFence higher = version_.key().fence;
  higher.epoch += 1;
  source_->raise_fence(higher);
  receiver_.buckets.clear();
  receiver_.done = 0;
  const std::uint64_t served = source_->counters().buckets;
  fetch(wanted());
  ASSERT_TRUE(receiver_.failure.has_value()) << "an old key was let in";
  EXPECT_TRUE(receiver_.buckets.empty());
  EXPECT_EQ(source_->counters().buckets, served);
  EXPECT_GE(source_context_->refusals(), 1U);
}

TEST_F(TlsPeer, AHigherFenceClosesTheConnectionsOfTheOldOne) {
  Offer offer = version_.offer();
  offer.complete = false;
  source_->offer(std::move(offer));
  source_->bucket_ready(version_.key().version, 0, version_.digest(0));
  ASSERT_TRUE(receiver_.receive(wanted()).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return !receiver_.buckets.empty(); }));
  StreamFence higher = version_.key().fence;
  higher.epoch += 1;
  source_->raise_fence(higher);
  ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kPeerLost);
}

TEST_F(TlsPeer, PlainRequestsAreRefused) {
  source_->offer(version_.offer());
  const UniqueFd peer = connect_to(source_->address());
  const auto get = encode_frame({.key = version_.key(), .bucket = 0, .bytes = limits::kMiB});
  ASSERT_EQ(::send(peer.get(), get.data(), get.size(), MSG_NOSIGNAL), ssize_t{get.size()});
  EXPECT_TRUE(is_closed(peer.get()));
  EXPECT_EQ(source_context_->refusals(), 1U);
  EXPECT_EQ(source_->counters().buckets, 0U);
  expect_served();
}

TEST_F(TlsPeer, WhoSaysNothingIsClosedAtTheDeadline) {
  const UniqueFd peer = connect_to(source_->address());
  EXPECT_TRUE(is_closed(peer.get()));
}

TEST_F(TlsPeer, ClientsWithoutAKeyAreRefused) {
  source_->offer(version_.offer());
  EXPECT_FALSE(handshake([](SSL_CTX&) {}));
  EXPECT_EQ(source_context_->refusals(), 1U);
  EXPECT_FALSE(
      handshake([](SSL_CTX& context) { SSL_CTX_set_max_proto_version(&context, TLS1_2_VERSION); }));
  EXPECT_EQ(source_context_->refusals(), 2U);
  expect_served();
}

TEST_F(TlsPeer, ASourceWithACertificateIsRefused) {
  const OpenSsl<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const OpenSsl<X509> certificate(X509_new());
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const OpenSsl<SSL_CTX> context(SSL_CTX_new(TLS_server_method()));
  ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
  sockaddr_storage where = TcpAddress{"127.0.0.1", 0}.numeric().value();
  socklen_t length = sizeof(sockaddr_in);
  const UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listening.get(), reinterpret_cast<sockaddr*>(&where), length), 0);
  ASSERT_EQ(::listen(listening.get(), 16), 0);
  ASSERT_EQ(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&where), &length), 0);
  bool was_accepted = true;
  std::jthread server([&] {
    const UniqueFd peer(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const OpenSsl<SSL> ssl(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), peer.get());
    char byte = 0;
    was_accepted = SSL_accept(ssl.get()) == 1 && SSL_read(ssl.get(), &byte, 1) == 1;
  });
  const TcpAddress address{"127.0.0.1", ntohs(reinterpret_cast<sockaddr_in*>(&where)->sin_port)};
  fetch(wanted(address.to_string()));
  server.join();
  EXPECT_FALSE(was_accepted);
  EXPECT_THAT(receiver_.failure_text(), HasSubstr("is no source of this fleet"));
  EXPECT_GE(sink_context_->refusals(), 1U);
}

// What a receiver has sent first is sent again by somebody who has no key.
TEST_F(TlsPeer, ARepeatedHandshakeLeadsNowhere) {
  source_->offer(version_.offer());
  Bytes recorded;
  {
    const TamperProxy proxy(source_->address(), {});
    fetch(wanted(proxy.address()));
    ASSERT_TRUE(receiver_.holds(version_)) << receiver_.failure_text();
    recorded = proxy.first_sent();
  }
  const std::uint64_t served = source_->counters().buckets;
  const UniqueFd peer = connect_to(source_->address());
  ASSERT_EQ(::send(peer.get(), recorded.data(), recorded.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(recorded.size()));
  EXPECT_TRUE(is_closed(peer.get()));
  EXPECT_EQ(source_->counters().buckets, served);
}

class TlsTamper : public TlsPeer, public ::testing::WithParamInterface<std::tuple<Tamper, Way>> {};

TEST_P(TlsTamper, IsFoundAndCountedAndNothingFalseArrives) {
  const auto [what, way] = GetParam();
  source_->offer(version_.offer());
  {
    // On the way to the source the first record ends the handshake, and requests follow.
    const TamperProxy proxy(source_->address(),
                            {.what = what, .way = way, .record = way == Way::kToSource ? 1U : 3U});
    fetch(wanted(proxy.address()));
    EXPECT_GE(proxy.tampered(), 1U);
    ASSERT_TRUE(receiver_.failure.has_value()) << "nobody has noticed";
    EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kPeerLost);
  }
  (void)source_->counters();
  const tls::TlsContext& finder = way == Way::kToSource ? *source_context_ : *sink_context_;
  EXPECT_GE(finder.refusals(), 1U);
  for (const std::uint64_t bucket : receiver_.buckets) {
    const BucketWindow window = version_.buckets()[bucket];
    EXPECT_TRUE(same_bytes(
        std::span<const std::byte>(*receiver_.memory).subspan(window.offset, window.bytes),
        version_.bucket(bucket)));
  }
  expect_served();
}

std::string tamper_name(const ::testing::TestParamInfo<std::tuple<Tamper, Way>>& made) {
  constexpr std::array kWhat{"nothing", "flip", "drop", "repeat", "reorder"};
  const auto [what, way] = made.param;
  return std::string(kWhat[static_cast<std::size_t>(what)]) +
         (way == Way::kToSource ? "_to_source" : "_to_receiver");
}

INSTANTIATE_TEST_SUITE_P(Between, TlsTamper,
                         ::testing::Combine(::testing::Values(Tamper::kFlip, Tamper::kDrop,
                                                              Tamper::kRepeat, Tamper::kReorder),
                                            ::testing::Values(Way::kToSource, Way::kToReceiver)),
                         tamper_name);

TEST_F(TlsPeer, TheKeyChangesWhileALongTransferRuns) {
  std::array<std::size_t, 2> passed{};
  constexpr std::array<std::uint64_t, 2> kKeyBytes{tls::kKeyBytesDefault, limits::kMiB};
  for (std::size_t i = 0; i < kKeyBytes.size(); ++i) {
    source_ = make_source(kKeyBytes[i]);
    source_->offer(version_.offer());
    const TamperProxy proxy(source_->address(), {});
    Receiver one(make_sink(1), version_.data().size());
    ASSERT_TRUE(one.receive(one.wanted(version_, proxy.address())).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return one.is_over(); }));
    EXPECT_TRUE(one.holds(version_)) << one.failure_text();
    passed[i] = proxy.passed();
  }
  constexpr std::size_t kUpdateBytes = 5 + 5 + 1 + 16;  // record, message, type, tag
  EXPECT_EQ(passed[1] - passed[0], 8 * kUpdateBytes) << "one update for each MiB";
}

TEST(PairKey, IdentityIsReadAsItWasWritten) {
  const PairIdentity identity{.fence = {.epoch = 7, .run_id = {0xabc, ~0ULL}},
                              .receiver = "host 7 / rack 3"};
  EXPECT_EQ(parse_pair_identity(to_text(identity)), identity);
  const std::string text = to_text(identity);
  for (const std::string& broken :
       {std::string(), text.substr(0, 30), "x" + text, text + std::string(300, 'x'),
        "wsync data 1 " + std::string(200, ' '), std::string("Client_identity")})
    EXPECT_FALSE(parse_pair_identity(broken).has_value()) << broken;
  std::string upper = text;
  upper[text.find("abc")] = 'A';
  EXPECT_FALSE(parse_pair_identity(upper).has_value()) << "a second text of the same identity";
}

TEST(PairKey, DependsOnTheSecretTheFenceAndTheReceiver) {
  const PairIdentity identity{.fence = {.epoch = 1, .run_id = {2, 3}}, .receiver = "a"};
  const PairSecret key = derive_pair_key(kTestSecret, identity).secret;
  EXPECT_EQ(derive_pair_key(kTestSecret, identity).secret, key);
  PairIdentity other = identity;
  other.receiver = "b";
  EXPECT_NE(derive_pair_key(kTestSecret, other).secret, key);
  other = identity;
  other.fence.run_id[1] = 4;
  EXPECT_NE(derive_pair_key(kTestSecret, other).secret, key);
  EXPECT_NE(derive_pair_key(make_pair_secret(), identity).secret, key);
  EXPECT_NE(key, kTestSecret);
}

}  // namespace
}  // namespace wsync::transport
