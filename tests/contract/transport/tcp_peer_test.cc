// What the TCP ends do with peers that misbehave: plain sockets play the peer.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/tcp_address.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/frame.h"
#include "shared/transport/limits.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"
#include "tests/contract/transport/stream_fixture.h"

namespace wsync::transport {
namespace {

using ::testing::HasSubstr;
constexpr std::chrono::milliseconds kTcpShort{600};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(port);
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return where;
}

// Reads until the peer closes; false when it has not within ten seconds.
bool closed_by_peer(int fd) {
  std::array<char, 4096> buffer;
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, 10'000) == 1)
    if (::read(fd, buffer.data(), buffer.size()) <= 0) return true;
  return false;
}

class TcpPeer : public ::testing::Test {
 protected:
  OwnerLoop loop_;
  TestVersion version_{1};
  std::unique_ptr<tcp::UvThread> thread_ = std::move(*tcp::UvThread::start());
  std::unique_ptr<tcp::TcpSource> source_ = std::move(
      *tcp::TcpSource::listen(*thread_, {.stall_deadline = kTcpShort, .offer_wait = kTcpShort}));
  Receiver receiver_{std::make_unique<tcp::TcpSink>(*thread_, loop_.post()),
                     version_.data().size()};

  [[nodiscard]] UniqueFd connect_to_source() const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in where = loopback(parse_tcp_address(source_->address())->port);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    return fd;
  }
  static void send_all(int fd, std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  [[nodiscard]] Frame get(std::uint64_t bucket) const {
    return {.type = FrameType::kGet,
            .key = version_.key(),
            .bucket = bucket,
            .bytes = version_.buckets()[bucket].bytes};
  }
};

TEST_F(TcpPeer, GarbageClosesTheConnectionAndIsCounted) {
  const UniqueFd peer = connect_to_source();
  const std::vector<std::byte> garbage(1000, std::byte{'x'});
  send_all(peer.get(), garbage);
  EXPECT_TRUE(closed_by_peer(peer.get()));
  EXPECT_EQ(source_->counters().garbage_peers, 1U);
  // Others are served as before.
  source_->offer(version_.offer());
  ASSERT_TRUE(receiver_.receive(receiver_.wanted(version_, source_->address())).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
  EXPECT_TRUE(receiver_.holds(version_));
}

TEST_F(TcpPeer, AnswerWhereARequestBelongsIsGarbage) {
  const UniqueFd peer = connect_to_source();
  Frame bucket = get(0);
  bucket.type = FrameType::kBucket;
  send_all(peer.get(), encode_frame(bucket));
  EXPECT_TRUE(closed_by_peer(peer.get()));
  EXPECT_EQ(source_->counters().garbage_peers, 1U);
}

TEST_F(TcpPeer, TooManyRequestsAtATimeAreGarbage) {
  const UniqueFd peer = connect_to_source();
  for (std::uint64_t i = 0; i <= limits::kStreamRequestsPending; ++i)
    send_all(peer.get(), encode_frame(get(0)));
  EXPECT_TRUE(closed_by_peer(peer.get()));
  EXPECT_EQ(source_->counters().garbage_peers, 1U);
}

TEST_F(TcpPeer, SilentPeerIsClosedAtTheDeadline) {
  const UniqueFd peer = connect_to_source();
  EXPECT_TRUE(closed_by_peer(peer.get()));
  EXPECT_EQ(source_->counters().garbage_peers, 0U);
}

TEST_F(TcpPeer, PeerThatDoesNotReadIsClosedAndLetsTheMemoryGo) {
  const TestVersion big(2, 64 * limits::kMiB);  // more than the sockets take
  source_->offer(big.offer());
  const UniqueFd peer = connect_to_source();
  const int small = 64 << 10U;
  ASSERT_EQ(::setsockopt(peer.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  for (std::uint64_t i = 0; i < limits::kStreamRequestsPending; ++i)
    send_all(peer.get(), encode_frame({.key = big.key(), .bucket = i, .bytes = limits::kMiB}));
  pollfd waiting{.fd = peer.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);  // the first bucket is under way
  source_->withdraw(big.key().version, "superseded");
  // Nothing is read until the source has given up. Its farewell waits behind the bytes that nobody
  // takes; that its memory is free can be seen at once.
  const TimePoint until = now() + std::chrono::seconds(30);
  while (!big.arena().try_write_lease({}) && now() < until) std::this_thread::yield();
  EXPECT_TRUE(big.arena().try_write_lease({}).has_value());
  EXPECT_TRUE(closed_by_peer(peer.get()));
}

TEST_F(TcpPeer, BucketCutDifferentlyIsRefused) {
  source_->offer(version_.offer());
  FetchRequest wanted = receiver_.wanted(version_, source_->address());
  wanted.buckets = {{.offset = 0, .bytes = 2 * limits::kMiB}};
  wanted.leaves =
      std::make_shared<const LeafTable>(std::vector<LeafPlace>(), std::vector<std::size_t>{0, 0});
  ASSERT_TRUE(receiver_.receive(std::move(wanted)).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
  EXPECT_THAT(receiver_.failure_text(), HasSubstr("cut differently"));
  EXPECT_EQ(source_->counters().refused, 1U);
}

TEST_F(TcpPeer, DamagedBucketIsRefusedAndNotReported) {
  Offer offer = version_.offer();
  offer.complete = false;
  source_->offer(std::move(offer));
  // The promised digest belongs to other bytes: what a flipped bit on the way looks like.
  source_->bucket_ready(version_.key().version, 0, version_.digest(1));
  ASSERT_TRUE(receiver_.receive(receiver_.wanted(version_, source_->address())).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over() || !receiver_.buckets.empty(); }));
  ASSERT_TRUE(receiver_.failure.has_value()) << "the damaged bucket was taken";
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kDigestMismatch);
  EXPECT_EQ(receiver_.failure->first_missing, 0U);
  EXPECT_TRUE(receiver_.buckets.empty());
}

TEST_F(TcpPeer, LiveSourceWithoutTheBucketIsNotALoss) {
  Offer offer = version_.offer();
  offer.complete = false;
  source_->offer(std::move(offer));
  const UniqueFd peer = connect_to_source();
  send_all(peer.get(), encode_frame(get(0)));
  // Signs of life come for longer than the deadline of silence.
  for (int i = 0; i < 3; ++i) {
    std::array<std::byte, kFrameBytes> bytes;
    ASSERT_EQ(::recv(peer.get(), bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    const auto frame = decode_frame(bytes);
    ASSERT_TRUE(frame.has_value()) << frame.error().message();
    EXPECT_EQ(frame->type, FrameType::kWaiting);
  }
}

TEST_F(TcpPeer, PlainConnectionsStayOnLoopbackUnlessTheNetworkIsTrusted) {
  for (const char* address :
       {"tcp://10.0.0.1:5000", "tcp://trainer0:5000", "tcp://[fd00::1]:5000"}) {
    const auto begun = receiver_.receive(receiver_.wanted(version_, address));
    ASSERT_FALSE(begun.has_value());
    EXPECT_EQ(begun.error().code(), ErrorCode::kRefused);
    EXPECT_THAT(begun.error().message(), HasSubstr("is not on loopback"));
  }
  for (const char* address : {"tcp://10.0.0.1:5000", "tcp://[fd00::1]:5000"})
    EXPECT_EQ(tcp::TcpSource::listen(*thread_, {.listen = address}).error().code(),
              ErrorCode::kRefused);
  const auto any = tcp::TcpSource::listen(
      *thread_, {.listen = "tcp://0.0.0.0:0", .advertise = "host7", .may_leave_host = true});
  ASSERT_TRUE(any.has_value()) << any.error().message();
  EXPECT_THAT((*any)->address(), ::testing::StartsWith("tcp://host7:"));
}

TEST_F(TcpPeer, AnAddressThatOthersCannotUseIsRefused) {
  EXPECT_THAT(
      tcp::TcpSource::listen(*thread_, {.listen = "tcp://0.0.0.0:0", .may_leave_host = true})
          .error()
          .message(),
      HasSubstr("set `advertise`"));
  EXPECT_THAT(tcp::TcpSource::listen(*thread_, {.listen = "tcp://host7:0", .may_leave_host = true})
                  .error()
                  .message(),
              HasSubstr("is a name"));
}

TEST_F(TcpPeer, ASourceIsFoundByItsName) {
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  addrinfo* found = nullptr;
  const int looked_up = ::getaddrinfo(name.data(), nullptr, nullptr, &found);
  if (found != nullptr) ::freeaddrinfo(found);
  if (looked_up != 0) GTEST_SKIP() << "the name of this host has no address";
  const auto any = tcp::TcpSource::listen(
      *thread_, {.listen = "tcp://0.0.0.0:0", .advertise = name.data(), .may_leave_host = true});
  ASSERT_TRUE(any.has_value()) << any.error().message();
  (*any)->offer(version_.offer());
  Receiver named(
      std::make_unique<tcp::TcpSink>(*thread_, loop_.post(),
                                     tcp::TcpSinkOptions{.prepare = tcp::plain_channels(true)}),
      version_.data().size());
  ASSERT_TRUE(named.receive(named.wanted(version_, (*any)->address())).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return named.is_over(); }));
  EXPECT_TRUE(named.holds(version_)) << named.failure_text();
}

TEST_F(TcpPeer, ANameThatNobodyHasIsALoss) {
  Receiver named(
      std::make_unique<tcp::TcpSink>(*thread_, loop_.post(),
                                     tcp::TcpSinkOptions{.prepare = tcp::plain_channels(true)}),
      version_.data().size());
  ASSERT_TRUE(named.receive(named.wanted(version_, "tcp://nobody.invalid:1")).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return named.is_over(); }));
  ASSERT_TRUE(named.failure.has_value());
  EXPECT_EQ(named.failure->error.code(), ErrorCode::kPeerLost) << named.failure_text();
}

