#include "shared/process_group/gloo/gloo_group.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "shared/process_group/collectives.h"
#include "tests/contract/process_group/process_group_suite.h"

namespace wsync::collective {
namespace {

using ::testing::HasSubstr;

// A directory for ranks to find each other in, removed with what is in it.
class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wsync_gloo_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] std::size_t files(bool hidden = true) const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (hidden || !entry.path().filename().string().starts_with('.')) ++count;
    return count;
  }

 private:
  std::filesystem::path path_;
};

gloo::GlooOptions options_of(std::uint32_t rank, std::uint32_t size, const Directory& directory) {
  return {.rank = rank, .size = size, .directory = directory.path(), .run = "a test"};
}

Groups over_tcp(std::uint32_t size) {
  const Directory directory;
  Groups groups(size);
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto group = gloo::join(options_of(rank, size, directory), far_off());
      ASSERT_TRUE(group.has_value()) << group.error().message();
      groups[rank] = std::move(*group);
    });
  threads.clear();
  EXPECT_EQ(directory.files(), 0U) << "the ranks leave no files";
  return groups;
}

INSTANTIATE_TEST_SUITE_P(Gloo, ProcessGroupContract,
                         ::testing::Values(GroupBackend{
                             .name = "Tcp", .make = over_tcp, .seeds = 3}),
                         backend_name);

std::string refusal(const gloo::GlooOptions& options, ErrorCode code = ErrorCode::kInvalidInput) {
  const auto group = gloo::join(options, in(std::chrono::milliseconds(100)));
  EXPECT_FALSE(group.has_value());
  if (group) return "";
  EXPECT_EQ(group.error().code(), code);
  return group.error().message();
}

TEST(GlooGroup, OptionsThatCannotBeAreRefused) {
  const Directory directory;
  const auto with = [&](auto change) {
    auto options = options_of(0, 2, directory);
    change(options);
    return refusal(options);
  };
  EXPECT_EQ(with([](auto& o) { o.size = 0; }), "a group of 0 ranks, expected 1 to 256");
  EXPECT_EQ(with([](auto& o) { o.size = 257; }), "a group of 257 ranks, expected 1 to 256");
  EXPECT_EQ(with([](auto& o) { o.rank = 2; }), "rank 2 in a group of 2 ranks");
  EXPECT_THAT(with([](auto& o) { o.run = ""; }), HasSubstr("has no name"));
  EXPECT_THAT(with([](auto& o) { o.directory += "/absent"; }), HasSubstr("is not a directory"));
  EXPECT_THAT(with([](auto& o) { o.address = "no.such.host"; }),
              HasSubstr("'no.such.host' is not an IP address"));
  EXPECT_EQ(with([](auto& o) { o.address = "203.0.113.7"; }),  // of a network for documentation
            "cannot listen at 203.0.113.7: Cannot assign requested address; name an address of "
            "this host that the other ranks can reach");
  EXPECT_THAT(with([](auto& o) { o.address = "2001:db8::7"; }),
              HasSubstr("cannot listen at 2001:db8::7: "));
  EXPECT_EQ(directory.files(), 0U);
}

TEST(GlooGroup, TheDeadlineNamesWhoHasNotCome) {
  const Directory directory;
  EXPECT_EQ(refusal(options_of(1, 4, directory), ErrorCode::kDeadline),
            "rank 1 of run a test has waited until its deadline; ranks 0, 2 and 3 have not "
            "registered in " +
                directory.path());
  EXPECT_EQ(directory.files(), 0U);
}

TEST(GlooGroup, ARankThatIsThereAlreadyIsRefused) {
  const Directory directory;
  std::jthread first(
      [&] { (void)gloo::join(options_of(0, 2, directory), in(std::chrono::seconds(1))); });
  while (directory.files(false) == 0) std::this_thread::yield();
  EXPECT_EQ(
      refusal(options_of(0, 2, directory), ErrorCode::kRefused),
      "run a test already has a rank 0 in " + directory.path() +
          ": either the rank was started twice, or a run that was killed while it was starting has "
          "left its files; empty the directory, or give the run a directory of its own");
}

