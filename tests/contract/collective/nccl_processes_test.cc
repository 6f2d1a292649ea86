// One NCCL group in two processes. The second one is this program again, told by the environment;
// it reads commands from descriptor 3 and answers on 4.
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "tests/contract/collective/nccl_member.h"

namespace wsync::collective {
namespace {

using device::far_deadline;

constexpr const char* kSecond = "WSYNC_TEST_SECOND_PROCESS";
constexpr int kCommands = 3;
constexpr int kAnswers = 4;

Bytes data_of(std::uint32_t rank) { return device::pattern(kMemberBytes, 20 + rank); }

void send_all(int fd, const void* data, std::size_t bytes) {
  ASSERT_EQ(::write(fd, data, bytes), static_cast<ssize_t>(bytes));
}
void receive_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t more = ::read(fd, at + done, bytes - done);
    ASSERT_GT(more, 0) << "the other process has ended";
    done += static_cast<std::size_t>(more);
  }
}

// A child that this process must not leave behind.
class SecondProcess {
 public:
  SecondProcess() {
    std::array<int, 2> commands{};
    std::array<int, 2> answers{};
    EXPECT_EQ(::pipe2(commands.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(answers.data(), O_CLOEXEC), 0);
    // Out of the way of 3 and 4.
    const int in = ::fcntl(commands[0], F_DUPFD_CLOEXEC, 10);
    const int out = ::fcntl(answers[1], F_DUPFD_CLOEXEC, 10);
    posix_spawn_file_actions_t actions{};
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in, kCommands);
    ::posix_spawn_file_actions_adddup2(&actions, out, kAnswers);
    report_ = std::filesystem::temp_directory_path() / fmt::format("nccl-report-{}", ::getpid());
    std::vector<std::string> words{std::string(kSecond) + "=1",
                                   "WSYNC_EMULATED_CUDA_REPORT=" + report_.string()};
    for (char** word = environ; *word != nullptr; ++word)
      if (!std::string_view(*word).starts_with("WSYNC_EMULATED_CUDA_REPORT="))
        words.emplace_back(*word);
    std::vector<char*> environment;
    for (std::string& word : words) environment.push_back(word.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe";
    std::string filter = "--gtest_filter=NcclSecondProcess.*";
    std::array<char*, 3> arguments{program.data(), filter.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(),
                            environment.data()),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
    for (const int fd : {commands[0], answers[1], in, out}) ::close(fd);
    commands_ = commands[1];
    answers_ = answers[0];
  }
  ~SecondProcess() {
    if (pid_ > 0) (void)kill_and_wait();
    ::close(commands_);
    ::close(answers_);
    std::filesystem::remove(report_);
  }
  SecondProcess(const SecondProcess&) = delete;
  SecondProcess& operator=(const SecondProcess&) = delete;

  void give(const Bytes& id) const {
    const auto bytes = static_cast<std::uint32_t>(id.size());
    send_all(commands_, &bytes, sizeof bytes);
    send_all(commands_, id.data(), id.size());
  }
  void tell(char command) const { send_all(commands_, &command, 1); }
  void expect(char answer) const {
    char said = 0;
    receive_all(answers_, &said, 1);
    ASSERT_EQ(said, answer);
  }
  int kill_and_wait() {
    ::kill(pid_, SIGKILL);
    return wait();
  }
  int wait() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return status;
  }
  [[nodiscard]] const std::filesystem::path& report() const { return report_; }

 private:
  pid_t pid_ = -1;
  int commands_ = -1;
  int answers_ = -1;
  std::filesystem::path report_;
};