TEST_F(TcpPeer, PortInUseIsAnError) {
  const auto second = tcp::TcpSource::listen(*thread_, {.listen = source_->address()});
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().message(), HasSubstr("address already in use"));
}

TEST_F(TcpPeer, WindowsOutsideTheArenaAreRefused) {
  FetchRequest wanted = receiver_.wanted(version_, source_->address());
  wanted.buckets.back().offset += 1;
  EXPECT_EQ(receiver_.receive(std::move(wanted)).error().code(), ErrorCode::kInvalidInput);
  wanted = receiver_.wanted(version_, source_->address());
  wanted.into = wanted.into.first(10);
  EXPECT_EQ(receiver_.receive(std::move(wanted)).error().code(), ErrorCode::kInvalidInput);
}

// A source that accepts and then does what `answer` says with each connection.
class FalseSource {
 public:
  explicit FalseSource(std::span<const std::byte> answer) {
    sockaddr_in where = loopback(0);
    socklen_t length = sizeof where;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    EXPECT_EQ(::listen(fd_.get(), 16), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&where), &length), 0);
    port_ = ntohs(where.sin_port);
    thread_ = std::jthread([this, bytes = Bytes(answer.begin(), answer.end())] {
      std::vector<UniqueFd> open;
      for (;;) {
        UniqueFd peer(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!peer.valid()) return;
        (void)!::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        open.push_back(std::move(peer));
      }
    });
  }
  ~FalseSource() { ::shutdown(fd_.get(), SHUT_RDWR); }
  [[nodiscard]] std::string address() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

 private:
  UniqueFd fd_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

