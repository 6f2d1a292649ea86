// What the kernel says of this process.
#include "bench/harness/process_usage.h"

#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base/unique_fd.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

std::uint64_t here() {
  const std::array<pid_t, 1> pids{::getpid()};
  const auto bytes = memfd_bytes_of(pids);
  EXPECT_TRUE(bytes) << bytes.error().message();
  return bytes.value_or(0);
}

TEST(MemfdBytes, CountsEachFileOnceAsLongAsItIsOpenOrMapped) {
  const std::uint64_t before = here();
  UniqueFd fd(::memfd_create("wsync-usage-test", MFD_CLOEXEC));
  ASSERT_TRUE(fd.valid());
  ASSERT_EQ(::ftruncate(fd.get(), limits::kMiB), 0);
  EXPECT_EQ(here(), before) << "nothing of it is allocated";
  const auto map = [&] {
    return ::mmap(nullptr, limits::kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  };
  void* const first = map();
  void* const second = map();
  ASSERT_NE(first, MAP_FAILED);
  ASSERT_NE(second, MAP_FAILED);
  std::memset(first, 1, limits::kMiB / 2);
  EXPECT_EQ(here(), before + limits::kMiB / 2);
  const std::array<pid_t, 2> twice{::getpid(), ::getpid()};
  EXPECT_EQ(memfd_bytes_of(twice).value(), before + limits::kMiB / 2);
  fd = UniqueFd();
  EXPECT_EQ(here(), before + limits::kMiB) << "its size, because only mappings are left";
  ASSERT_EQ(::munmap(second, limits::kMiB), 0);
  EXPECT_EQ(here(), before + limits::kMiB);
  ASSERT_EQ(::munmap(first, limits::kMiB), 0);
  EXPECT_EQ(here(), before);
}

TEST(MemfdBytes, AProcessThatHasEndedIsNamed) {
  const std::array<pid_t, 1> pids{999'999'999};
  const auto bytes = memfd_bytes_of(pids);
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code(), ErrorCode::kIo);
  EXPECT_NE(bytes.error().message().find("process 999999999"), std::string::npos)
      << bytes.error().message();
}

}  // namespace
}  // namespace wsync::bench
