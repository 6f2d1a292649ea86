#include "shared/control/unix_stream.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <sys/mman.h>

#include "shared/base/units.h"
#include "shared/loop/timer.h"

namespace wsync::control {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class Stream : public testing::Test {
 protected:
  void SetUp() override {
    std::array<char, 32> name{"/tmp/wsync-test-XXXXXX"};
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    path_ = std::string(name.data()) + "/engine.sock";
    loop_ = Loop::create().value();
    guard_ = std::make_unique<Timer>(*loop_, [this] {
      ADD_FAILURE() << "nothing ended the loop";
      loop_->stop();
    });
    guard_->start(std::chrono::seconds(60));
  }
  void TearDown() override {
    guard_.reset();
    loop_.reset();
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  }
  // Callbacks that must not be used.
  static StreamCallbacks silent() {
    return {.on_frame = [](Frame) { FAIL(); }, .on_close = [](const Error&) { FAIL(); }};
  }
  std::string path_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Timer> guard_;
};

TEST_F(Stream, AnEngineAndASidecarTalkAndPassDescriptors) {
  std::unique_ptr<UnixStream> server;
  std::unique_ptr<UnixStream> client;
  std::vector<std::string> heard;
  auto listener = UnixListener::create(*loop_, path_, [&](UniqueFd socket, PeerCredentials peer) {
    EXPECT_EQ(peer.pid, ::getpid());
    server = UnixStream::adopt(
                 *loop_, std::move(socket),
                 {.on_frame =
                      [&](const Frame& frame) {
                        heard.emplace_back(message_name(type_of(frame.message)));
                        std::vector<UniqueFd> fds;
                        fds.emplace_back(::memfd_create("arena", MFD_CLOEXEC));
                        EXPECT_TRUE(server->send({.request = 4}, Prepare{}, std::move(fds)));
                      },
                  .on_close =
                      [&](const Error& error) {
                        EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
                        heard.emplace_back("closed");
                        loop_->stop();
                      }})
                 .value();
  });
  ASSERT_TRUE(listener.has_value()) << listener.error().message();
  EXPECT_EQ(UnixListener::create(*loop_, path_, [](UniqueFd, PeerCredentials) {}).error().code(),
            ErrorCode::kBusy);
  client = UnixStream::connect(*loop_, path_,
                               {.on_frame =
                                    [&](const Frame& frame) {
                                      EXPECT_EQ(frame.fds.size(), 1U);
                                      EXPECT_EQ(frame.envelope.request, 4U);
                                      heard.emplace_back(message_name(type_of(frame.message)));
                                      client.reset();  // inside its own callback
                                    },
                                .on_close = [](const Error&) { FAIL(); }})
               .value();
  ASSERT_TRUE(client->send({.replica = "r"}, EngineHello{}).has_value());
  loop_->run();
  EXPECT_EQ(heard, (std::vector<std::string>{"EngineHello", "Prepare", "closed"}));
}

TEST_F(Stream, LargeFramesPassThroughTheQueueInOrder) {
  auto [a, b] = unix_socket_pair().value();
  constexpr std::size_t kFrames = 5;
  std::size_t received = 0;
  auto sender = UnixStream::adopt(*loop_, std::move(a), silent()).value();
  auto receiver =
      UnixStream::adopt(*loop_, std::move(b),
                        {.on_frame =
                             [&](const Frame& frame) {
                               EXPECT_EQ(frame.envelope.request, received);
                               EXPECT_EQ(std::get<Announce>(frame.message).layout.size(),
                                         2 * limits::kMiB);
                               if (++received == kFrames) loop_->stop();
                             },
                         .on_close = [](const Error&) { FAIL(); }})
          .value();
  Announce announce;
  announce.layout = Bytes(2 * limits::kMiB);
  for (std::size_t i = 0; i < kFrames; ++i)
    ASSERT_TRUE(sender->send({.request = i}, announce).has_value());
  EXPECT_GT(sender->queued_bytes(), 0U);
  loop_->run();
  EXPECT_EQ(received, kFrames);
  EXPECT_EQ(sender->queued_bytes(), 0U);
}

TEST_F(Stream, AnUnknownMessageIsAnsweredThenTheConnectionCloses) {
  auto [a, b] = unix_socket_pair().value();
  Bytes encoded = encode({.round = 2, .request = 77}, Resume{}).value();
  encoded[6] = std::byte{0xee};
  ByteWriter frame;
  frame.put(static_cast<std::uint32_t>(encoded.size()));
  frame.put(std::uint32_t{0});
  frame.put_raw(encoded);
  ASSERT_EQ(send_some(a.get(), frame.buffer()).value(), frame.size());
  std::optional<Frame> reply;
  int closed = 0;
  const auto stop_when_both_closed = [&] {
    if (++closed == 2) loop_->stop();
  };
  auto peer = UnixStream::adopt(*loop_, std::move(a),
                                {.on_frame = [&](Frame f) { reply = std::move(f); },
                                 .on_close = [&](const Error&) { stop_when_both_closed(); }})
                  .value();
  auto stream = UnixStream::adopt(*loop_, std::move(b),
                                  {.on_frame = [](const Frame&) { FAIL(); },
                                   .on_close =
                                       [&](const Error& error) {
                                         EXPECT_EQ(error.code(), ErrorCode::kRefused);
                                         stop_when_both_closed();
                                       }})
                    .value();
  loop_->run();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->envelope.request, 77U);
  EXPECT_THAT(std::get<ErrorReply>(reply->message).message, HasSubstr("type 238 is unknown"));
}