TEST_F(TcpPeer, SilentSourceIsALossAtTheDeadline) {
  const FalseSource silent({});
  FetchRequest wanted = receiver_.wanted(version_, silent.address());
  wanted.stall_deadline = kTcpShort;
  ASSERT_TRUE(receiver_.receive(std::move(wanted)).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
  ASSERT_TRUE(receiver_.failure.has_value());
  EXPECT_EQ(receiver_.failure->error.code(), ErrorCode::kDeadline);
}

TEST_F(TcpPeer, SourceThatSendsGarbageOrWhatWasNotAskedFails) {
  Frame unasked = get(0);
  unasked.type = FrameType::kBucket;
  unasked.key.version.step += 1;
  Frame too_big = get(0);
  too_big.type = FrameType::kBucket;
  too_big.bytes += 1;
  const std::vector<std::byte> garbage(200, std::byte{7});
  for (const auto& [frame, sentence] :
       {std::pair{unasked, "was not asked for"}, std::pair{too_big, "sent 1048577 bytes"}}) {
    const auto bytes = encode_frame(frame);
    const FalseSource source(bytes);
    receiver_.failure.reset();
    ASSERT_TRUE(receiver_.receive(receiver_.wanted(version_, source.address())).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
    EXPECT_THAT(receiver_.failure_text(), HasSubstr(sentence));
  }
  const FalseSource source(garbage);
  receiver_.failure.reset();
  ASSERT_TRUE(receiver_.receive(receiver_.wanted(version_, source.address())).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
  EXPECT_THAT(receiver_.failure_text(), HasSubstr("magic"));
}

// A version of one bucket of eight leaves.
class FalseLeaves : public TcpPeer {
 protected:
  static constexpr std::uint64_t kBytes = 8 * limits::kMiB;

  // What a source sends of bucket 0, with the right digest.
  [[nodiscard]] Bytes leaves(std::uint64_t offset, std::uint64_t bytes) const {
    std::vector<WordSum> sums;
    for (const LeafPlace& leaf : large_.leaves()->all())
      if (leaf.arena_offset >= offset && leaf.arena_offset + leaf.bytes <= offset + bytes)
        sums.push_back(large_.sums()[leaf.arena_offset / limits::kLeafBytes]);
    Bytes sent;
    const auto append = [&sent](const auto& more) {
      const auto from = std::as_bytes(std::span(more));
      sent.insert(sent.end(), from.begin(), from.end());
    };
    append(encode_frame({.type = FrameType::kLeaves,
                         .key = large_.key(),
                         .bucket = 0,
                         .bytes = bytes,
                         .offset = offset}));
    append(large_.data().subspan(offset, bytes));
    append(encode_trailer(bucket_digest(sums)));
    return sent;
  }
  void fetch(std::initializer_list<Bytes> sent) {
    Bytes all;
    for (const Bytes& each : sent) all.insert(all.end(), each.begin(), each.end());
    const FalseSource source(all);
    FetchRequest wanted = sink_.wanted(large_, source.address());
    wanted.stall_deadline = std::chrono::seconds(30);
    sink_.failure.reset();
    ASSERT_TRUE(sink_.receive(std::move(wanted)).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return sink_.is_over(); }));
  }
  TestVersion large_{1, kBytes,
                     [](std::span<std::byte> out) {
                       std::mt19937_64 random(1);
                       fill_random(random, out);
                     },
                     "wsync-test", kBytes};
  Receiver sink_{std::make_unique<tcp::TcpSink>(*thread_, loop_.post()), kBytes};
};

TEST_F(FalseLeaves, ThatEndTheBucketAreTaken) {
  fetch({leaves(0, limits::kMiB), leaves(limits::kMiB, kBytes - limits::kMiB)});
  EXPECT_TRUE(sink_.holds(large_)) << sink_.failure_text();
}

TEST_F(FalseLeaves, OfAnotherPlaceThanTheNextAreRefused) {
  for (const auto& [first, second] :
       {std::pair{leaves(limits::kMiB, limits::kMiB), Bytes()},
        std::pair{leaves(0, limits::kMiB), leaves(0, limits::kMiB)},
        std::pair{leaves(0, limits::kMiB), leaves(2 * limits::kMiB, limits::kMiB)}}) {
    fetch({first, second});
    EXPECT_THAT(sink_.failure_text(), HasSubstr("of whose 8388608 bytes"));
  }
}

TEST_F(FalseLeaves, ThatDoNotEndWithALeafAreRefused) {
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{8}, limits::kMiB - 8, limits::kMiB + 8, kBytes - 8}) {
    fetch({leaves(0, bytes)});
    EXPECT_THAT(sink_.failure_text(), HasSubstr("do not end where a leaf ends")) << bytes;
  }
}