// What the second process does: 'b' one broadcast from rank 0, 'o' one from itself, 'l' leaves.
TEST(NcclSecondProcess, JoinsByTheIdAndDoesAsTold) {
  if (std::getenv(kSecond) == nullptr) GTEST_SKIP() << "a part of the tests of two processes";
  std::uint32_t bytes = 0;
  receive_all(kCommands, &bytes, sizeof bytes);
  Bytes id(bytes);
  receive_all(kCommands, id.data(), id.size());

  auto group = attach_group(GroupKind::kNccl, id, 2);
  ASSERT_TRUE(group.has_value()) << group.error().message();
  NcclMember taken(0);
  EXPECT_EQ((*group)->join(Rank{1}, *taken.device).error().code(), ErrorCode::kRefused)
      << "the maker has that GPU";
  NcclMember member(1);
  auto joined = (*group)->join(Rank{1}, *member.device);
  ASSERT_TRUE(joined.has_value()) << joined.error().message();
  member.communicator = std::move(*joined);
  ASSERT_TRUE(member.communicator->wait_joined(far_deadline()));
  const auto answer = [](char said) { send_all(kAnswers, &said, 1); };
  answer('j');
  while (true) {
    char command = 0;
    receive_all(kCommands, &command, 1);
    if (HasFatalFailure() || command == 'l') break;
    const std::uint32_t root = command == 'o' ? 1 : 0;
    if (root == 1) member.write(data_of(1));
    member.begin(root);
    ASSERT_TRUE(member.end());
    EXPECT_EQ(member.read(), data_of(root));
    answer(command);
  }
}

class NcclProcesses : public ::testing::Test {
 protected:
  // Both ranks in, and a broadcast from each.
  void meet() {
    auto group = make_group(GroupKind::kNccl, 2);
    ASSERT_TRUE(group.has_value()) << group.error().message();
    auto joined = (*group)->join(Rank{0}, *first_.device);
    ASSERT_TRUE(joined.has_value()) << joined.error().message();
    first_.communicator = std::move(*joined);
    second_.give(*(*group)->id());
    ASSERT_TRUE(first_.communicator->wait_joined(far_deadline()));
    second_.expect('j');
    for (const char command : {'b', 'o'}) {
      const std::uint32_t root = command == 'o' ? 1 : 0;
      if (root == 0) first_.write(data_of(0));
      second_.tell(command);
      first_.begin(root);
      ASSERT_TRUE(first_.end());
      EXPECT_EQ(first_.read(), data_of(root));
      second_.expect(command);
    }
  }

  NcclMember first_{0};
  SecondProcess second_;
};

TEST_F(NcclProcesses, BroadcastToEachOtherAndPartInGoodOrder) {
  meet();
  if (HasFatalFailure()) return;
  second_.tell('l');
  const int status = second_.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::error_code code;
  EXPECT_FALSE(std::filesystem::exists(second_.report(), code) &&
               std::filesystem::file_size(second_.report(), code) > 0)
      << "the second process left or misused something";
}

TEST_F(NcclProcesses, OneThatIsKilledIsMissedAtTheDeadlineAndLeftOutOfTheNextGroup) {
  meet();
  if (HasFatalFailure()) return;
  const int status = second_.kill_and_wait();
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(first_.communicator->health()) << "nothing is under way";
  first_.begin(1, now() + std::chrono::milliseconds(100));
  const auto ended = first_.end();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kDeadline) << ended.error().message();
  EXPECT_THAT(ended.error().message(), ::testing::HasSubstr("rank 0 of 2 waited in vain"));
  EXPECT_FALSE(first_.communicator->health());

  first_.leave();
  NcclMember other(2);
  auto joined =
      join_all(GroupKind::kNccl, {first_.device.get(), other.device.get()}, far_deadline());
  ASSERT_TRUE(joined.has_value()) << joined.error().message();
  first_.communicator = std::move((*joined)[0]);
  other.communicator = std::move((*joined)[1]);
  first_.write(data_of(7));
  first_.begin(0);
  other.begin(0);
  EXPECT_TRUE(first_.end());
  EXPECT_TRUE(other.end());
  EXPECT_EQ(other.read(), data_of(7));
}

TEST_F(NcclProcesses, OneThatNeverComesIsMissedAtTheDeadline) {
  auto group = make_group(GroupKind::kNccl, 2);
  ASSERT_TRUE(group.has_value()) << group.error().message();
  first_.communicator = std::move(*(*group)->join(Rank{0}, *first_.device));
  const auto joined = first_.communicator->wait_joined(now() + std::chrono::milliseconds(50));
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(joined.error().message(), ::testing::HasSubstr("1 of 2 ranks"));
}

}  // namespace
}  // namespace wsync::collective
