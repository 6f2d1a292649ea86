#include "shared/base/unix_socket.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class UnixSocket : public testing::Test {
 protected:
  void SetUp() override {
    std::array<char, 32> name{"/tmp/wsync-test-XXXXXX"};
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name.data();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path(const std::string& name = "s") const { return directory_ + "/" + name; }
  TimePoint soon() const { return now() + seconds(20); }
  std::string directory_;
};

TEST_F(UnixSocket, PathsThatCannotBeBoundAreRefused) {
  EXPECT_THAT(check_socket_path("relative").error().message(), HasSubstr("not absolute"));
  EXPECT_THAT(check_socket_path("/tmp/").error().message(), HasSubstr("does not name a file"));
  EXPECT_TRUE(check_socket_path("/" + std::string(106, 'x')).has_value());
  EXPECT_THAT(check_socket_path("/" + std::string(107, 'x')).error().message(),
              HasSubstr("has 108 bytes, the kernel allows 107"));
}

TEST_F(UnixSocket, TheLongestPathReallyWorks) {
  const std::string longest = path(std::string(kSocketPathBytes - directory_.size() - 1, 'x'));
  auto listener = ListeningSocket::bind(longest);
  ASSERT_TRUE(listener.has_value()) << listener.error().message();
  EXPECT_TRUE(connect_unix(longest, soon()).has_value());
}

