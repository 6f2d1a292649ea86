#include "shared/base/huge_pages.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/shared_memory.h"
#include "shared/base/units.h"

namespace wsync {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kData = 5 * limits::kMiB + 100;  // three huge pages, and one for the header
constexpr std::uint64_t kPages = 4;
const std::filesystem::path kPoolSetting = "/proc/sys/vm/nr_hugepages";

// A system with other settings than this one.
class FakeSystem : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / fmt::format("huge-{}", ::getpid());
    std::filesystem::create_directories(root_ / "sys/kernel/mm/transparent_hugepage");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void setting(const std::string& text) const {
    std::ofstream(root_ / "sys/kernel/mm/transparent_hugepage/shmem_enabled") << text;
  }
  void pool(const std::map<std::string, std::uint64_t>& pages) const {
    const auto folder = root_ / "sys/kernel/mm/hugepages/hugepages-2048kB";
    std::filesystem::create_directories(folder);
    for (const char* name : {"nr_hugepages", "free_hugepages", "resv_hugepages",
                             "surplus_hugepages", "nr_overcommit_hugepages"})
      std::ofstream(folder / name) << (pages.contains(name) ? pages.at(name) : 0) << "\n";
  }
  std::filesystem::path root_;
};

TEST_F(FakeSystem, TheSettingIsTheWordInBrackets) {
  EXPECT_EQ(shared_huge_pages(root_), "");
  EXPECT_FALSE(gives_on_request(""));
  for (const auto& [text, word, gives] :
       {std::tuple{"always within_size advise [never] deny force\n", "never", false},
        {"always within_size [advise] never deny force\n", "advise", true},
        {"[always] within_size advise never deny force\n", "always", true},
        {"always within_size advise never [deny] force\n", "deny", false},
        {"never\n", "", false},
        {"] [\n", "", false}}) {
    setting(text);
    EXPECT_EQ(shared_huge_pages(root_), word);
    EXPECT_EQ(gives_on_request(shared_huge_pages(root_)), gives) << text;
  }
}

TEST_F(FakeSystem, PagesThatArePromisedAreNotAvailable) {
  const auto none = huge_page_pool(root_);
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().message(), HasSubstr("nr_hugepages: no number of huge pages"));
  pool({{"nr_hugepages", 10}, {"free_hugepages", 7}, {"resv_hugepages", 3}});
  EXPECT_EQ(huge_page_pool(root_)->available(), 4U);
  EXPECT_TRUE(require_huge_pages(4 * kHugePageBytes, "arena a", root_).has_value());
  const auto refused = require_huge_pages(4 * kHugePageBytes + 1, "arena a", root_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("arena a needs 5 huge pages of 2 MiB, but the system's pool has 4 "
                        "available of 10; reserve more with `sysctl vm.nr_hugepages=11`"));
  pool({{"nr_hugepages", 3},
        {"free_hugepages", 1},
        {"resv_hugepages", 2},
        {"surplus_hugepages", 2},
        {"nr_overcommit_hugepages", 6}});
  EXPECT_EQ(huge_page_pool(root_)->available(), 4U) << "of those that the system may add";
}

TEST_F(FakeSystem, APoolThatCannotBeReadIsAnErrorOfTheArena) {
  const auto refused = require_huge_pages(1, "arena b", root_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kIo);
  EXPECT_THAT(refused.error().message(), HasSubstr("arena b"));
}

// Adds pages to the system's pool for a test, where that is allowed.
class RealPool : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream(kPoolSetting) >> before_;
    const auto pool = huge_page_pool();
    if (!pool) GTEST_SKIP() << pool.error().message();
    if (pool->available() < kWanted && !set(before_ + kWanted))
      GTEST_SKIP() << "the pool has " << pool->available() << " huge pages available of "
                   << pool->total << ", and this user may not reserve more";
    const auto now = huge_page_pool();
    if (now->available() < kWanted) {
      const auto found = now->available();
      (void)set(before_);
      GTEST_SKIP() << "the system has no room for " << kWanted << " huge pages: it found " << found;
    }
  }
  void TearDown() override {
    if (is_changed_) (void)set(before_);
  }
  bool set(std::uint64_t pages) {
    std::ofstream file(kPoolSetting);
    file << pages << std::flush;
    is_changed_ = is_changed_ || file.good();
    return file.good();
  }
  static ArenaOptions options() {
    return {.name = "explicit",
            .data_bytes = kData,
            .leaf_sums = 7,
            .huge_pages = HugePages::kExplicit};
  }
  static void write(SharedArena& arena, int byte) {
    auto lease = arena.try_write_lease({});
    ASSERT_TRUE(lease.has_value()) << lease.error().message();
    ASSERT_TRUE(lease->unprotect().has_value());
    std::memset(lease->data().data(), byte, lease->data().size());
    ASSERT_TRUE(lease->protect(0, kData).has_value());
    std::move(*lease).complete({}, std::vector<WordSum>(7, {.product = 1, .sum = 2}));
  }

  static constexpr std::uint64_t kWanted = 2 * kPages;
  std::uint64_t before_ = 0;
  bool is_changed_ = false;
};

