#include "shared/base/record_file.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "shared/base/durable_file.h"

namespace {

int failing_flushes = 0;      // of data, from now on
bool data_is_flushed = true;  // false: at once, without a disk

}  // namespace

// In the place of the C library's, for this whole test program.
extern "C" int fdatasync(int fd) {
  if (failing_flushes > 0) {
    --failing_flushes;
    errno = EIO;
    return -1;
  }
  return data_is_flushed ? static_cast<int>(::syscall(SYS_fdatasync, fd)) : 0;
}

namespace wsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint64_t kRecordMax = 100'000;

class RecordFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "wsync_record_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ / "record";
  }
  void TearDown() override {
    failing_flushes = 0;
    data_is_flushed = true;
    std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] Result<> write(const std::string& text, Claim how = Claim::kIfFree) const {
    return write_record(path_, std::as_bytes(std::span(text)), how);
  }
  [[nodiscard]] std::string content() const {
    const auto bytes = read_record(path_, kRecordMax);
    if (!bytes) return "no record: " + bytes.error().message();
    return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
      found.push_back(entry.path().filename());
    return found;
  }
  [[nodiscard]] std::uint64_t inode() const {
    struct stat info{};
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    return info.st_ino;
  }
  void store(const Bytes& file) const {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()),
               static_cast<std::streamsize>(file.size()));
  }

  std::filesystem::path directory_;
  std::filesystem::path path_;
};

TEST_F(RecordFile, HoldsTheNewestRecordInOneFileThatIsWrittenInPlace) {
  EXPECT_EQ(read_record(path_, kRecordMax).error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(write("one").has_value());
  const auto file = inode();
  for (const std::string text : {"two", "three", "", "a longer one", "five"}) {
    ASSERT_TRUE(write(text).has_value());
    EXPECT_EQ(content(), text);
    EXPECT_EQ(inode(), file);
  }
  EXPECT_THAT(names(), ElementsAre("record"));
}

TEST_F(RecordFile, ARecordThatNeedsMoreRoomGetsANewFile) {
  ASSERT_TRUE(write("short").has_value());
  const auto file = inode();
  const std::string longer(50'000, 'x');
  ASSERT_TRUE(write(longer).has_value());
  EXPECT_EQ(content(), longer);
  EXPECT_NE(inode(), file);
  ASSERT_TRUE(write("short again").has_value());
  EXPECT_EQ(content(), "short again");
}

TEST_F(RecordFile, ARecordOfAReleaseBeforeIsReadAndReplaced) {
  const std::string before = "a record as a whole file";
  ASSERT_TRUE(write_durably(path_, std::as_bytes(std::span(before))).has_value());
  EXPECT_EQ(content(), before);
  ASSERT_TRUE(write("new").has_value());
  EXPECT_EQ(content(), "new");
  ASSERT_TRUE(write("newer").has_value());
  EXPECT_EQ(content(), "newer");
}

TEST_F(RecordFile, AWriteThatDoesNotEndLeavesTheRecordBefore) {
  ASSERT_TRUE(write("first").has_value());
  ASSERT_TRUE(write("second").has_value());
  const Bytes before = read_small_file(path_, kRecordMax).value();
  ASSERT_TRUE(write("third!").has_value());
  const Bytes after = read_small_file(path_, kRecordMax).value();
  ASSERT_EQ(before.size(), after.size());
  // The power may fail when any part of the new bytes is on the disk.
  std::size_t mixtures = 0;
  for (std::size_t cut = 0; cut <= before.size(); ++cut) {
    Bytes mixed = after;
    std::copy(before.begin() + static_cast<std::ptrdiff_t>(cut), before.end(),
              mixed.begin() + static_cast<std::ptrdiff_t>(cut));
    if (mixed == before || mixed == after) continue;
    ++mixtures;
    const auto record = record_in(mixed);
    ASSERT_EQ(std::string(reinterpret_cast<const char*>(record.data()), record.size()), "second")
        << "after a write that ended at byte " << cut;
    store(mixed);
    ASSERT_TRUE(write("after the restart").has_value());
    ASSERT_EQ(content(), "after the restart");
  }
  EXPECT_GT(mixtures, 20U);
}

TEST_F(RecordFile, ADamagedRecordIsNeverTakenForAWholeOne) {
  ASSERT_TRUE(write("the only one").has_value());
  const Bytes whole = read_small_file(path_, kRecordMax).value();
  for (std::size_t i = 0; i < 40 + std::string("the only one").size(); ++i) {
    Bytes bytes = whole;
    bytes[i] ^= std::byte{4};
    const auto record = record_in(bytes);
    EXPECT_EQ(record.size(), bytes.size()) << i;  // all of it, which nobody can decode
  }
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_LE(record_in(std::span(whole).first(size)).size(), size);
}

TEST_F(RecordFile, AnErrorOfTheDiskLeavesTheRecordBefore) {
  ASSERT_TRUE(write("first").has_value());
  ASSERT_TRUE(write("second").has_value());
  failing_flushes = 1;
  const auto failed = write("third");
  ASSERT_FALSE(failed.has_value());
  EXPECT_THAT(failed.error().message(), HasSubstr("fdatasync " + path_.string()));
  EXPECT_EQ(content(), "second");
  failing_flushes = 2;  // nor can it be taken back
  const auto twice = write("third");
  ASSERT_FALSE(twice.has_value());
  failing_flushes = 0;
  ASSERT_TRUE(write("fourth").has_value());
  EXPECT_EQ(content(), "fourth");
}

TEST_F(RecordFile, ADiskWithoutRoomStopsTheFirstRecordOnly) {
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &usual), 0);
  auto* const on_signal = std::signal(SIGXFSZ, SIG_IGN);
  const auto limited_write = [&](const std::string& text, rlim_t limit) {
    const rlimit limits{.rlim_cur = limit, .rlim_max = usual.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limits), 0);
    const auto written = write(text);
    ::setrlimit(RLIMIT_FSIZE, &usual);
    return written;
  };
  EXPECT_FALSE(limited_write("one", 100).has_value());
  EXPECT_THAT(names(), IsEmpty());
  ASSERT_TRUE(write("one").has_value());
  ASSERT_TRUE(limited_write("two", 8192).has_value());  // as many bytes as the file has
  EXPECT_EQ(content(), "two");
  EXPECT_FALSE(limited_write("three", 4096 + 10).has_value() &&
               limited_write("four", 4096 + 10).has_value());  // one of them is in the second half
  EXPECT_THAT(content(), ::testing::AnyOf("two", "three"));
  EXPECT_THAT(names(), ElementsAre("record"));
  std::signal(SIGXFSZ, on_signal);
}