TEST_F(FalseLeaves, BehindTheEndOfTheBucketAreRefused) {
  Bytes longer = leaves(0, kBytes);
  Frame header = *decode_frame(std::span(longer).first<kFrameBytes>());
  header.bytes += 8;
  std::ranges::copy(encode_frame(header), longer.begin());
  fetch({longer});
  EXPECT_THAT(sink_.failure_text(), HasSubstr("8388616 bytes of leaves of bucket 0 from byte 0"));
}

TEST_F(FalseLeaves, OfASmallBucketWereNotAskedFor) {
  Frame frame = get(0);
  frame.type = FrameType::kLeaves;
  const FalseSource source(encode_frame(frame));
  ASSERT_TRUE(receiver_.receive(receiver_.wanted(version_, source.address())).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return receiver_.is_over(); }));
  EXPECT_THAT(receiver_.failure_text(), HasSubstr("which was asked for as a whole"));
}

// Sockets play the receiver.
class LeavesPeer : public FalseLeaves {
 protected:
  void ask(bool takes_leaves) const {
    send_all(peer_.get(), encode_frame({.type = FrameType::kGet,
                                        .key = large_.key(),
                                        .bucket = 0,
                                        .bytes = kBytes,
                                        .takes_leaves = takes_leaves}));
  }
  // The next frame, whose payload is thrown away.
  [[nodiscard]] Frame receive() const {
    std::array<std::byte, kFrameBytes> bytes;
    EXPECT_EQ(::recv(peer_.get(), bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    const auto frame = decode_frame(bytes);
    EXPECT_TRUE(frame.has_value());
    if (!frame || frame->type == FrameType::kWaiting) return frame.value_or(Frame());
    Bytes rest(frame->bytes + kTrailerBytes);
    EXPECT_EQ(::recv(peer_.get(), rest.data(), rest.size(), MSG_WAITALL),
              static_cast<ssize_t>(rest.size()));
    return *frame;
  }
  const UniqueFd peer_ = connect_to_source();
};

// As one of an older release.
TEST_F(LeavesPeer, OneThatDoesNotAskForThemGetsWholeBuckets) {
  source_->offer(large_.offer());
  ask(false);
  EXPECT_EQ(receive().type, FrameType::kBucket);
  ask(true);
  EXPECT_EQ(receive().type, FrameType::kLeaves);
}

TEST_F(LeavesPeer, BetweenTwoOfThemTheSourceShowsThatItLives) {
  Offer offer = large_.offer();
  offer.complete = false;
  source_->offer(std::move(offer));
  source_->leaves_ready(large_.key().version,
                        {.bucket = 0, .first = 0, .sums = {large_.sums().front()}});
  ask(true);
  EXPECT_EQ(receive().type, FrameType::kLeaves);
  // For longer than the deadline of silence.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(receive().type, FrameType::kWaiting);
  source_->bucket_summed(large_.key().version, 0, large_.sums());
  Frame next = receive();
  while (next.type == FrameType::kWaiting) next = receive();
  EXPECT_EQ(next.type, FrameType::kLeaves);
  EXPECT_EQ(next.offset, limits::kMiB);
}

// A version of one bucket that is fetched by a receiver which holds the one before.
class FalseChanges : public TcpPeer {
 protected:
  // What a source sends: changes with this payload, and maybe the bucket behind them.
  [[nodiscard]] Bytes answer(std::span<const std::byte> payload, bool with_bucket = false) const {
    Frame frame{.type = FrameType::kChanges,
                .key = target_.key(),
                .bucket = 0,
                .bytes = payload.size(),
                .base = base_.key().version};
    Bytes bytes;
    const auto append = [&bytes](const auto& more) {
      const auto from = std::as_bytes(std::span(more));
      bytes.insert(bytes.end(), from.begin(), from.end());
    };
    append(encode_frame(frame));
    append(payload);
    append(encode_trailer(target_.digest(0)));
    if (!with_bucket) return bytes;
    frame.type = FrameType::kBucket;
    frame.base = {};
    frame.bytes = target_.data().size();
    append(encode_frame(frame));
    append(target_.data());
    append(encode_trailer(target_.digest(0)));
    return bytes;
  }
  void fetch(const Bytes& bytes, bool has_base = true) {
    const FalseSource source(bytes);
    FetchRequest wanted = small_.wanted(target_, source.address());
    if (has_base)
      wanted.base = FetchBase{.version = base_.key().version,
                              .data = base_.data(),
                              .hold = {},
                              .blocks = base_.blocks(),
                              .max_share = 0.5};
    wanted.stall_deadline = std::chrono::seconds(30);
    ASSERT_TRUE(small_.receive(std::move(wanted)).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return small_.is_over(); }));
  }
  TestVersion base_{1, limits::kMiB / 2};
  TestVersion target_{2, base_, 2'000};
  Receiver small_{std::make_unique<tcp::TcpSink>(*thread_, loop_.post()), base_.data().size()};
};

TEST_F(FalseChanges, WithoutARequestForThemAreRefused) {
  fetch(answer(Bytes(8)), false);
  EXPECT_THAT(small_.failure_text(), HasSubstr("8 bytes of changes from 1.1"));
}

TEST_F(FalseChanges, ThatAreLargerThanAskedForAreRefused) {
  fetch(answer(Bytes(limits::kMiB / 4 + 1)));
  EXPECT_THAT(small_.failure_text(), HasSubstr("at most 262144 from 1.1 were asked for"));
}

TEST_F(FalseChanges, ThatCannotBeReadCostTheBucketInFull) {
  fetch(answer(Bytes(100, std::byte{9}), true));
  EXPECT_TRUE(small_.holds(target_)) << small_.failure_text();
  EXPECT_EQ(small_.by_changes, 0U);
}

TEST_F(FalseChanges, ThatLeadToOtherBytesCostTheBucketInFull) {
  fetch(answer(Bytes(8), true));  // "nothing changes"
  EXPECT_TRUE(small_.holds(target_)) << small_.failure_text();
  EXPECT_EQ(small_.by_changes, 0U);
}

// The base is given up with the first changes that do not fit, and not asked for again.
TEST_F(FalseChanges, AreNotTakenTwice) {
  Bytes twice = answer(Bytes(8));
  const Bytes again = twice;
  twice.insert(twice.end(), again.begin(), again.end());
  fetch(twice);
  EXPECT_THAT(small_.failure_text(), HasSubstr("at most 0 from 0.0 were asked for"));
}

}  // namespace
}  // namespace wsync::transport
