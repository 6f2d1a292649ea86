#include "shared/control/frame.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"
#include "shared/control/link.h"
#include "tests/unit/control/random_message.h"

namespace wsync::control {
namespace {

using testing::HasSubstr;

TimePoint soon() { return now() + std::chrono::seconds(20); }

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

UniqueFd some_file() { return UniqueFd(::memfd_create("wsync-test", MFD_CLOEXEC)); }
ino_t inode(const UniqueFd& fd) {
  struct stat status{};
  EXPECT_EQ(::fstat(fd.get(), &status), 0);
  return status.st_ino;
}

Bytes framed(const Envelope& envelope, const Message& message, std::uint32_t fds = 0) {
  const Bytes encoded = encode(envelope, message).value();
  ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(encoded.size()));
  writer.put(fds);
  writer.put_raw(encoded);
  return std::move(writer).take();
}

TEST(FrameReader, CutsAnyStreamIntoItsFrames) {
  Bytes stream;
  std::vector<Bytes> expected;
  for (std::size_t kind = 0; kind < std::variant_size_v<AnyMessage>; ++kind) {
    Randomiser random(kind);
    const Envelope envelope = random.envelope();
    const Message message = random.message(kind);
    expected.push_back(encode(envelope, message).value());
    const Bytes frame = framed(envelope, message);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  std::mt19937_64 random(3);
  for (int repeat = 0; repeat < 30; ++repeat) {
    FrameReader reader;
    std::vector<Bytes> found;
    const std::size_t largest = 1 + random() % 300;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t n = std::min<std::size_t>(1 + random() % largest, stream.size() - at);
      ASSERT_TRUE(reader.feed(std::span(stream).subspan(at, n)).has_value());
      at += n;
      for (;;) {
        auto frame = reader.next();
        ASSERT_TRUE(frame.has_value()) << frame.error().message();
        if (!frame->has_value()) break;
        found.push_back(encode((*frame)->envelope, (*frame)->message).value());
      }
    }
    EXPECT_EQ(found, expected);
    EXPECT_EQ(reader.buffered(), 0U);
  }
}

TEST(FrameReader, LengthsOverTheLimitAreRefusedFromThePrefixAlone) {
  for (const std::uint32_t length : {0U, 63U, 1001U, 0xffffffffU}) {
    ByteWriter prefix;
    prefix.put(length);
    prefix.put(std::uint32_t{0});
    FrameReader reader(1000);
    ASSERT_TRUE(reader.feed(prefix.buffer()).has_value());
    const auto frame = reader.next();
    ASSERT_FALSE(frame.has_value()) << length;
    EXPECT_EQ(frame.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(frame.error().message(), HasSubstr(fmt::format("length {}", length)));
    EXPECT_FALSE(reader.feed(prefix.buffer()).has_value());  // and so it stays
    EXPECT_FALSE(reader.next().has_value());
  }
}

TEST(FrameReader, DescriptorsBelongToTheFrameThatAnnouncesThem) {
  FrameReader reader;
  const Bytes plain = framed({}, Resume{});
  const Bytes two = framed({}, Resume{}, 2);
  Bytes both = plain;
  both.insert(both.end(), two.begin(), two.end());
  std::vector<UniqueFd> fds;
  fds.push_back(some_file());
  fds.push_back(some_file());
  const std::vector<ino_t> inodes = {inode(fds[0]), inode(fds[1])};
  ASSERT_TRUE(reader.feed(both, std::move(fds)).has_value());
  EXPECT_TRUE(reader.next().value().value().fds.empty());
  const auto frame = reader.next().value();
  ASSERT_EQ(frame->fds.size(), 2U);
  EXPECT_EQ(inode(frame->fds[0]), inodes[0]);
  EXPECT_EQ(inode(frame->fds[1]), inodes[1]);
}

TEST(FrameReader, MissingExtraAndTooManyDescriptorsAreRefusedWithoutALeak) {
  const std::size_t before = open_descriptors();
  {
    FrameReader missing;
    ASSERT_TRUE(missing.feed(framed({}, Resume{}, 1)).has_value());
    EXPECT_THAT(missing.next().error().message(),
                HasSubstr("announces 1 descriptors, but 0 arrived"));

    FrameReader extra;
    std::vector<UniqueFd> fds;
    fds.push_back(some_file());
    ASSERT_TRUE(extra.feed(framed({}, Resume{}), std::move(fds)).has_value());
    EXPECT_TRUE(extra.next().value().has_value());
    EXPECT_THAT(extra.next().error().message(), HasSubstr("no frame announced"));

    FrameReader announced;
    ASSERT_TRUE(announced.feed(framed({}, Resume{}, 65)).has_value());
    EXPECT_THAT(announced.next().error().message(), HasSubstr("65 descriptors, at most 64"));

    FrameReader many;
    std::vector<UniqueFd> crowd;
    for (std::size_t i = 0; i <= limits::kFdsPerFrame; ++i) crowd.push_back(some_file());
    EXPECT_EQ(many.feed({}, std::move(crowd)).error().code(), ErrorCode::kInvalidInput);
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST(FrameReader, AnUnknownTypeIsRefusedWithItsEnvelope) {
  Bytes frame = framed({.round = 8, .request = 9}, Resume{});
  frame[kFramePrefixBytes + 6] = std::byte{0xee};
  FrameReader reader;
  ASSERT_TRUE(reader.feed(frame).has_value());
  EXPECT_EQ(reader.next().error().code(), ErrorCode::kRefused);
  ASSERT_TRUE(reader.refused().has_value());
  EXPECT_EQ(reader.refused()->request, 9U);
}

TEST(FrameWriter, TheQueueIsBounded) {
  auto [a, b] = unix_socket_pair().value();
  FrameWriter writer(200);
  ASSERT_TRUE(writer.push({}, Resume{}).has_value());
  ASSERT_TRUE(writer.push({}, Resume{}).has_value());
  EXPECT_EQ(writer.push({}, Resume{}).error().code(), ErrorCode::kBusy);
  EXPECT_TRUE(writer.flush(a.get()).value());
  EXPECT_EQ(writer.queued_bytes(), 0U);
  EXPECT_TRUE(writer.push({}, Resume{}).has_value());
}

TEST(Link, FramesAndDescriptorsCrossInBothDirections) {
  const std::size_t before = open_descriptors();
  {
    auto [a, b] = unix_socket_pair().value();
    Link left(std::move(a));
    Link right(std::move(b));
    UniqueFd file = some_file();
    const ino_t sent = inode(file);
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(file));
    ASSERT_TRUE(left.send({.request = 1}, Prepare{.version = {.epoch = 1, .step = 2}},
                          std::move(fds), soon())
                    .has_value());
    ASSERT_TRUE(left.send({.request = 2}, Resume{}, {}, soon()).has_value());
    const auto prepare = right.receive(soon());
    ASSERT_TRUE(prepare.has_value()) << prepare.error().message();
    EXPECT_EQ(std::get<Prepare>(prepare->message).version, (Version{.epoch = 1, .step = 2}));
    ASSERT_EQ(prepare->fds.size(), 1U);
    EXPECT_EQ(inode(prepare->fds[0]), sent);
    EXPECT_EQ(right.receive(soon())->envelope.request, 2U);
    EXPECT_EQ(right.receive(now()).error().code(), ErrorCode::kDeadline);
    ASSERT_TRUE(right.send({}, Resumed{}, {}, soon()).has_value());
    EXPECT_TRUE(std::holds_alternative<Resumed>(left.receive(soon())->message));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Link, LargeMessagesPassWhileBothSidesWork) {
  auto [a, b] = unix_socket_pair().value();
  Link left(std::move(a));
  Link right(std::move(b));
  Announce announce;
  Bytes layout(8 * limits::kMiB);
  for (std::size_t i = 0; i < layout.size(); ++i) layout[i] = static_cast<std::byte>(i * 7);
  announce.layout = std::move(layout);
  Result<> sent;
  std::thread sender([&] { sent = left.send({}, announce, {}, soon()); });
  const auto frame = right.receive(soon());
  sender.join();
  ASSERT_TRUE(sent.has_value());
  ASSERT_TRUE(frame.has_value()) << frame.error().message();
  EXPECT_EQ(std::get<Announce>(frame->message).layout, announce.layout);
}

TEST(Link, APeerThatDoesNotReadIsADeadlineNotAHang) {
  auto [a, b] = unix_socket_pair().value();
  Link left(std::move(a));
  Link right(std::move(b));
  Announce announce;
  announce.layout = Bytes(8 * limits::kMiB);
  EXPECT_EQ(left.send({}, announce, {}, now() + std::chrono::milliseconds(20)).error().code(),
            ErrorCode::kDeadline);
  // Half a frame went out, so the connection has ended for both.
  EXPECT_EQ(right.receive(soon()).error().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(left.send({}, Resume{}, {}, soon()).error().code(), ErrorCode::kPeerLost);
}

TEST(Link, ARefusalSentBeforeHangingUpIsStillRead) {
  auto [a, b] = unix_socket_pair().value();
  Link engine(std::move(a));
  {
    Link sidecar(std::move(b));
    ASSERT_TRUE(engine.send({}, EngineHello{}, {}, soon()).has_value());
    ASSERT_TRUE(sidecar.send({}, Refuse{.reason = "no room"}, {}, soon()).has_value());
  }
  EXPECT_EQ(engine.send({}, Resumed{}, {}, soon()).error().code(), ErrorCode::kPeerLost);
  const auto refuse = engine.receive(soon());
  ASSERT_TRUE(refuse.has_value()) << refuse.error().message();
  EXPECT_EQ(std::get<Refuse>(refuse->message).reason, "no room");
  EXPECT_EQ(engine.receive(soon()).error().code(), ErrorCode::kPeerLost);
}

TEST(Link, ShuttingDownWakesAWaitingReceiver) {
  auto [a, b] = unix_socket_pair().value();
  Link left(std::move(a));
  Link right(std::move(b));
  ErrorCode code = ErrorCode::kInternal;
  std::thread receiver([&] { code = left.receive(soon()).error().code(); });
  left.shut_down();
  receiver.join();
  EXPECT_EQ(code, ErrorCode::kPeerLost);
}

TEST(Link, GarbageIsRefused) {
  auto [a, b] = unix_socket_pair().value();
  Link link(std::move(a));
  Bytes garbage(4096, std::byte{0xab});
  ASSERT_EQ(send_some(b.get(), garbage).value(), garbage.size());
  EXPECT_EQ(link.receive(soon()).error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::control