TEST_F(RecordFile, AWriterThatIsTakenOverNeverWritesIntoTheNewFile) {
  ASSERT_TRUE(write("old").has_value());
  ASSERT_TRUE(write("older").has_value());
  bool is_taken_over = false;
  const auto late = write_record(path_, [&]() -> Result<Bytes> {
    // It stands still here, while another process takes the file over.
    is_taken_over = write("claimed", Claim::kTakeOver).has_value();
    const std::string text = "late";
    const auto bytes = std::as_bytes(std::span(text));
    return Bytes(bytes.begin(), bytes.end());
  });
  EXPECT_TRUE(is_taken_over);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(content(), "claimed");
  ASSERT_TRUE(write("next").has_value());
  EXPECT_EQ(content(), "next");
  EXPECT_THAT(names(), ElementsAre("record"));
}

TEST_F(RecordFile, ReadersAndTwoWritersNeverMeetAMixture) {
  constexpr int kWrites = 300;
  data_is_flushed = false;  // so that they meet as often as possible
  const std::string contents[] = {std::string(6'000, 'a'), std::string(9, 'b')};
  ASSERT_TRUE(write(contents[0]).has_value());
  std::atomic<int> at_work = 2;
  std::vector<std::string> failures[2];
  std::vector<std::jthread> writers;
  for (const int writer : {0, 1})
    writers.emplace_back([&, writer] {
      for (int i = 0; i < kWrites; ++i)
        if (const auto written = write(contents[writer]); !written)
          failures[writer].push_back(written.error().message());
      --at_work;
    });
  std::vector<std::string> strange;
  while (at_work > 0) {
    const std::string found = content();
    if (found != contents[0] && found != contents[1]) strange.push_back(found.substr(0, 60));
  }
  writers.clear();
  EXPECT_THAT(strange, IsEmpty());
  for (const auto& failed : failures) EXPECT_THAT(failed, IsEmpty());
}

}  // namespace
}  // namespace wsync
