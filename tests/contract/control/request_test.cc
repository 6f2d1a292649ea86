// The command side of the control channel against a router that answers from another thread.
#include "shared/control/zmq/request.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/base/unix_socket.h"
#include "shared/control/zmq/address.h"
#include "shared/control/zmq/listening.h"
#include "shared/control/zmq/ports.h"

namespace wsync::control {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr PortTimes kRequestTimes{.heartbeat_interval = milliseconds(20),
                                  .silence_deadline = milliseconds(60'000)};

TEST(PortAddress, OnlyThisHostIsAllowedWithoutKeys) {
  EXPECT_EQ(parse_port_address("ipc:///run/wsync/c.sock")->path, "/run/wsync/c.sock");
  EXPECT_EQ(parse_port_address("tcp://127.0.0.1:7000")->endpoint, "tcp://127.0.0.1:7000");
  EXPECT_EQ(parse_port_address("tcp://localhost:0")->endpoint, "tcp://127.0.0.1:0");
  for (const char* here : {"ipc:///run/wsync/c.sock", "tcp://127.3.2.1:7000", "tcp://[::1]:7000"})
    EXPECT_TRUE(parse_port_address(here, false).has_value()) << here;
  EXPECT_TRUE(parse_port_address("tcp://[::1]:7000")->ipv6);
  EXPECT_FALSE(parse_port_address("tcp://10.0.0.1:7000")->ipv6);
  for (const char* beyond :
       {"tcp://0.0.0.0:7000", "tcp://10.0.0.1:7000", "tcp://example.org:7000", "tcp://[::]:7000",
        "tcp://127.0.0.1.example.org:7000", "tcp://eth0:7000", "tcp://0x7f.1:7000"}) {
    const auto refused = parse_port_address(beyond, false);
    ASSERT_FALSE(refused.has_value()) << beyond;
    EXPECT_EQ(refused.error().code(), ErrorCode::kRefused) << beyond;
    EXPECT_THAT(refused.error().message(), HasSubstr("make keys with `wsync keys init`"));
    const auto permitted = parse_port_address(beyond, true);
    ASSERT_TRUE(permitted.has_value()) << beyond;
    EXPECT_FALSE(permitted->is_on_this_host);
  }
  for (const char* malformed :
       {"tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:7x", "tcp://*:7000", "tcp://:7000", "tcp://127.0.0.1;10.0.0.1:7000",
        "pgm://239.0.0.1:7000", "inproc://x", "udp://127.0.0.1:7000", "127.0.0.1:7000",
        "IPC:///tmp/x", "", "ipc://relative", "ipc://@abstract", "ipc://", "ipc:///tmp/"}) {
    const auto refused = parse_port_address(malformed);
    ASSERT_FALSE(refused.has_value()) << malformed;
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidInput) << malformed;
  }
  EXPECT_THAT(parse_port_address("ipc:///" + std::string(107, 'x')).error().message(),
              HasSubstr("the kernel allows 107"));
}

class Request : public testing::Test {
 protected:
  void SetUp() override {
    std::array<char, 32> name{"/tmp/wsync-test-XXXXXX"};
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name.data();
    address_ = "ipc://" + directory_ + "/control.sock";
  }
  void TearDown() override {
    stop_server();
    std::filesystem::remove_all(directory_);
  }
  using Answer =
      std::function<void(RouterPort&, const std::string& peer, const Envelope&, const Message&)>;
  // Runs a router on a thread of its own; heartbeats do not reach `answer`.
  void serve(Answer answer) {
    std::promise<void> listening;
    server_ = std::jthread([this, &listening, answer = std::move(answer)] {
      auto loop = Loop::create().value();
      {
        const std::lock_guard lock(mutex_);
        server_loop_ = loop.get();
      }
      std::unique_ptr<RouterPort> router;
      const auto on_message = [&](const std::string& peer, const Envelope& envelope,
                                  const Message& message) {
        if (!std::holds_alternative<Heartbeat>(message)) answer(*router, peer, envelope, message);
      };
      router = listen_zmq(*loop, {.address = address_, .times = kRequestTimes},
                          {.on_message = on_message})
                   .value();
      address_ = router->address();  // with the port that the system has chosen
      listening.set_value();
      loop->run();
      router.reset();
      const std::lock_guard lock(mutex_);
      server_loop_ = nullptr;
    });
    listening.get_future().wait();
  }
  void stop_server() {
    if (!server_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      if (server_loop_ != nullptr) server_loop_->stop();
    }
    server_.join();
  }
  // A socket at the path of address_ that nobody listens on.
  // Nobody listens at it yet.
  UniqueFd bound_socket(const std::string& name = "control.sock") const {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (directory_ + "/" + name).copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return socket;
  }
  RequestOptions options() const { return {.address = address_, .times = kRequestTimes}; }