TEST_F(UnixSocket, DirectoriesAreMadePrivateAndOpenOnesRefused) {
  ASSERT_TRUE(make_private_directory(path("a/b")).has_value());
  struct stat status{};
  ASSERT_EQ(::stat(path("a/b").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  ASSERT_EQ(::chmod(path("a/b").c_str(), 0750), 0);
  const auto refused = make_private_directory(path("a/b"));
  EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("mode 0750"));
  EXPECT_FALSE(ListeningSocket::bind(path("a/b/s")).has_value());
}

TEST_F(UnixSocket, OneListenerForEachPathAndNothingLeftBehind) {
  {
    auto listener = ListeningSocket::bind(path());
    ASSERT_TRUE(listener.has_value()) << listener.error().message();
    const auto second = ListeningSocket::bind(path());
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
    EXPECT_EQ(second.error().message(),
              fmt::format("{} is held by this process ({}) already: close what holds it first, or "
                          "use another path",
                          path(), ::getpid()));
    EXPECT_TRUE(connect_unix(path(), soon()).has_value());  // the first one still works
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_TRUE(ListeningSocket::bind(path()).has_value());
}

TEST_F(UnixSocket, AKilledProcessLeavesASocketThatTheNextStartReplaces) {
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe2(ready.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto listener = ListeningSocket::bind(path());
    const char byte = listener ? '1' : '0';
    [[maybe_unused]] const auto written = ::write(ready[1], &byte, 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, '1');
  const std::ifstream also_open_here(path() + ".lock");
  const auto second = ListeningSocket::bind(path());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(second.error().message(),
            fmt::format("{} is held by process {}: stop it, or use another path", path(), child));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_EQ(connect_unix(path(), soon()).error().code(), ErrorCode::kPeerLost);
  auto listener = ListeningSocket::bind(path());
  ASSERT_TRUE(listener.has_value()) << listener.error().message();
  EXPECT_TRUE(connect_unix(path(), soon()).has_value());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(UnixSocket, TheSocketOfAnotherProgramIsNotTaken) {
  const auto socket_at = [&](const std::string& at, int type) {
    UniqueFd made(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(at.begin(), at.end(), address.sun_path);
    EXPECT_EQ(::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return made;
  };
  const auto busy = [&](const std::string& at, const std::string& who) {
    for (const Claim how : {Claim::kIfFree, Claim::kTakeOver}) {
      const auto refused = ListeningSocket::bind(at, how);
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
      EXPECT_EQ(refused.error().message(),
                fmt::format("{} is a socket that is not of wsync, and {}: stop that program, or "
                            "use another path",
                            at, who));
      EXPECT_TRUE(std::filesystem::exists(at));
      EXPECT_FALSE(std::filesystem::exists(at + ".lock"));
    }
  };
  UniqueFd other = socket_at(path(), SOCK_STREAM);
  ASSERT_EQ(::listen(other.get(), 1), 0);
  busy(path(), fmt::format("process {} listens there", ::getpid()));
  other.reset();
  EXPECT_TRUE(ListeningSocket::bind(path(), Claim::kTakeOver).has_value()) << "it is left over";
  const UniqueFd datagrams = socket_at(path("datagrams"), SOCK_DGRAM);
  busy(path("datagrams"), "another program has made it");
}

TEST_F(UnixSocket, AForkedChildIsToldThatItsParentHoldsThePath) {
  const auto listener = ListeningSocket::bind(path());
  ASSERT_TRUE(listener.has_value()) << listener.error().message();
  const std::string expected =
      fmt::format("{} is held by process {}: stop it, or use another path", path(), ::getpid());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto second = ListeningSocket::bind(path());
    ::_exit(!second && second.error().message() == expected ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the child was told something else than: " << expected;
}

TEST_F(UnixSocket, ALockSaysWhichCommandHoldsIt) {
  EXPECT_FALSE(lock_holder(path()));
  {
    const auto lock = LockFile::acquire(path());
    ASSERT_TRUE(lock.has_value()) << lock.error().message();
    ASSERT_TRUE(lock_holder(path()));
    EXPECT_EQ(lock_holder(path())->to_string(), fmt::format("process {}", ::getpid()));
    EXPECT_EQ(lock_holder(path())->command, "");
  }
  EXPECT_FALSE(lock_holder(path()));
  name_lock_holder("wsync push");
  {
    const auto lock = LockFile::acquire(path());
    ASSERT_TRUE(lock.has_value()) << lock.error().message();
    ASSERT_TRUE(lock_holder(path()));
    EXPECT_EQ(lock_holder(path())->to_string(), fmt::format("process {} (wsync push)", ::getpid()));
    EXPECT_EQ(lock_holder(path())->command, "wsync push");
  }
  name_lock_holder({});
  // One that has ended without removing it, and one that has not written itself into it yet.
  std::ofstream(path()) << "2147483000 wsync push";
  EXPECT_FALSE(lock_holder(path()));
  std::ofstream(path(), std::ios::trunc) << "";
  EXPECT_FALSE(lock_holder(path()));
}

TEST_F(UnixSocket, APathIsTakenOverFromAHolderThatLives) {
  auto first = SocketPath::claim(path());
  ASSERT_TRUE(first.has_value()) << first.error().message();
  EXPECT_FALSE(first->taken_by());
  {
    auto second = SocketPath::claim(path(), Claim::kTakeOver);
    ASSERT_TRUE(second.has_value()) << second.error().message();
    EXPECT_EQ(first->taken_by(), fmt::format("process {}", ::getpid()));
    EXPECT_FALSE(second->taken_by());
    EXPECT_EQ(SocketPath::claim(path()).error().code(), ErrorCode::kBusy);
    ::close(::open(path().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));  // the second's socket
    {
      const SocketPath gone = std::move(*first);
    }
    EXPECT_TRUE(std::filesystem::exists(path())) << "it is not the first one's to remove";
    EXPECT_EQ(SocketPath::claim(path()).error().code(), ErrorCode::kBusy);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(UnixSocket, AFileThatIsNoSocketStays) {
  ::close(::open(path().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_THAT(ListeningSocket::bind(path()).error().message(), HasSubstr("is not a socket"));
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(UnixSocket, ConnectingSaysWhyItFailed) {
  EXPECT_EQ(connect_unix(path("nobody"), soon()).error().code(), ErrorCode::kNotFound);
  auto listener = ListeningSocket::bind(path());
  ASSERT_TRUE(listener.has_value());
  std::vector<UniqueFd> waiting;  // fill the listener's queue
  for (;;) {
    auto socket = connect_unix(path(), now());
    if (!socket) {
      EXPECT_EQ(socket.error().code(), ErrorCode::kDeadline);
      break;
    }
    waiting.push_back(std::move(*socket));
    ASSERT_LT(waiting.size(), 10'000U);
  }
  EXPECT_EQ(connect_unix(path(), now() + std::chrono::milliseconds(20)).error().code(),
            ErrorCode::kDeadline);
}

TEST_F(UnixSocket, TheKernelNamesThePeer) {
  auto listener = ListeningSocket::bind(path());
  ASSERT_TRUE(listener.has_value());
  EXPECT_FALSE(listener->accept().value().has_value());
  const auto client = connect_unix(path(), soon());
  ASSERT_TRUE(client.has_value());
  const auto accepted = listener->accept(soon());
  ASSERT_TRUE(accepted.has_value()) << accepted.error().message();
  EXPECT_EQ(accepted->peer.pid, ::getpid());
  EXPECT_EQ(accepted->peer.uid, ::geteuid());
  EXPECT_EQ(listener->accept(now()).error().code(), ErrorCode::kDeadline);
}

TEST_F(UnixSocket, DescriptorsTravelAndAreCloseOnExec) {
  const std::size_t before = open_descriptors();
  {
    auto [a, b] = unix_socket_pair().value();
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    const UniqueFd read_end(pipe[0]);
    {
      const UniqueFd write_end(pipe[1]);
      const std::array<std::byte, 3> bytes{};
      ASSERT_EQ(send_some(a.get(), bytes, std::array{write_end.get()}).value(), 3U);
    }
    std::array<std::byte, 16> buffer{};
    std::vector<UniqueFd> fds;
    ASSERT_EQ(receive_some(b.get(), buffer, fds).value(), 3U);
    ASSERT_EQ(fds.size(), 1U);
    EXPECT_NE(::fcntl(fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
    ASSERT_EQ(::write(fds[0].get(), "x", 1), 1);
    char c = 0;
    EXPECT_EQ(::read(read_end.get(), &c, 1), 1);
    EXPECT_EQ(receive_some(b.get(), buffer, fds).value(), 0U);
    a.reset();
    EXPECT_EQ(receive_some(b.get(), buffer, fds).error().code(), ErrorCode::kPeerLost);
    EXPECT_EQ(send_some(b.get(), buffer).error().code(), ErrorCode::kPeerLost);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(UnixSocket, TooManyDescriptorsAreRefusedAndNoneLeak) {
  auto [a, b] = unix_socket_pair().value();
  const std::size_t before = open_descriptors();
  // More than our own sender allows, as a hostile peer would.
  std::array<int, limits::kFdsPerFrame + 1> fds{};
  fds.fill(a.get());
  std::array<std::byte, 1> byte{};
  EXPECT_EQ(send_some(a.get(), byte, fds).error().code(), ErrorCode::kInvalidInput);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fds)> control{};
  iovec part{.iov_base = byte.data(), .iov_len = 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
  ASSERT_EQ(::sendmsg(a.get(), &message, MSG_NOSIGNAL), 1);
  std::vector<UniqueFd> received;
  const auto refused = receive_some(b.get(), byte, received);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidInput);
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(UnixSocket, WaitsEndAtTheirDeadline) {
  auto [a, b] = unix_socket_pair().value();
  EXPECT_EQ(wait_readable(a.get(), now()).error().code(), ErrorCode::kDeadline);
  EXPECT_TRUE(wait_writable(a.get(), soon()).has_value());
  const std::vector<std::byte> block(64 * 1024);
  while (send_some(a.get(), block).value() != 0) {
  }
  EXPECT_EQ(wait_writable(a.get(), now() + std::chrono::milliseconds(5)).error().code(),
            ErrorCode::kDeadline);
  b.reset();
  EXPECT_TRUE(wait_writable(a.get(), soon()).has_value());  // to be told of the loss
  EXPECT_EQ(send_some(a.get(), block).error().code(), ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace wsync
