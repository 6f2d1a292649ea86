#include "shared/device/mps.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::device {
namespace {

using ::testing::HasSubstr;
using State = MpsDaemon::State;

// A directory of sockets as the daemon makes it.
class MpsDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fmt::format("{}/mps-{}", ::testing::TempDir(), ::getpid());
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override {
    std::filesystem::remove_all(directory_);
    ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  }
  UniqueFd bound(int type, bool listens) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/control";
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    if (listens) {
      EXPECT_EQ(::listen(fd.get(), 1), 0);
    }
    return fd;
  }
  [[nodiscard]] MpsDaemon found(bool is_named = true) const {
    return find_mps_daemon(directory_, is_named);
  }
  std::string directory_;
};

TEST_F(MpsDirectory, WithoutASocketThereIsNoDaemon) {
  EXPECT_EQ(found().state, State::kNone);
  EXPECT_THAT(mps_text(found()), HasSubstr("no MPS control daemon at " + directory_));
  EXPECT_THAT(mps_advice(found()), HasSubstr("CUDA_MPS_PIPE_DIRECTORY"));
  EXPECT_EQ(mps_advice(found(false)), "") << "nobody has asked for one";
}

TEST_F(MpsDirectory, ASocketAtWhichSomebodyListensIsADaemon) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    {
      const UniqueFd daemon = bound(type, true);
      for (int turn = 0; turn < 5; ++turn)  // more than the queue holds
        EXPECT_EQ(found().state, State::kListens) << type << ", " << turn;
      EXPECT_THAT(mps_text(found()), HasSubstr("daemon at " + directory_ + " serves this process"));
      EXPECT_EQ(mps_advice(found()), "");
    }
    EXPECT_EQ(found().state, State::kGone) << "the socket stays when the daemon ends";
    std::filesystem::remove(directory_ + "/control");
  }
}

TEST_F(MpsDirectory, ADaemonThatHasEndedIsNotOne) {
  (void)bound(SOCK_STREAM, true);
  EXPECT_THAT(mps_text(found()), HasSubstr("has ended"));
  EXPECT_NE(mps_advice(found()), "");
  EXPECT_THAT(mps_advice(found(false)), HasSubstr("nvidia-cuda-mps-control -d"));
}

TEST_F(MpsDirectory, AFileThatIsNoSocketIsNoDaemon) {
  std::ofstream(directory_ + "/control") << "x";
  EXPECT_EQ(found().state, State::kGone);
}

TEST_F(MpsDirectory, ADirectoryThatThisUserMayNotReadIsSaid) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every directory";
  const UniqueFd daemon = bound(SOCK_STREAM, true);
  std::filesystem::permissions(directory_, std::filesystem::perms::none);
  const MpsDaemon forbidden = found();
  std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
  EXPECT_EQ(forbidden.state, State::kForbidden);
  EXPECT_THAT(mps_text(forbidden), HasSubstr("Permission denied"));
  EXPECT_THAT(mps_advice(forbidden), HasSubstr("as the user"));
}

TEST_F(MpsDirectory, TheEnvironmentNamesIt) {
  const UniqueFd daemon = bound(SOCK_STREAM, true);
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", directory_.c_str(), 1);
  MpsDaemon named = find_mps_daemon();
  EXPECT_EQ(named.state, State::kListens);
  EXPECT_TRUE(named.is_named);
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", "", 1);
  named = find_mps_daemon();
  EXPECT_EQ(named.directory, "/tmp/nvidia-mps");
  EXPECT_FALSE(named.is_named);
}

TEST_F(MpsDirectory, ANameThatIsTooLongForASocketIsNoDaemon) {
  const std::string deep = directory_ + "/" + std::string(120, 'x');
  std::filesystem::create_directory(deep);
  std::ofstream(deep + "/control") << "x";
  EXPECT_EQ(find_mps_daemon(deep, true).state, State::kGone);
}

}  // namespace
}  // namespace wsync::device