  std::string directory_;
  std::string address_;
  std::mutex mutex_;
  Loop* server_loop_ = nullptr;  // guarded by mutex_
  std::jthread server_;
};

TEST_F(Request, ARequestOfWhichNothingIsHeardIsToldOnce) {
  // The server owns what it remembers: its thread goes on after the end of this test's body. Of
  // two connections the later request may come first.
  struct Heard {
    std::optional<std::pair<std::string, Envelope>> push;
    bool other = false;
  };
  serve([heard = Heard()](RouterPort& router, const std::string& peer, const Envelope& envelope,
                          const Message& message) mutable {
    if (std::holds_alternative<Push>(message)) {
      heard.push.emplace(peer, envelope);
    } else {
      heard.other = true;
      EXPECT_TRUE(router.send(peer, envelope, StatusReply{}).has_value());
    }
    if (heard.push && heard.other) {
      EXPECT_TRUE(
          router.send(heard.push->first, heard.push->second, PushReply{.ok = true}).has_value());
    }
  });
  int told = 0;
  RequestOptions asking = options();
  asking.quiet_after = milliseconds(1);
  asking.on_quiet = [&] {
    ++told;
    EXPECT_TRUE(request(options(), {}, Status{}).has_value())
        << "another one may be asked meanwhile";
  };
  const auto reply = request(asking, {}, Push{.directory = "/models/m"});
  ASSERT_TRUE(reply.has_value()) << reply.error().message();
  EXPECT_TRUE(std::get<PushReply>(reply->message).ok);
  EXPECT_EQ(told, 1);
}

TEST_F(Request, ProgressThenTheReply) {
  serve([](RouterPort& router, const std::string& peer, const Envelope& envelope,
           const Message& message) {
    EXPECT_EQ(std::get<Push>(message).directory, "/models/m");
    Envelope other = envelope;
    other.request += 1;
    EXPECT_TRUE(router.send(peer, other, PushReply{.ok = false}).has_value());  // of another one
    for (std::uint64_t done = 1; done <= 3; ++done)
      EXPECT_TRUE(
          router.send(peer, envelope, Progress{.done_bytes = done, .total_bytes = 3}).has_value());
    EXPECT_TRUE(router.send(peer, envelope, PushReply{.ok = true, .bytes = 42}).has_value());
  });
  std::vector<std::uint64_t> progress;
  const auto reply = request(options(), {}, Push{.directory = "/models/m"},
                             [&](const Progress& p) { progress.push_back(p.done_bytes); });
  ASSERT_TRUE(reply.has_value()) << reply.error().message();
  EXPECT_TRUE(std::get<PushReply>(reply->message).ok);
  EXPECT_EQ(std::get<PushReply>(reply->message).bytes, 42U);
  EXPECT_NE(reply->envelope.request, 0U);
  EXPECT_EQ(progress, (std::vector<std::uint64_t>{1, 2, 3}));
}

TEST_F(Request, AnErrorReplyBecomesAnError) {
  serve([](RouterPort& router, const std::string& peer, const Envelope& envelope, const Message&) {
    EXPECT_TRUE(router
                    .send(peer, envelope,
                          ErrorReply{.code = ErrorCode::kBusy, .message = "a publish is under way"})
                    .has_value());
  });
  const auto reply = request(options(), {.request = 12}, Status{});
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(reply.error().message(), "a publish is under way");
}

// With a wait of an hour these tests would not end.
TEST_F(Request, AnAddressWithoutASocketIsKnownAtOnce) {
  auto nobody = options();
  nobody.connect_deadline = std::chrono::hours(1);
  const auto reply = request(nobody, {}, Status{});
  EXPECT_EQ(reply.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(reply.error().message(), HasSubstr("no process answers at ipc://"));
  EXPECT_THAT(reply.error().message(),
              HasSubstr("its socket does not exist; start `wsync trainer`"));
}

TEST_F(Request, ASocketLeftByAKilledProcessIsKnownAtOnce) {
  const UniqueFd stale = bound_socket();
  auto nobody = options();
  nobody.connect_deadline = std::chrono::hours(1);
  const auto reply = request(nobody, {}, Status{});
  EXPECT_EQ(reply.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(reply.error().message(), HasSubstr("left over from a process that has ended"));
}

TEST_F(Request, APathThatIsNoSocketIsKnownAtOnce) {
  std::filesystem::create_directory(directory_ + "/folder");
  std::ofstream(directory_ + "/file") << "x";
  for (const auto& [name, kind] :
       {std::pair("folder", "a directory"), std::pair("file", "a file")}) {
    const auto reply = request({.address = fmt::format("ipc://{}/{}", directory_, name),
                                .connect_deadline = std::chrono::hours(1)},
                               {}, Status{});
    EXPECT_EQ(reply.error().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(reply.error().message(),
                HasSubstr(fmt::format("it is {} and not a socket; start", kind)));
  }
}

TEST_F(Request, AProcessThatIsAboutToListenIsWaitedFor) {
  const auto claimed = SocketPath::claim(directory_ + "/control.sock");
  ASSERT_TRUE(claimed.has_value()) << claimed.error().message();
  EXPECT_FALSE(why_nobody_listens(address_).has_value());
}

TEST_F(Request, APortWithoutAListenerIsKnownAtOnce) {
  for (const char* host : {"tcp://127.0.0.1", "tcp://[::1]"}) {
    std::string address;
    {
      auto loop = Loop::create().value();
      const auto listener = listen_zmq(*loop, {.address = std::string(host) + ":0"}, {});
      if (!listener) continue;  // this host has no IPv6 loopback
      address = (*listener)->address();
      EXPECT_FALSE(why_nobody_listens(address).has_value());
    }
    const auto reply =
        request({.address = address, .connect_deadline = std::chrono::hours(1)}, {}, Status{});
    EXPECT_EQ(reply.error().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(reply.error().message(), HasSubstr("no process listens on its port"));
  }
}

TEST_F(Request, AListenerThatAcceptsNothingIsGivenUpAtTheDeadline) {
  const UniqueFd silent = bound_socket();
  ASSERT_EQ(::listen(silent.get(), 8), 0);
  auto impatient = options();
  impatient.connect_deadline = milliseconds(50);
  const auto reply = request(impatient, {}, Status{});
  EXPECT_EQ(reply.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(
      reply.error().message(),
      HasSubstr("nothing has accepted the connection within 50 ms, although process " +
                std::to_string(::getpid()) +
                " listens there: it hangs, or it is no "
                "coordinator, as at the engine socket of a sidecar; if a trainer hangs there, "
                "start another one with --take-over (`take_over: true` in its settings), "
                "which takes the fleet from it, or give the address of one that runs; "));
}

TEST_F(Request, APeerThatIsStartingIsWaitedFor) {
  auto patient = options();
  patient.peer_is_starting = true;
  patient.connect_deadline = std::chrono::hours(1);
  std::promise<bool> answered;
  std::jthread asks([&] { answered.set_value(request(patient, {}, Status{}).has_value()); });
  serve([](RouterPort& router, const std::string& peer, const Envelope& envelope, const Message&) {
    EXPECT_TRUE(router.send(peer, envelope, StatusReply{.role = "coordinator"}).has_value());
  });
  EXPECT_TRUE(answered.get_future().get());
}

TEST_F(Request, NoReplyInTime) {
  serve([](RouterPort&, const std::string&, const Envelope&, const Message&) {});
  auto impatient = options();
  impatient.deadline = milliseconds(50);
  const auto reply = request(impatient, {}, Verify{});
  EXPECT_EQ(reply.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(reply.error().message(), HasSubstr("Verify: no reply from"));
  EXPECT_THAT(reply.error().message(), testing::Not(HasSubstr("--take-over")))
      << "a verification may take as long as that";
  const auto hangs = request(impatient, {}, Status{});
  EXPECT_EQ(hangs.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(hangs.error().message(),
              HasSubstr(" within 50 ms; if a trainer hangs there, start another one with "
                        "--take-over (`take_over: true` in its settings), which takes the fleet "
                        "from it"));
}

TEST_F(Request, WhoFindsNoTrainerIsToldWhereSidecarsAnswer) {
  const auto said = [this] { return request(options(), {}, Status{}).error().message(); };
  const std::string none_is_there = fmt::format(
      "; a sidecar NAME answers status, verify and plan at ipc://{}/NAME.control", directory_);
  EXPECT_THAT(said(), testing::EndsWith(none_is_there));
  const UniqueFd dead = bound_socket("0.control");
  std::ofstream(directory_ + "/1.control") << "no socket";
  EXPECT_THAT(said(), testing::EndsWith(none_is_there));
  std::vector<UniqueFd> listening;
  const auto sidecar = [&](const std::string& name) {
    listening.push_back(bound_socket(name + ".control"));
    ASSERT_EQ(::listen(listening.back().get(), 8), 0);
  };
  sidecar("b");
  EXPECT_THAT(said(), testing::EndsWith(fmt::format(
                          "; a sidecar answers status, verify and plan at ipc://{}/b.control",
                          directory_)));
  for (const char* name : {"c", "a", "e", "d"}) sidecar(name);
  EXPECT_THAT(said(), testing::EndsWith(fmt::format(
                          "; sidecars answer status, verify and plan at ipc://{0}/a.control, "
                          "ipc://{0}/b.control, ipc://{0}/c.control and 2 more",
                          directory_)));
  EXPECT_EQ(where_sidecars_answer("tcp://127.0.0.1:7000"),
            "a sidecar answers status, verify and plan on its host, at the socket NAME.control in "
            "its run_dir");
}

TEST_F(Request, WhoFindsNoSidecarIsToldOfOthersAndOfNoTrainer) {
  const std::string address = fmt::format("ipc://{}/s0.control", directory_);
  const auto said = [&] {
    return request({.address = address,
                    .connect_deadline = milliseconds(50),
                    .deadline = milliseconds(50),
                    .times = kRequestTimes},
                   {}, Status{})
        .error()
        .message();
  };
  const UniqueFd sidecar = bound_socket("s0.control");
  const std::string dead = fmt::format(
      "no process answers at {}: its socket is left over from a process that has ended; start its "
      "sidecar, or give the address of one that runs",
      address);
  EXPECT_EQ(said(), dead);
  const UniqueFd other = bound_socket("s1.control");
  ASSERT_EQ(::listen(other.get(), 8), 0);
  const std::string elsewhere =
      fmt::format("; a sidecar answers status, verify and plan at ipc://{}/s1.control", directory_);
  EXPECT_EQ(said(), dead + elsewhere);
  ASSERT_EQ(::listen(sidecar.get(), 8), 0);
  EXPECT_EQ(said(),
            fmt::format("no process answers at {}: nothing has accepted the connection within 50 "
                        "ms, although process {} listens there: it hangs, or it is no sidecar; if "
                        "the sidecar hangs there, stop its process and start it again, or give "
                        "the address of one that runs{}",
                        address, ::getpid(), elsewhere));
}

TEST_F(Request, ASidecarThatSaysNothingIsNoTrainer) {
  address_ = fmt::format("ipc://{}/s0.control", directory_);
  serve([](RouterPort&, const std::string&, const Envelope&, const Message&) {});
  auto impatient = options();
  impatient.deadline = milliseconds(50);
  EXPECT_THAT(request(impatient, {}, Status{}).error().message(),
              testing::EndsWith(" within 50 ms; if the sidecar hangs there, stop its process and "
                                "start it again"));
}

TEST_F(Request, ATrainerThatHangsAtAPortIsNotTakenOver) {
  constexpr const char* kAgain = "; if a trainer hangs there, stop its process and start it again";
  const UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in bound{};
  bound.sin_family = AF_INET;
  bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof bound;
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<const sockaddr*>(&bound), size), 0);
  ASSERT_EQ(::listen(silent.get(), 8), 0);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  RequestOptions impatient{.address = fmt::format("tcp://127.0.0.1:{}", ntohs(bound.sin_port)),
                           .connect_deadline = milliseconds(50),
                           .deadline = milliseconds(50),
                           .times = kRequestTimes};
  const std::string not_accepted = request(impatient, {}, Status{}).error().message();
  EXPECT_THAT(not_accepted, HasSubstr(std::string("within 50 ms") + kAgain + ", or give the"));
  address_ = "tcp://127.0.0.1:0";
  serve([](RouterPort&, const std::string&, const Envelope&, const Message&) {});
  impatient.address = address_;
  impatient.connect_deadline = std::chrono::hours(1);
  EXPECT_THAT(request(impatient, {}, Status{}).error().message(),
              testing::EndsWith(std::string(" within 50 ms") + kAgain));
}

TEST_F(Request, ThePeerGoesAwayWhileItIsWaitedFor) {
  serve([this](RouterPort&, const std::string&, const Envelope&, const Message&) {
    const std::lock_guard lock(mutex_);
    server_loop_->stop();
  });
  const auto reply = request(options(), {}, Verify{});
  EXPECT_EQ(reply.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(reply.error().message(), HasSubstr("closed the connection"));
}

TEST_F(Request, AddressesBeyondThisHostAreRefusedBeforeAnythingIsSent) {
  EXPECT_EQ(request({.address = "tcp://192.0.2.1:7000"}, {}, Status{}).error().code(),
            ErrorCode::kRefused);
  auto loop = Loop::create().value();
  EXPECT_EQ(listen_zmq(*loop, {.address = "tcp://0.0.0.0:0"}, {}).error().code(),
            ErrorCode::kRefused);
}

TEST_F(Request, ASocketLeftByAKilledCoordinatorIsReplaced) {
  {
    const UniqueFd stale = bound_socket();
  }
  ASSERT_TRUE(std::filesystem::exists(directory_ + "/control.sock"));
  serve([](RouterPort& router, const std::string& peer, const Envelope& envelope, const Message&) {
    EXPECT_TRUE(router.send(peer, envelope, StatusReply{.role = "coordinator"}).has_value());
  });
  EXPECT_TRUE(request(options(), {}, Status{}).has_value());
  stop_server();
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

}  // namespace
}  // namespace wsync::control