TEST(GlooGroup, OfOneRankNeedsNoOther) {
  const Directory directory;
  const auto group = gloo::join(options_of(0, 1, directory), far_off());
  ASSERT_TRUE(group.has_value()) << group.error().message();
  EXPECT_TRUE((*group)->exchange({}, {}, far_off()).has_value());
}

TEST(GlooGroup, ConnectsOverIpVersion6) {
  const Directory directory;
  Groups groups(2);
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto options = options_of(rank, 2, directory);
      options.address = "::1";
      auto group = gloo::join(options, far_off());
      ASSERT_TRUE(group.has_value()) << group.error().message();
      EXPECT_TRUE(barrier(Team(group->get(), {0, 1}), far_off()).has_value());
    });
}

// Ranks that are processes. Rank 0 sends large messages to the last one, the victim, from which the
// others wait for something; the victim is stopped in the middle of a message.
class GlooProcesses : public ::testing::Test {
 protected:
  static constexpr std::size_t kLarge = 50'000'000;  // more than what a connection holds

  // Exit status: the code of the error that exchange() ended with.
  int rank_process(std::uint32_t rank, std::uint32_t size, int there,
                   std::chrono::milliseconds time) {
    const std::uint32_t killed = size - 1;
    auto group = gloo::join(options_of(rank, size, directory_), far_off());
    if (!group) return 99;
    Bytes large(kLarge);
    const TimePoint deadline = rank == killed ? far_off() : in(time);
    Result<> done;
    while (done) {
      if (rank == 0)
        done = (*group)->exchange(std::vector<Send>{{.to = killed, .bytes = large}}, {}, deadline);
      else if (rank == killed) {
        done = (*group)->exchange({}, std::vector<Receive>{{.from = 0, .bytes = large}}, deadline);
        (void)!::write(there, "y", 1);
      } else
        done =
            (*group)->exchange({}, std::vector<Receive>{{.from = killed, .bytes = {}}}, deadline);
    }
    return static_cast<int>(done.error().code());
  }
  // The exit statuses of the others after the victim got this signal.
  std::vector<int> after(int signal, std::uint32_t size, std::chrono::milliseconds time) {
    int there[2];
    EXPECT_EQ(::pipe(there), 0);
    std::vector<pid_t> pids;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      pids.push_back(::fork());
      if (pids.back() == 0) ::_exit(rank_process(rank, size, there[1], time));
    }
    char taken = 0;
    EXPECT_EQ(::read(there[0], &taken, 1), 1);
    ::kill(pids.back(), SIGSTOP);
    // Once it stands still, rank 0 has sent at most a part of the next message: a connection does
    // not hold more.
    int status = 0;
    EXPECT_EQ(::waitpid(pids.back(), &status, WUNTRACED), pids.back());
    EXPECT_TRUE(WIFSTOPPED(status));
    ::kill(pids.back(), signal);
    std::vector<int> statuses;
    for (std::size_t rank = 0; rank + 1 < size; ++rank) {
      EXPECT_EQ(::waitpid(pids[rank], &status, 0), pids[rank]);
      statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
    }
    ::kill(pids.back(), SIGKILL);
    ::waitpid(pids.back(), nullptr, 0);
    ::close(there[0]);
    ::close(there[1]);
    return statuses;
  }

  Directory directory_;
};

TEST_F(GlooProcesses, AKilledRankIsFoundInTheMiddleOfAMessage) {
  const int lost = static_cast<int>(ErrorCode::kPeerLost);
  EXPECT_THAT(after(SIGKILL, 2, std::chrono::hours(1)), ::testing::ElementsAre(lost));
}

TEST_F(GlooProcesses, AKilledRankIsFoundByAllOthers) {
  const int lost = static_cast<int>(ErrorCode::kPeerLost);
  EXPECT_THAT(after(SIGKILL, 4, std::chrono::hours(1)), ::testing::ElementsAre(lost, lost, lost));
}

TEST_F(GlooProcesses, AStoppedRankIsFoundAtTheDeadline) {
  const int late = static_cast<int>(ErrorCode::kDeadline);
  EXPECT_THAT(after(SIGSTOP, 3, std::chrono::seconds(1)), ::testing::ElementsAre(late, late));
}

}  // namespace
}  // namespace wsync::collective
