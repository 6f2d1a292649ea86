#include "shared/base/shared_memory.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/base/numa.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"

namespace wsync {
namespace {

constexpr std::uint64_t kBytes = 3 * limits::kMiB + 100;

ArenaIdentity identity_of(std::uint64_t step) {
  return {.fence_epoch = 7,
          .fence_run_id = {1, 2},
          .version_epoch = 3,
          .version_step = step,
          .layout = {.low = 5, .high = 6},
          .bucket_bytes = limits::kBucketBytesMin};
}

SharedArena new_arena() {
  auto arena = SharedArena::create({.name = "wsync-test", .data_bytes = kBytes});
  EXPECT_TRUE(arena.has_value()) << arena.error().message();
  return std::move(*arena);
}

void write_version(SharedArena& arena, std::uint64_t step) {
  auto lease = arena.try_write_lease(identity_of(step));
  ASSERT_TRUE(lease.has_value()) << lease.error().message();
  std::memset(lease->data().data(), static_cast<int>(step), lease->data().size());
  std::move(*lease).complete(digest_of(arena.data()));
}

TEST(SharedArena, ViewSeesWhatWasWrittenUnderItsIdentity) {
  SharedArena arena = new_arena();
  EXPECT_EQ(arena.state(), ArenaState::kEmpty);
  EXPECT_EQ(arena.data().size(), kBytes);
  write_version(arena, 9);
  const UniqueFd shared = std::move(*arena.share());
  const auto view = ArenaView::open(shared.get(), {.fence = {{7, {1, 2}}},
                                                   .version = {{3, 9}},
                                                   .layout = Digest{.low = 5, .high = 6},
                                                   .content = digest_of(arena.data()),
                                                   .data_bytes = kBytes});
  ASSERT_TRUE(view.has_value()) << view.error().message();
  EXPECT_EQ(view->data().size(), kBytes);
  EXPECT_EQ(digest_of(view->data()), view->identity().content);
  EXPECT_EQ(view->identity(), arena.identity());
}

TEST(SharedArena, ReaderKeepsTheWriterOutAndTheWriterKeepsReadersOut) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  const UniqueFd shared = std::move(*arena.share());
  {
    const auto view = ArenaView::open(shared.get());
    ASSERT_TRUE(view.has_value());
    const auto lease = arena.try_write_lease(identity_of(2));
    ASSERT_FALSE(lease.has_value());
    EXPECT_EQ(lease.error().code(), ErrorCode::kBusy);
    EXPECT_EQ(arena.identity().version_step, 1U);  // a refused lease changes nothing
  }
  auto lease = arena.try_write_lease(identity_of(2));
  ASSERT_TRUE(lease.has_value()) << lease.error().message();
  const auto view = ArenaView::open(shared.get());
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(arena.try_read_lease().error().code(), ErrorCode::kBusy);
  std::move(*lease).complete({});
  EXPECT_TRUE(ArenaView::open(shared.get()).has_value());
}

TEST(SharedArena, ReadLeaseOfTheSameProcessKeepsTheWriterOut) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  {
    const auto reading = arena.try_read_lease();
    ASSERT_TRUE(reading.has_value());
    EXPECT_EQ(arena.try_write_lease(identity_of(2)).error().code(), ErrorCode::kBusy);
  }
  EXPECT_TRUE(arena.try_write_lease(identity_of(2)).has_value());
}

TEST(SharedArena, UnfinishedVersionIsRefused) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  {
    const auto abandoned = arena.try_write_lease(identity_of(2));
  }
  const UniqueFd shared = std::move(*arena.share());
  const auto view = ArenaView::open(shared.get());
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().message(), "the arena does not contain a complete version");
}

TEST(SharedArena, AnotherVersionFenceLayoutOrContentIsRefusedNamingBoth) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  const UniqueFd shared = std::move(*arena.share());
  const auto message = [&](const ArenaExpectation& expected) {
    const auto view = ArenaView::open(shared.get(), expected);
    return view ? std::string("accepted") : view.error().message();
  };
  EXPECT_NE(message({.version = {{3, 2}}}).find("version is 3.1, expected 3.2"), std::string::npos);
  EXPECT_NE(message({.fence = {{8, {1, 2}}}}).find("fence is 7/"), std::string::npos);
  EXPECT_NE(message({.layout = Digest{}}).find("layout digest is"), std::string::npos);
  EXPECT_NE(message({.content = Digest{}}).find("content digest is"), std::string::npos);
  EXPECT_NE(message({.data_bytes = kBytes - 1}).find("data size in bytes"), std::string::npos);
  EXPECT_EQ(message({}), "accepted");
}

