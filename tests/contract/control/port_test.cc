// What every implementation of RouterPort and DealerPort must do, on every kind of address.
#include "shared/control/port.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/unix_socket.h"
#include "shared/control/codec.h"
#include "shared/control/zmq/ports.h"
#include "shared/control/zmq/socket.h"
#include "shared/loop/timer.h"
#include "tests/contract/control/test_keys.h"
#include "tests/unit/control/random_message.h"

namespace wsync::control {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Long enough for the slowest machine: only the tests of silence wait for a deadline.
constexpr PortTimes kPatient{.heartbeat_interval = milliseconds(50),
                             .silence_deadline = milliseconds(60'000)};
constexpr PortTimes kImpatient{.heartbeat_interval = milliseconds(5),
                               .silence_deadline = milliseconds(50)};

struct Kind {
  std::string name;
  std::string scheme;  // completed by the test's directory for ipc
  bool has_keys = false;
};

bool has_ipv6_loopback() {
  const UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return fd.valid() &&
         ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

class Port : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    std::array<char, 32> name{"/tmp/wsync-test-XXXXXX"};
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name.data();
    address_ =
        GetParam().scheme == "ipc" ? "ipc://" + directory_ + "/control.sock" : GetParam().scheme;
    if (GetParam().name == "Tcp6" && !has_ipv6_loopback())
      GTEST_SKIP() << "this host has no IPv6 loopback";
    if (GetParam().has_keys) {
      keys_ = std::make_unique<TestKeys>();
      key_ = keys_->list(KeyRole::kSidecar, "host0");
    }
    loop_ = Loop::create().value();
    guard_ = std::make_unique<Timer>(*loop_, [this] {
      ADD_FAILURE() << "nothing ended the loop";
      loop_->stop();
    });
    guard_->start(std::chrono::seconds(60));
  }
  void TearDown() override {
    dealer_.reset();
    router_.reset();
    raw_timer_.reset();
    raw_questions_.reset();
    raw_.reset();
    guard_.reset();
    loop_.reset();
    std::filesystem::remove_all(directory_);
  }
  void listen(RouterCallbacks callbacks, PortTimes times = kPatient) {
    if (!callbacks.on_message)
      callbacks.on_message = [](const std::string&, const Envelope&, const Message&) {};
    auto router = listen_zmq(*loop_, router_options(times), std::move(callbacks));
    ASSERT_TRUE(router.has_value()) << router.error().message();
    router_ = std::move(*router);
    address_ = router_->address();
  }
  void connect(DealerCallbacks callbacks, PortTimes times = kPatient) {
    if (!callbacks.on_message) callbacks.on_message = [](const Envelope&, const Message&) {};
    if (!callbacks.on_connected) callbacks.on_connected = [] {};
    if (!callbacks.on_lost)
      callbacks.on_lost = [](const Error& error) { ADD_FAILURE() << error.message(); };
    auto dealer = connect_zmq(*loop_, dealer_options("host0", times), std::move(callbacks));
    ASSERT_TRUE(dealer.has_value()) << dealer.error().message();
    dealer_ = std::move(*dealer);
  }
  [[nodiscard]] RouterOptions router_options(PortTimes times) const {
    RouterOptions options{.address = address_, .times = times};
    if (keys_) options.keys = keys_->of_router();
    return options;
  }
  [[nodiscard]] DealerOptions dealer_options(const std::string& name, PortTimes times) const {
    return {.address = address_, .name = name, .times = times, .key = key_};
  }
  // A router that speaks only when the test says so.
  void listen_raw() {
    raw_ = Socket::create(ZMQ_ROUTER, "").value();
    if (keys_) {
      ASSERT_TRUE(raw_->serve_keys(keys_->of_router().secret_key).has_value());
      raw_questions_ = std::make_unique<Timer>(*loop_, [this] {
        while (
            raw_->answer_key_question([](const std::string&, const std::string&) { return true; },
                                      [](const Error& e) { ADD_FAILURE() << e.message(); })) {
        }
      });
      raw_questions_->start_repeating(milliseconds(1));
    }
    ASSERT_TRUE(raw_->bind(parse_port_address(address_).value()).has_value());
    address_ = raw_->last_endpoint();
  }
  // A peer that sends whatever a test wants, through no port. It never reads unless told.
  void connect_raw(const std::string& identity) {
    raw_ = Socket::create(ZMQ_DEALER, identity).value();
    if (key_) {
      ASSERT_TRUE(raw_->use_key(*key_).has_value());
    }
    ASSERT_TRUE(raw_->connect(parse_port_address(address_).value()).has_value());
  }
  // Sends once the raw socket is connected.
  void raw_send(Bytes bytes) {
    raw_timer_ = std::make_unique<Timer>(*loop_, [this, bytes = std::move(bytes)] {
      if (raw_->send("", bytes).has_value()) raw_timer_->stop();
    });
    raw_timer_->start_repeating(milliseconds(1));
  }

  std::string directory_;
  std::string address_;
  std::unique_ptr<TestKeys> keys_;  // null without keys
  std::optional<KeyFile> key_;      // of each peer
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Timer> guard_;
  std::unique_ptr<RouterPort> router_;
  std::unique_ptr<DealerPort> dealer_;
  std::unique_ptr<Socket> raw_;
  std::unique_ptr<Timer> raw_timer_;
  std::unique_ptr<Timer> raw_questions_;
};

TEST_P(Port, ALayoutForManyPeersIsEncodedOnce) {
  constexpr std::size_t kPeers = 4;
  Bytes layout(3 * limits::kMiB);
  for (std::size_t i = 0; i < layout.size(); ++i) layout[i] = static_cast<std::byte>(i * 7);
  Announce announce{.version = {1, 2}, .layout = std::move(layout), .parts = Bytes(8)};
  std::vector<std::string> peers;
  std::vector<Announce> received;
  std::vector<std::uint64_t> rounds;
  RouterCallbacks callbacks;
  callbacks.on_message = [&](const std::string& peer, const Envelope&, const Message& message) {
    if (!std::holds_alternative<Accept>(message)) return;
    peers.push_back(peer);
    if (peers.size() < kPeers) return;
    // The last peer gets another round, so its message differs. So does that of the first one,
    // whose release has fields that those of the others lack.
    for (std::size_t i = 0; i < kPeers; ++i)
      ASSERT_TRUE(router_
                      ->send(peers[i],
                             {.round = i + 1 < kPeers ? 1U : 2U,
                              .capabilities = i == 0 ? bits(Capability::kParts) : 0},
                             announce)
                      .has_value());
  };
  listen(std::move(callbacks));
  std::vector<std::unique_ptr<DealerPort>> dealers(kPeers);
  for (std::size_t i = 0; i < kPeers; ++i) {
    DealerCallbacks of_dealer;
    of_dealer.on_connected = [&dealers, i] {
      ASSERT_TRUE(dealers[i]->send({}, Accept{}).has_value());
    };
    of_dealer.on_lost = [](const Error& error) { ADD_FAILURE() << error.message(); };
    of_dealer.on_message = [&](const Envelope& envelope, const Message& message) {
      if (const auto* got = std::get_if<Announce>(&message)) {
        received.push_back(*got);
        rounds.push_back(envelope.round);
      }
      if (received.size() == kPeers) loop_->stop();
    };
    dealers[i] = connect_zmq(*loop_, dealer_options(fmt::format("host{}", i), kPatient),
                             std::move(of_dealer))
                     .value();
  }
  loop_->run();
  ASSERT_EQ(received.size(), kPeers);
  for (const Announce& got : received) EXPECT_EQ(got.layout, announce.layout);
  EXPECT_THAT(rounds, testing::UnorderedElementsAre(1U, 1U, 1U, 2U));
  EXPECT_EQ(std::ranges::count_if(received, [](const Announce& a) { return !a.parts.empty(); }), 1);
  EXPECT_EQ(router_->counters().shared, 1U) << "the second of the two that are equal";
  dealers.clear();
}

// The peers are loops of other threads, as they are other processes.
TEST_P(Port, TheLastMessageIsWaitedForUntilEachPeerHasAnsweredIt) {
  constexpr std::uint64_t kRequest = 77;
  constexpr std::size_t kPeers = 2;
  std::vector<std::string> peers;
  listen({.on_message = [&](const std::string& peer, const Envelope&, const Message& message) {
    if (!std::holds_alternative<Accept>(message)) return;
    peers.push_back(peer);
    if (peers.size() == kPeers) loop_->stop();
  }});
  std::array<std::vector<std::string>, kPeers> heard;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kPeers; ++i)
    threads.emplace_back([&, i] {
      auto loop = Loop::create().value();
      std::unique_ptr<DealerPort> dealer;
      DealerCallbacks callbacks;
      callbacks.on_connected = [&] { EXPECT_TRUE(dealer->send({}, Accept{}).has_value()); };
      callbacks.on_message = [&](const Envelope& envelope, const Message& message) {
        if (!std::holds_alternative<Leave>(message)) return;
        heard[i].emplace_back("leave");
        EXPECT_TRUE(dealer->send({.request = envelope.request}, Heartbeat{}).has_value());
      };
      callbacks.on_lost = [&](const Error&) {
        heard[i].emplace_back("lost");
        loop->stop();
      };
      dealer = connect_zmq(*loop, dealer_options("host", kPatient), std::move(callbacks)).value();
      loop->run();
      dealer.reset();
    });
  loop_->run();
  // One that is not there any more is not waited for.
  peers.emplace_back("nobody");
  router_->say_last(peers, {.request = kRequest}, Leave{}, std::chrono::hours(1));
  router_.reset();
  threads.clear();
  for (const auto& events : heard) EXPECT_THAT(events, testing::ElementsAre("leave", "lost"));
}

TEST_P(Port, APeerThatDoesNotAnswerTheLastMessageIsGivenUp) {
  std::vector<std::string> peers;
  listen({.on_message = [&](const std::string& peer, const Envelope&, const Message&) {
    peers = {peer};
    loop_->stop();
  }});
  connect({});
  loop_->run();
  router_->say_last(peers, {.request = 1}, Leave{}, milliseconds(20));  // this loop does not run
}

TEST_P(Port, MessagesOfEveryKindCrossInBothDirectionsUnchanged) {
  constexpr std::size_t kKinds = std::variant_size_v<AnyMessage>;
  std::vector<Bytes> sent;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    Randomiser random(kind);
    const Envelope envelope = random.envelope();
    sent.push_back(encode(envelope, random.message(kind)).value());
  }
  std::vector<Bytes> echoed;
  listen({.on_message = [&](const std::string& peer, const Envelope& envelope,
                            const Message& message) {
    EXPECT_EQ(peer, dealer_->identity());
    if (envelope.round == 0) return;  // a heartbeat
    EXPECT_TRUE(router_->send(peer, envelope, message).has_value());
  }});
  connect({.on_message =
               [&](const Envelope& envelope, const Message& message) {
                 if (envelope.round == 0) return;  // a heartbeat
                 echoed.push_back(encode(envelope, message).value());
                 if (echoed.size() == kKinds) loop_->stop();
               },
           .on_connected =
               [&] {
                 for (const Bytes& bytes : sent) {
                   const auto decoded = decode(bytes).value();
                   EXPECT_TRUE(dealer_->send(decoded.envelope, decoded.message).has_value());
                 }
               }});
  loop_->run();
  EXPECT_EQ(echoed, sent);
  EXPECT_THAT(dealer_->identity(), testing::MatchesRegex("host0-[0-9a-f]+"));
  EXPECT_GE(router_->counters().received, kKinds);
  EXPECT_EQ(router_->counters().bad, 0U);
}