TEST_F(RealPool, AnArenaIsMadeOfItAndSharedAsAnyOther) {
  std::string why;
  auto wanted = options();
  wanted.on_fallback = [&](const Error& error) { why = error.message(); };
  const auto free = huge_page_pool()->available();
  auto arena = SharedArena::create(wanted);
  ASSERT_TRUE(arena.has_value()) << arena.error().message();
  ASSERT_TRUE(arena->is_explicit()) << why;
  EXPECT_EQ(arena->file_bytes(), kPages * kHugePageBytes);
  EXPECT_EQ(wanted.file_bytes(), arena->file_bytes());
  EXPECT_EQ(huge_page_pool()->available(), free - kPages);
  EXPECT_EQ(arena->data().size(), kData);
  for (const int round : {3, 5}) {
    write(*arena, round);
    ASSERT_TRUE(arena->is_protected()) << "changes of protection are refused inside huge pages";
    const UniqueFd shared = std::move(*arena->share());
    struct stat file{};
    ASSERT_EQ(::fstat(shared.get(), &file), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(file.st_blksize), kHugePageBytes);
    EXPECT_EQ(::ftruncate(shared.get(), 0), -1) << "sealed";
    const auto view = ArenaView::open(shared.get());
    ASSERT_TRUE(view.has_value()) << view.error().message();
    EXPECT_EQ(std::to_integer<int>(view->data()[0]), round);
    EXPECT_EQ(std::to_integer<int>(view->data()[kData - 1]), round);
    EXPECT_EQ(view->leaf_sums().size(), 7U);
    EXPECT_EQ(view->leaf_sums()[6], (WordSum{.product = 1, .sum = 2}));
    EXPECT_EQ(arena->try_write_lease({}).error().code(), ErrorCode::kBusy) << "a reader has it";
  }
}

// The memory belongs to the file, so it is free when nobody has it, however a process ends.
TEST_F(RealPool, AKilledReaderLeavesNothing) {
  const auto free = huge_page_pool()->available();
  {
    auto arena = SharedArena::create(options());
    ASSERT_TRUE(arena.has_value() && arena->is_explicit());
    write(*arena, 1);
    const UniqueFd shared = std::move(*arena->share());
    const pid_t child = ::fork();
    if (child == 0) {
      const auto view = ArenaView::open(shared.get());
      ::raise(view ? SIGKILL : SIGTERM);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WTERMSIG(status), SIGKILL) << "the reader could not open it";
    EXPECT_TRUE(arena->try_write_lease({}).has_value());
  }
  EXPECT_EQ(huge_page_pool()->available(), free);
}

// Of the creator itself, at the ends of the data, which fill no whole huge page.
TEST_F(RealPool, AStrayWriteIntoACompleteVersionEndsItsProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the arena is not mapped in a forked child
  const auto stray_write = [](std::uint64_t at) {
    auto arena = SharedArena::create(options());
    if (!arena || !arena->is_explicit()) return;
    write(*arena, 1);
    const_cast<std::byte*>(arena->data().data())[at] = std::byte{2};
  };
  EXPECT_DEATH(stray_write(0), "");
  EXPECT_DEATH(stray_write(kData - 1), "");
}

// One page more than there is.
TEST(HugePages, AnArenaForWhichThePoolHasTooFewIsMadeAllTheSame) {
  const auto pool = huge_page_pool();
  const std::uint64_t too_many = pool ? pool->available() + 1 : 1;
  if (too_many > 64) GTEST_SKIP() << "the pool of this system is large";
  std::string why;
  std::atomic<std::uint64_t> done = 0;
  const auto arena = SharedArena::create({.name = "many",
                                          .data_bytes = too_many * kHugePageBytes,
                                          .huge_pages = HugePages::kExplicit,
                                          .on_fallback = [&](const Error& e) { why = e.message(); },
                                          .done_bytes = &done});
  ASSERT_TRUE(arena.has_value()) << arena.error().message();
  EXPECT_FALSE(arena->is_explicit());
  EXPECT_THAT(why, HasSubstr("arena many"));
  EXPECT_THAT(why, HasSubstr("huge pages"));
  EXPECT_EQ(done, arena->file_bytes());
}

TEST(HugePages, LargeArenasAskForThem) {
  const ArenaOptions small{.data_bytes = limits::kMiB, .huge_pages = HugePages::kAdvise};
  EXPECT_EQ(small.file_bytes(), limits::kMiB + kArenaHeaderBytes);
  const ArenaOptions large{.data_bytes = 64 * limits::kMiB, .huge_pages = HugePages::kAdvise};
  const bool gives = gives_on_request(shared_huge_pages());
  EXPECT_EQ(large.file_bytes(), 64 * limits::kMiB + (gives ? kHugePageBytes : kArenaHeaderBytes));
  const auto arena = SharedArena::create(large);
  ASSERT_TRUE(arena.has_value()) << arena.error().message();
  EXPECT_EQ(arena->file_bytes(), large.file_bytes());
  EXPECT_EQ(arena->data().size(), large.data_bytes);
}

TEST(HugePages, TheirNamesAreThoseOfTheConfiguration) {
  EXPECT_EQ(huge_pages_name(HugePages::kOff), "off");
  EXPECT_EQ(huge_pages_name(HugePages::kAdvise), "advise");
  EXPECT_EQ(huge_pages_name(HugePages::kExplicit), "explicit");
}

}  // namespace
}  // namespace wsync