TEST_F(Stream, GarbageClosesTheConnectionWithoutAnAnswer) {
  auto [a, b] = unix_socket_pair().value();
  const Bytes garbage(500, std::byte{0x5a});
  ASSERT_TRUE(send_some(a.get(), garbage).has_value());
  auto stream = UnixStream::adopt(*loop_, std::move(b),
                                  {.on_frame = [](const Frame&) { FAIL(); },
                                   .on_close =
                                       [&](const Error& error) {
                                         EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
                                         loop_->stop();
                                       }})
                    .value();
  loop_->run();
  EXPECT_EQ(stream->send({}, Resume{}).error().code(), ErrorCode::kPeerLost);
  std::vector<UniqueFd> fds;
  std::array<std::byte, 8> buffer{};
  EXPECT_EQ(receive_some(a.get(), buffer, fds).error().code(), ErrorCode::kPeerLost);
}

TEST_F(Stream, FinishSendsTheRestAndHasADeadline) {
  // One peer reads, one does not.
  auto [a, b] = unix_socket_pair().value();
  auto [c, d] = unix_socket_pair().value();
  std::vector<ErrorCode> ends;
  const auto note = [&](const Error& error) {
    ends.push_back(error.code());
    if (ends.size() == 3) loop_->stop();
  };
  Announce announce;
  announce.layout = Bytes(4 * limits::kMiB);
  bool arrived = false;
  auto reader =
      UnixStream::adopt(*loop_, std::move(b),
                        {.on_frame = [&](const Frame&) { arrived = true; }, .on_close = note})
          .value();
  const auto end_only = [&] {
    return StreamCallbacks{.on_frame = [](const Frame&) { FAIL(); }, .on_close = note};
  };
  auto heard = UnixStream::adopt(*loop_, std::move(a), end_only()).value();
  auto ignored = UnixStream::adopt(*loop_, std::move(c), end_only()).value();
  ASSERT_TRUE(heard->send({}, announce).has_value());
  ASSERT_TRUE(ignored->send({}, announce).has_value());
  heard->finish(std::chrono::seconds(30));
  ignored->finish(milliseconds(30));
  EXPECT_TRUE(ends.empty());
  EXPECT_EQ(heard->send({}, Resume{}).error().code(), ErrorCode::kPeerLost);
  loop_->run();
  EXPECT_TRUE(arrived);
  EXPECT_THAT(ends, testing::UnorderedElementsAre(ErrorCode::kCancelled, ErrorCode::kPeerLost,
                                                  ErrorCode::kDeadline));
}

TEST_F(Stream, WhatAPeerSaidBeforeItHungUpIsDelivered) {
  auto [a, b] = unix_socket_pair().value();
  std::vector<std::string> heard;
  auto stream = UnixStream::adopt(*loop_, std::move(a),
                                  {.on_frame =
                                       [&](const Frame& frame) {
                                         heard.emplace_back(message_name(type_of(frame.message)));
                                       },
                                   .on_close =
                                       [&](const Error& error) {
                                         EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
                                         heard.emplace_back("closed");
                                         loop_->stop();
                                       }})
                    .value();
  {
    FrameWriter writer;
    ASSERT_TRUE(writer.push({}, Refuse{.reason = "no room"}).has_value());
    ASSERT_TRUE(writer.flush(b.get()).value());
    b.reset();
  }
  EXPECT_EQ(stream->send({}, Resumed{}).error().code(), ErrorCode::kPeerLost);
  loop_->run();
  EXPECT_EQ(heard, (std::vector<std::string>{"Refuse", "closed"}));
}

}  // namespace
}  // namespace wsync::control