TEST_P(Port, ABurstBeyondTheQueuesArrivesInOrderAndIsBounded) {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  constexpr std::uint64_t kMessages = 20'000;
  bool was_busy = false;
  std::function<void()> pump = [&] {
    while (sent < kMessages) {
      const auto result = dealer_->send({.round = 1, .request = sent}, Decided{});
      if (!result) {
        EXPECT_EQ(result.error().code(), ErrorCode::kBusy) << result.error().message();
        was_busy = true;
        loop_->post(pump);
        return;
      }
      ++sent;
    }
  };
  listen({.on_message = [&](const std::string&, const Envelope& envelope, const Message&) {
    if (envelope.round != 1) return;
    EXPECT_EQ(envelope.request, received);
    if (++received == kMessages) loop_->stop();
  }});
  connect({.on_connected = pump});
  loop_->run();
  EXPECT_EQ(received, kMessages);
  EXPECT_TRUE(was_busy) << "the burst never met the limit: it proves nothing about it";
}

TEST_P(Port, HeartbeatsGoBothWaysWithTheirContent) {
  int from_router = 0;
  int from_dealer = 0;
  const auto check = [&] {
    if (from_router >= 3 && from_dealer >= 3) loop_->stop();
  };
  listen({.on_message =
              [&](const std::string&, const Envelope& envelope, const Message& message) {
                EXPECT_EQ(envelope.fence.epoch, 3U);
                EXPECT_EQ(std::get<Heartbeat>(message).staged_bytes, 7U);
                ++from_dealer;
                check();
              },
          .heartbeat = [] { return std::pair(Envelope{.fence = {.epoch = 8}}, Heartbeat{}); }},
         {.heartbeat_interval = milliseconds(2), .silence_deadline = milliseconds(60'000)});
  connect(
      {.on_message =
           [&](const Envelope& envelope, const Message& message) {
             EXPECT_EQ(envelope.fence.epoch, 8U);
             EXPECT_TRUE(std::holds_alternative<Heartbeat>(message));
             ++from_router;
             check();
           },
       .heartbeat =
           [] { return std::pair(Envelope{.fence = {.epoch = 3}}, Heartbeat{.staged_bytes = 7}); }},
      {.heartbeat_interval = milliseconds(2), .silence_deadline = milliseconds(60'000)});
  loop_->run();
}

TEST_P(Port, SendingToNobodyIsAnError) {
  listen({});
  EXPECT_EQ(router_->send("nobody", {}, Resume{}).error().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(router_->send("", {}, Resume{}).error().code(), ErrorCode::kPeerLost);
  router_.reset();
  connect({});
  EXPECT_EQ(dealer_->send({}, Resume{}).error().code(), ErrorCode::kPeerLost);
}

TEST_P(Port, ASecondListenerIsRefusedAndTheFirstGoesOn) {
  listen(
      {.on_message = [&](const std::string&, const Envelope&, const Message&) { loop_->stop(); }});
  const auto second = listen_zmq(
      *loop_, router_options(kPatient),
      {.on_message = [](const std::string&, const Envelope&, const Message&) { FAIL(); }});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy) << second.error().message();
  connect({.on_connected = [&] { EXPECT_TRUE(dealer_->send({}, Leave{}).has_value()); }});
  loop_->run();
}

TEST_P(Port, TheRouterSeesAPeerHangUp) {
  std::string lost;
  listen(
      {.on_message = [&](const std::string&, const Envelope&, const Message&) { dealer_.reset(); },
       .on_lost =
           [&](const std::string& peer, const Error& error) {
             EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.message();
             lost = peer;
             loop_->stop();
           }});
  std::string identity;
  connect({.on_connected = [&] {
    identity = dealer_->identity();
    EXPECT_TRUE(dealer_->send({}, Hello{}).has_value());
  }});
  loop_->run();
  EXPECT_EQ(lost, identity);
}

TEST_P(Port, ADealerFindsARouterThatStartsAgain) {
  std::vector<std::string> events;
  listen({});
  const auto start_again = [&] {
    listen({.on_message = [&](const std::string&, const Envelope&, const Message& message) {
      if (!std::holds_alternative<Hello>(message)) return;
      events.emplace_back("hello");
      loop_->stop();
    }});
  };
  connect({.on_connected =
               [&] {
                 events.emplace_back("connected");
                 if (events.size() == 1) {
                   router_.reset();
                 } else {
                   EXPECT_TRUE(dealer_->send({}, Hello{}).has_value());
                 }
               },
           .on_lost =
               [&](const Error& error) {
                 EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.message();
                 events.emplace_back("lost");
                 EXPECT_EQ(dealer_->send({}, Hello{}).error().code(), ErrorCode::kPeerLost);
                 start_again();
               }});
  loop_->run();
  EXPECT_EQ(events, (std::vector<std::string>{"connected", "lost", "connected", "hello"}));
}

TEST_P(Port, SilenceIsALossToTheRouter) {
  listen({.on_lost =
              [&](const std::string& peer, const Error& error) {
                EXPECT_EQ(peer, "silent");
                EXPECT_EQ(error.code(), ErrorCode::kDeadline);
                EXPECT_THAT(error.message(), HasSubstr("silent for 50 ms"));
                loop_->stop();
              }},
         kImpatient);
  connect_raw("silent");
  raw_send(encode({}, Heartbeat{}).value());
  loop_->run();
}

TEST_P(Port, SilenceIsALossToTheDealerAndAWordEndsIt) {
  listen_raw();
  std::vector<std::string> events;
  connect({.on_connected =
               [&] {
                 events.emplace_back("connected");
                 if (events.size() == 3) loop_->stop();
               },
           .on_lost =
               [&](const Error& error) {
                 EXPECT_EQ(error.code(), ErrorCode::kDeadline);
                 events.emplace_back("lost");
                 EXPECT_TRUE(
                     raw_->send(dealer_->identity(), encode({}, Heartbeat{}).value()).has_value());
               }},
          kImpatient);
  loop_->run();
  EXPECT_EQ(events, (std::vector<std::string>{"connected", "lost", "connected"}));
}

// Who stood still must not take the others for silent. As after SIGSTOP: nothing has come in the
// meantime, because nobody has read it from the network. (The sleep is the standing still.)
TEST_P(Port, AProcessThatStoodStillCountsSilenceAnew) {
  int heard = 0;
  TimePoint woke{};
  bool silent_since = false;  // for a whole deadline after that: the machine let nobody talk
  Timer word(*loop_, [&] { raw_send(encode({}, Heartbeat{}).value()); });
  const auto hear = [&] {
    if (++heard == 2) return loop_->stop();
    loop_->post([&] {
      std::this_thread::sleep_for(4 * kImpatient.silence_deadline);
      woke = now();
      word.start(std::chrono::milliseconds(1));  // due after the port's own tick
    });
  };
  listen({.on_message = [&](const std::string&, const Envelope&, const Message&) { hear(); },
          .on_lost =
              [&](const std::string&, const Error& error) {
                silent_since = now() - woke >= kImpatient.silence_deadline;
                EXPECT_TRUE(silent_since) << error.message();
                loop_->stop();
              }},
         kImpatient);
  connect_raw("talks");
  raw_send(encode({}, Heartbeat{}).value());
  loop_->run();
  EXPECT_TRUE(heard == 2 || silent_since) << heard;
}

TEST_P(Port, ADealerThatStoodStillReadsBeforeItCallsItsRouterSilent) {
  listen_raw();
  bool heard = false;
  connect({.on_message =
               [&](const Envelope&, const Message&) {
                 heard = true;
                 loop_->stop();
               },
           .on_connected =
               [&] {
                 // The other end may not have ended its handshake yet.
                 const Bytes word = encode({}, Heartbeat{}).value();
                 while (!raw_->send(dealer_->identity(), word)) std::this_thread::yield();
                 std::this_thread::sleep_for(4 * kImpatient.silence_deadline);
               }},
          kImpatient);
  loop_->run();
  EXPECT_TRUE(heard);
}

TEST_P(Port, ADealerLeavesASilentRouterForTheOneThatTookItsAddressOver) {
  if (GetParam().scheme != "ipc") GTEST_SKIP() << "only a path can be taken over";
  std::string taken_by;
  bool greeted = false;
  const auto stop_when_both = [&] {
    if (greeted && !taken_by.empty()) loop_->stop();
  };
  listen({.on_address_taken = [&](const std::string& by) {
    taken_by = by;
    stop_when_both();
  }});
  const std::unique_ptr<RouterPort> former = std::move(router_);
  // Stands for a process that stands still: it took the connection and says nothing.
  const std::string path = address_.substr(std::string("ipc://").size());
  ASSERT_EQ(::unlink(path.c_str()), 0);
  listen_raw();
  const auto take_over = [&] {
    RouterOptions options = router_options(kPatient);
    options.take_over = true;
    auto router = listen_zmq(
        *loop_, options,
        {.on_message = [&](const std::string& peer, const Envelope&, const Message& message) {
          EXPECT_EQ(peer, dealer_->identity());
          if (!std::holds_alternative<Hello>(message)) return;
          greeted = true;
          stop_when_both();
        }});
    ASSERT_TRUE(router.has_value()) << router.error().message();
    router_ = std::move(*router);
  };
  std::vector<std::string> events;
  connect({.on_connected =
               [&] {
                 events.emplace_back("connected");
                 if (router_) {
                   EXPECT_TRUE(dealer_->send({}, Hello{}).has_value());
                 }
               },
           .on_lost =
               [&](const Error& error) {
                 EXPECT_EQ(error.code(), ErrorCode::kDeadline);
                 events.emplace_back("lost");
                 if (!router_) take_over();
               }},
          kImpatient);
  loop_->run();
  ASSERT_GE(events.size(), 3U);
  events.resize(3);  // on a slow machine the new one may be silent for so long, too
  EXPECT_EQ(events, (std::vector<std::string>{"connected", "lost", "connected"}));
  EXPECT_EQ(taken_by, fmt::format("process {}", ::getpid()));
}

TEST_P(Port, GarbageIsCountedAndOthersGoOn) {
  std::vector<std::string> bad;
  listen({.on_message = [&](const std::string& peer, const Envelope&,
                            const Message&) { EXPECT_EQ(peer, dealer_->identity()); },
          .on_bad_message =
              [&](const std::string& peer, const Error& error) {
                EXPECT_EQ(peer, "vandal");
                EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
                bad.push_back(error.message());
                if (bad.size() == 1) {
                  raw_send({});
                } else if (bad.size() == 2) {
                  EXPECT_TRUE(raw_->send("a part too many", encode({}, Leave{}).value()));
                } else {
                  connect({.on_connected = [&] {
                    EXPECT_TRUE(dealer_->send({}, Leave{}).has_value());
                    loop_->stop();
                  }});
                }
              }});
  connect_raw("vandal");
  raw_send(Bytes(300, std::byte{0xcc}));
  loop_->run();
  EXPECT_THAT(bad[0], HasSubstr("the peer is not wsync"));
  EXPECT_EQ(router_->counters().bad, 3U);
}

TEST_P(Port, AnUnknownMessageIsAnsweredWithAReason) {
  int bad = 0;
  listen({.on_bad_message = [&](const std::string&, const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRefused);
    ++bad;
  }});
  connect_raw("newer");
  Bytes bytes = encode({.fence = {.epoch = 99}, .round = 4, .request = 55}, Leave{}).value();
  bytes[6] = std::byte{0xee};
  raw_send(bytes);
  Timer poll(*loop_, [&] {
    std::array<Part, 1> parts;
    if (raw_->receive(parts) == 0) return;
    const auto reply = decode(parts[0].bytes());
    ASSERT_TRUE(reply.has_value()) << reply.error().message();
    EXPECT_EQ(reply->envelope.request, 55U);
    EXPECT_EQ(reply->envelope.round, 4U);
    EXPECT_EQ(reply->envelope.fence.epoch, 0U);  // the peer's own fence proves nothing
    EXPECT_THAT(std::get<ErrorReply>(reply->message).message, HasSubstr("type 238 is unknown"));
    loop_->stop();
  });
  poll.start_repeating(milliseconds(1));
  loop_->run();
  EXPECT_EQ(bad, 1);
}

TEST_P(Port, PortsMayBeDestroyedInsideTheirCallbacks) {
  listen({.on_message = [&, token = std::make_shared<int>(5)](const std::string&, const Envelope&,
                                                              const Message&) {
    router_.reset();
    EXPECT_EQ(*token, 5);
  }});
  connect({.on_connected = [&] { EXPECT_TRUE(dealer_->send({}, Hello{}).has_value()); },
           .on_lost =
               [&, token = std::make_shared<int>(6)](const Error&) {
                 dealer_.reset();
                 EXPECT_EQ(*token, 6);
                 loop_->stop();
               }});
  loop_->run();
}

TEST_P(Port, AForgottenPeerIsNotReportedLost) {
  listen({.on_message =
              [&](const std::string& peer, const Envelope&, const Message&) {
                router_->forget(peer);
                raw_.reset();
                raw_timer_ = std::make_unique<Timer>(*loop_, [&] { loop_->stop(); });
                raw_timer_->start(milliseconds(60));
              },
          .on_lost = [](const std::string&, const Error& e) { ADD_FAILURE() << e.message(); }},
         kImpatient);
  connect_raw("visitor");
  raw_send(encode({}, Status{}).value());
  loop_->run();
}

INSTANTIATE_TEST_SUITE_P(Zmq, Port,
                         testing::Values(Kind{"Ipc", "ipc"}, Kind{"Tcp", "tcp://127.0.0.1:0"},
                                         Kind{"Tcp6", "tcp://[::1]:0"},
                                         Kind{"TcpKeys", "tcp://127.0.0.1:0", true},
                                         Kind{"IpcKeys", "ipc", true}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace wsync::control