TEST(SharedArena, SealsLetNobodyElseWriteOrResize) {
  SharedArena arena = new_arena();
  const UniqueFd shared = std::move(*arena.share());
  EXPECT_EQ(::ftruncate(shared.get(), 10), -1);
  const std::string path = "/proc/self/fd/" + std::to_string(shared.get());
  const UniqueFd writable(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(writable.valid());
  EXPECT_EQ(::ftruncate(writable.get(), 10), -1);
  EXPECT_EQ(::ftruncate(writable.get(), 1 << 30), -1);
  EXPECT_EQ(::pwrite(writable.get(), "x", 1, 0), -1);
  EXPECT_FALSE(MappedRegion::map(writable.get(), kArenaHeaderBytes, true).has_value());
}

TEST(SharedArena, OnlySealedArenasAreMapped) {
  const UniqueFd plain(::memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain.get(), 1 << 20), 0);
  EXPECT_EQ(ArenaView::open(plain.get()).error().code(), ErrorCode::kRefused);
  ASSERT_EQ(::fcntl(plain.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE),
            0);
  EXPECT_EQ(ArenaView::open(plain.get()).error().message(),
            "the descriptor is not an arena of format 3");
  const UniqueFd device(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(ArenaView::open(device.get()).has_value());
}

constexpr std::uint64_t kSums = 5;

// Written with the sums of its leaves, so that it is protected.
SharedArena summed_arena(std::uint64_t step, std::span<const WordSum> sums) {
  auto arena =
      SharedArena::create({.name = "wsync-summed", .data_bytes = kBytes, .leaf_sums = sums.size()});
  auto lease = arena->try_write_lease(identity_of(step));
  std::memset(lease->data().data(), static_cast<int>(step), lease->data().size());
  std::move(*lease).complete({.low = step}, sums);
  return std::move(*arena);
}

std::vector<WordSum> some_sums() {
  std::vector<WordSum> sums;
  for (std::uint64_t i = 0; i < kSums; ++i) sums.push_back({.product = i, .sum = ~i});
  return sums;
}

TEST(SharedArena, SumsOfTheLeavesAreReadWithTheData) {
  const std::vector<WordSum> sums = some_sums();
  SharedArena arena = summed_arena(1, sums);
  const auto view = ArenaView::open(arena.share()->get());
  ASSERT_TRUE(view.has_value()) << view.error().message();
  EXPECT_EQ(std::vector<WordSum>(view->leaf_sums().begin(), view->leaf_sums().end()), sums);
  EXPECT_TRUE(view->is_protected());
  EXPECT_EQ(view->data().back(), std::byte{1});

  SharedArena plain = new_arena();
  write_version(plain, 1);
  const auto without = ArenaView::open(plain.share()->get());
  ASSERT_TRUE(without.has_value());
  EXPECT_TRUE(without->leaf_sums().empty());
  EXPECT_FALSE(without->is_protected());
}

TEST(SharedArena, AProtectedArenaIsWrittenAgainAfterItsLeaseIsTaken) {
  SharedArena arena = summed_arena(1, some_sums());
  {
    auto lease = arena.try_write_lease(identity_of(2));
    ASSERT_TRUE(lease.has_value());
    ASSERT_TRUE(lease->unprotect().has_value());
    EXPECT_FALSE(arena.is_protected());
    // A write that ends after a part has been protected.
    lease->data().front() = std::byte{7};
    ASSERT_TRUE(lease->protect(0, kBytes / 2).has_value());
  }
  auto lease = arena.try_write_lease(identity_of(3));
  ASSERT_TRUE(lease.has_value());
  ASSERT_TRUE(lease->unprotect().has_value());
  std::memset(lease->data().data(), 9, lease->data().size());
  ASSERT_TRUE(lease->protect(100, kBytes - 200).has_value());
  lease->data()[50] = lease->data()[kBytes - 50] = std::byte{8};  // on pages of their own or shared
  std::move(*lease).complete({.low = 3}, some_sums());
  const auto view = ArenaView::open(arena.share()->get());
  ASSERT_TRUE(view.has_value()) << view.error().message();
  EXPECT_EQ(view->data()[50], std::byte{8});
  EXPECT_EQ(view->data()[5000], std::byte{9});
}

// F_SEAL_FUTURE_WRITE does not bind the mapping of the creator.
TEST(SharedArenaDeathTest, AStrayWriteOfItsCreatorEndsItsProcess) {
  // With SIGSEGV; a sanitizer makes an exit code of it.
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the arena is not mapped in a forked child
  const auto stray_write = [](std::uint64_t at) {
    const SharedArena arena = summed_arena(1, some_sums());
    const_cast<std::byte&>(arena.data()[at]) = std::byte{0xff};
  };
  EXPECT_DEATH(stray_write(0), "");
  EXPECT_DEATH(stray_write(kBytes - 1), "");
}

TEST(SharedArena, AHeaderWithMoreSumsThanItsFileHoldsIsRefused) {
  const SharedArena arena = summed_arena(1, some_sums());
  const UniqueFd other(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const UniqueFd shared = std::move(*arena.share());
  struct stat file{};
  ASSERT_EQ(::fstat(shared.get(), &file), 0);
  // The header and the data, without the page of the sums.
  std::vector<char> bytes(static_cast<std::size_t>(file.st_size) - 4096);
  ASSERT_EQ(::pread(shared.get(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(::pwrite(other.get(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(::fcntl(other.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE),
            0);
  const auto view = ArenaView::open(other.get());
  ASSERT_FALSE(view.has_value());
  EXPECT_NE(view.error().message().find("says 5 sums of leaves"), std::string::npos)
      << view.error().message();
}

TEST(KeptMappings, AnArenaIsMappedOnceForAllItsVersionsAndUntilItIsFreed) {
  KeptMappings kept;
  std::optional<SharedArena> arena = summed_arena(1, some_sums());
  const UniqueFd shared = std::move(*arena->share());
  const std::byte* first = nullptr;
  {
    const auto view = ArenaView::open(shared.get(), {}, 1, &kept);
    ASSERT_TRUE(view.has_value());
    first = view->data().data();
    const auto again = ArenaView::open(shared.get(), {}, 1, &kept);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->data().data(), first);
  }
  {
    auto lease = arena->try_write_lease(identity_of(2));
    ASSERT_TRUE(lease.has_value()) << "a kept mapping is no lease";
    ASSERT_TRUE(lease->unprotect().has_value());
    std::memset(lease->data().data(), 2, lease->data().size());
    std::move(*lease).complete({.low = 2}, some_sums());
  }
  {
    const auto view = ArenaView::open(shared.get(), {.version = {{3, 2}}}, 1, &kept);
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(view->data().data(), first);
    EXPECT_EQ(view->data().front(), std::byte{2});
  }
  SharedArena other = summed_arena(1, some_sums());
  ASSERT_TRUE(ArenaView::open(other.share()->get(), {}, 1, &kept).has_value());
  EXPECT_TRUE(kept.take_retired().empty());
  arena.reset();
  const auto retired = kept.take_retired();
  ASSERT_EQ(retired.size(), 1U);
  EXPECT_EQ(retired.front()->bytes().data() + kArenaHeaderBytes, first);
  EXPECT_FALSE(kept.empty());
  EXPECT_EQ(kept.take_all().size(), 1U);
  EXPECT_TRUE(kept.empty());
}

TEST(SharedArena, AskingForMoreThanThereIsNamesBothNumbers) {
  const auto arena = SharedArena::create({.name = "huge", .data_bytes = 1ULL << 50U});
  ASSERT_FALSE(arena.has_value());
  EXPECT_EQ(arena.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(arena.error().message().find("arena huge needs 1125899906846720 bytes"),
            std::string::npos)
      << arena.error().message();
}

// Forks a process that maps the arena, says so, and then waits to be killed.
struct Holder {
  pid_t pid = -1;
  static Holder start(int fd) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const auto view = ArenaView::open(fd);
      const char answer = view ? 'y' : 'n';
      (void)!::write(ready[1], &answer, 1);
      for (;;) ::pause();
    }
    char answer = 0;
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
    return {pid};
  }
  void kill_and_wait() const {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

TEST(SharedArena, LeaseOfAKilledProcessGoesWithItAndNotBefore) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  const UniqueFd shared = std::move(*arena.share());
  const Holder first = Holder::start(shared.get());
  const Holder second = Holder::start(shared.get());
  EXPECT_EQ(arena.try_write_lease(identity_of(2)).error().code(), ErrorCode::kBusy);
  const std::vector<int> holders = arena.holders();
  EXPECT_NE(std::find(holders.begin(), holders.end(), first.pid), holders.end());
  ::kill(first.pid, SIGSTOP);  // a stopped holder still holds
  second.kill_and_wait();
  EXPECT_EQ(arena.try_write_lease(identity_of(2)).error().code(), ErrorCode::kBusy);
  first.kill_and_wait();
  EXPECT_TRUE(arena.try_write_lease(identity_of(2)).has_value());
}

// A child that has whatever this process has, and does nothing until it is destroyed.
struct IdleChild {
  pid_t pid = ::fork();
  IdleChild() {
    while (pid == 0) ::pause();
  }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;
  ~IdleChild() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

// What `work` returns, in a child.
template <class Work>
int in_child(Work work) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(work());
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SharedArena, ALeaseThatAForkedChildSharesEndsInItsParent) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  const UniqueFd shared = std::move(*arena.share());
  std::optional<ReadLease> lease = std::move(*arena.try_read_lease());
  std::optional<ArenaView> view = std::move(*ArenaView::open(shared.get()));
  std::optional<ArenaView> ended = std::move(*ArenaView::open(shared.get()));
  const auto busy = [&] { return !arena.try_write_lease(identity_of(2)).has_value(); };
  {
    const IdleChild child;
    lease.reset();
    EXPECT_TRUE(busy());
    view.reset();
    EXPECT_TRUE(busy());
    const auto mapping = std::move(*ended).end();
    ended.reset();
    EXPECT_FALSE(busy()) << "a lease has stayed with the child";
    // A version that was not accepted leaves no lease either, and one lease put over another one.
    EXPECT_FALSE(ArenaView::open(shared.get()).has_value()) << "nobody has completed it";
    write_version(arena, 2);
    ReadLease over = std::move(*arena.try_read_lease());
    over = std::move(*arena.try_read_lease());
  }
  const IdleChild second;
  EXPECT_FALSE(busy());
}

TEST(SharedArena, AForkedChildThatEndsItsCopyOfALeaseLeavesTheParents) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  std::optional<ReadLease> lease = std::move(*arena.try_read_lease());
  EXPECT_EQ(in_child([&] {
              lease.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(arena.try_write_lease(identity_of(2)).error().code(), ErrorCode::kBusy);
  lease.reset();
  EXPECT_TRUE(arena.try_write_lease(identity_of(2)).has_value());
}

TEST(SharedArena, AForkedChildThatEndsItsCopyDoesNotTouchTheArena) {
  KeptMappings kept;
  std::optional<SharedArena> arena = summed_arena(1, some_sums());
  ASSERT_TRUE(ArenaView::open(arena->share()->get(), {}, 1, &kept).has_value());
  EXPECT_EQ(in_child([&] {
              arena.reset();
              return 0;
            }),
            0);
  EXPECT_TRUE(kept.take_retired().empty());
}

TEST(SharedArena, IsNotMappedInAForkedChild) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  const UniqueFd shared = std::move(*arena.share());
  const auto view = std::move(*ArenaView::open(shared.get()));
  // The page of the data's first byte: where mincore finds none, touching it is a SIGSEGV.
  const auto is_mapped = [](std::span<const std::byte> data) {
    unsigned char there = 0;
    return ::mincore(const_cast<std::byte*>(data.data()), 1, &there) == 0 || errno != ENOMEM;
  };
  // Before the fork: where the data is stands in the header, which the child does not have either.
  const auto own = arena.data();
  const auto seen = view.data();
  EXPECT_TRUE(is_mapped(own) && is_mapped(seen));
  EXPECT_EQ(in_child([&] { return (is_mapped(own) ? 1 : 0) + (is_mapped(seen) ? 2 : 0); }), 0);
}

class MemoryLimit : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / ("wsync_memory_" + std::to_string(::getpid()));
    put("proc/meminfo", "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] MemoryFiles files() const {
    return {.proc = root_ / "proc", .cgroup = root_ / "cgroup"};
  }
  std::filesystem::path root_;
};

TEST_F(MemoryLimit, MachineAloneLimits) {
  const auto available = available_memory(files());
  ASSERT_TRUE(available.has_value());
  EXPECT_EQ(available->bytes, 4000U * 1024U);
}

TEST_F(MemoryLimit, GroupOfVersion2AndItsParentsLimit) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("cgroup/a/b/memory.max", "max\n");
  put("cgroup/a/b/memory.current", "100\n");
  put("cgroup/a/memory.max", "3000\n");
  put("cgroup/a/memory.current", "2500\n");
  put("cgroup/a/memory.stat", "anon 1\ninactive_file 400\n");
  const auto available = available_memory(files());
  ASSERT_TRUE(available.has_value());
  EXPECT_EQ(available->bytes, 900U);  // 3000 - (2500 - 400)
  EXPECT_NE(available->limited_by.find("/a/memory.max"), std::string::npos);
  EXPECT_TRUE(require_memory(900, "x", files()).has_value());
  const auto refused = require_memory(901, "arena v1", files());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message().find("arena v1 needs 901 bytes of memory, 900 are"), 0U);
}

TEST_F(MemoryLimit, GroupOfVersion1Limits) {
  put("proc/self/cgroup", "9:cpu,memory:/job\n0::/\n");
  put("cgroup/memory/job/memory.limit_in_bytes", "1000\n");
  put("cgroup/memory/job/memory.usage_in_bytes", "1500\n");
  const auto available = available_memory(files());
  ASSERT_TRUE(available.has_value());
  EXPECT_EQ(available->bytes, 0U);
}

TEST_F(MemoryLimit, PathOutsideTheContainerFallsBackToTheRoot) {
  put("proc/self/cgroup", "0::/../other\n");
  put("cgroup/memory.max", "1000\n");
  put("cgroup/memory.current", "10\n");
  EXPECT_EQ(available_memory(files())->bytes, 990U);
}

TEST_F(MemoryLimit, WithoutMeminfoItIsAnError) {
  std::filesystem::remove(root_ / "proc/meminfo");
  EXPECT_EQ(available_memory(files()).error().code(), ErrorCode::kIo);
}

TEST(Numa, SeveralNodesAreSeenWhereTheSystemSaysSo) {
  const auto root = std::filesystem::temp_directory_path() / fmt::format("numa-{}", ::getpid());
  EXPECT_FALSE(has_numa_nodes(root)) << "nothing is said";
  const auto folder = root / "sys/devices/system/node";
  std::filesystem::create_directories(folder);
  for (const auto& [nodes, several] :
       {std::pair{"0\n", false}, {"0-1\n", true}, {"0,2\n", true}, {"\n", false}}) {
    std::ofstream(folder / "online") << nodes;
    EXPECT_EQ(has_numa_nodes(root), several) << nodes;
  }
  std::filesystem::remove_all(root);
}

// Node 0 is there on every machine that has the calls.
TEST(Numa, AnArenaPrefersTheNodeThatItIsToldOrIsMadeAllTheSame) {
  std::string why;
  const auto make = [&](std::optional<std::uint32_t> node) {
    why.clear();
    return SharedArena::create({.name = "numa",
                                .data_bytes = kBytes,
                                .numa_node = node,
                                .on_fallback = [&](const Error& e) { why = e.message(); }})
        .value();
  };
  const auto usual = make(std::nullopt);
  const auto found = preferred_node(usual.data());
  if (!found) GTEST_SKIP() << "this system tells no NUMA policy: " << found.error().message();
  EXPECT_EQ(*found, std::nullopt);
  const auto placed = make(0);
  if (!why.empty()) GTEST_SKIP() << "this system takes no NUMA policy: " << why;
  EXPECT_EQ(preferred_node(placed.data()).value(), 0U);
  EXPECT_EQ(placed.data_bytes(), kBytes);
  const auto elsewhere = make(1000);
  EXPECT_NE(why.find("prefer NUMA node 1000"), std::string::npos) << why;
  EXPECT_EQ(elsewhere.data_bytes(), kBytes);
  std::vector<std::byte> none;
  EXPECT_EQ(prefer_node(none, 1024).error().code(), ErrorCode::kInvalidInput);
}

TEST(SharedArena, OneThatIsStoppedWhileItIsMadeLeavesNothing) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  std::stop_source stop;
  // It is told that there is no such node after the mapping is made and before a page is.
  const auto stopped =
      SharedArena::create({.name = "stopped",
                           .data_bytes = 1ULL << 32U,
                           .numa_node = 1U << 20U,
                           .on_fallback = [&](const Error&) { stop.request_stop(); },
                           .stop = stop.get_token()});
  ASSERT_FALSE(stopped.has_value());
  if (stopped.error().code() == ErrorCode::kResourceExhausted)
    GTEST_SKIP() << "4 GiB are needed: " << stopped.error().message();
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
  EXPECT_THAT(stopped.error().message(), ::testing::HasSubstr("arena stopped: stopped while"));
  EXPECT_EQ(open_files(), before);
}

TEST(SharedArena, ASuspendedViewKeepsItsMappingAndNotItsLease) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  const UniqueFd shared = std::move(*arena.share());
  auto view = ArenaView::open(shared.get());
  ASSERT_TRUE(view.has_value());
  const auto* at = view->data().data();
  EXPECT_FALSE(arena.try_write_lease(identity_of(1)).has_value());
  view->suspend();
  view->suspend();
  {
    const auto writing = arena.try_write_lease(identity_of(1));
    ASSERT_TRUE(writing.has_value()) << "a suspended view holds a lease";
    EXPECT_EQ(view->renew().error().code(), ErrorCode::kBusy);
  }
  write_version(arena, 1);
  ASSERT_TRUE(view->renew().has_value()) << "the same content was written again";
  EXPECT_EQ(view->data().data(), at);
  EXPECT_FALSE(arena.try_write_lease(identity_of(2)).has_value());
  ASSERT_TRUE(view->renew().has_value()) << "it has the lease already";
  view->suspend();
  write_version(arena, 2);
  const auto renewed = view->renew();
  ASSERT_FALSE(renewed.has_value());
  EXPECT_EQ(renewed.error().code(), ErrorCode::kRefused);
  EXPECT_EQ(renewed.error().message(),
            "the arena no longer contains version 3.1: its writer has reused it for version 3.2");
  EXPECT_TRUE(arena.try_write_lease(identity_of(3)).has_value()) << "a refused view holds a lease";
}

TEST(SharedArena, HoldersAreThoseWithALease) {
  SharedArena arena = new_arena();
  write_version(arena, 1);
  const UniqueFd shared = std::move(*arena.share());
  int ready[2];
  int end[2];
  ASSERT_EQ(::pipe(ready) | ::pipe(end), 0);
  const auto reader = [&](bool keeps_lease) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto view = ArenaView::open(shared.get());
      if (view && !keeps_lease) view->suspend();
      char byte = view ? 1 : 0;
      (void)!::write(ready[1], &byte, 1);
      (void)!::read(end[0], &byte, 1);
      ::_exit(0);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 1);
    return pid;
  };
  const pid_t first = reader(true);
  const pid_t second = reader(false);
  EXPECT_THAT(arena.holders(), testing::ElementsAre(first)) << "not " << second;
  ::write(end[1], "12", 2);
  for (const pid_t pid : {first, second}) ::waitpid(pid, nullptr, 0);
  EXPECT_THAT(arena.holders(), testing::IsEmpty());
  for (const int fd : {ready[0], ready[1], end[0], end[1]}) ::close(fd);
}

}  // namespace
}  // namespace wsync
