// The thread that writes the log: whoever does not read it holds nobody up.
#include "shared/base/log_writer.h"

#include <array>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/unique_fd.h"

namespace wsync {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kForever{600'000};

class LogWriterTest : public testing::Test {
 protected:
  LogWriterTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read_.reset(ends[0]);
    write_.reset(ends[1]);
    EXPECT_GT(::fcntl(write_.get(), F_SETPIPE_SZ, 4096), 0);
    writer_ = new LogWriter(write_.get());
  }

  bool put(const std::string& line) {
    const std::lock_guard lock(writer_->mutex());
    return writer_->put(line);
  }
  bool flush(milliseconds limit) {
    std::unique_lock lock(writer_->mutex());
    return writer_->flush(lock, limit);
  }
  // The next bytes of the pipe, so many.
  std::string read(std::size_t bytes) {
    std::string text(bytes, '\0');
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t n = ::read(read_.get(), text.data() + done, bytes - done);
      if (n <= 0) return text.substr(0, done);
      done += static_cast<std::size_t>(n);
    }
    return text;
  }

  UniqueFd read_;
  UniqueFd write_;
  LogWriter* writer_ = nullptr;  // never destroyed, as in a program
};

TEST_F(LogWriterTest, LinesComeInTheirOrder) {
  EXPECT_TRUE(put("one\n"));
  EXPECT_TRUE(put("two\n"));
  EXPECT_TRUE(flush(kForever));
  EXPECT_EQ(read(8), "one\ntwo\n");
}

TEST_F(LogWriterTest, WithoutAReaderLinesAreDroppedAndNobodyWaits) {
  // The thread waits in write() with a half of this.
  const std::string first(2 * 4096, 'f');
  ASSERT_TRUE(put(first));
  for (int bytes = 0; bytes < 4096;) ASSERT_EQ(::ioctl(read_.get(), FIONREAD, &bytes), 0);
  const std::string line(1024, 'x');
  std::size_t taken = 0;
  while (put(line)) ++taken;
  EXPECT_EQ(taken, LogWriter::kQueueBytes / line.size());
  EXPECT_FALSE(flush(milliseconds(1)));
  EXPECT_FALSE(put("lost\n"));
  // A reader comes back: what was taken arrives whole, and there is room again.
  EXPECT_EQ(read(first.size()), first);
  for (std::size_t i = 0; i < taken; ++i) ASSERT_EQ(read(line.size()), line) << i;
  EXPECT_TRUE(flush(kForever));
  EXPECT_TRUE(put("after\n"));
  EXPECT_EQ(read(6), "after\n");
}

TEST_F(LogWriterTest, AFullPipeThatIsNonBlockingIsWaitedFor) {
  ASSERT_EQ(::fcntl(write_.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string line(3 * 4096, 'x');
  EXPECT_TRUE(put(line));
  EXPECT_EQ(read(line.size()), line);
  EXPECT_TRUE(flush(kForever));
}

TEST_F(LogWriterTest, AClosedPipeLosesTheLinesAndEndsNobody) {
  read_.reset();
  EXPECT_TRUE(put("nobody reads this\n"));
  EXPECT_TRUE(flush(kForever));
}

// The parent's thread waits in write() with a line, and another line is queued.
TEST_F(LogWriterTest, AForkedChildWritesItsOwnLinesOnly) {
  const std::string line(4 * 4096, 'p');
  ASSERT_TRUE(put(line));
  ASSERT_TRUE(put("parent\n"));
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  writer_->mutex().lock();
  const pid_t child = ::fork();
  writer_->mutex().unlock();
  if (child == 0) {
    ::dup2(ends[1], write_.get());
    const bool done = flush(milliseconds(0)) && put("child\n") && flush(kForever);
    ::_exit(done ? 0 : 1);
  }
  const UniqueFd childs(ends[0]);
  ::close(ends[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::array<char, 64> text{};
  EXPECT_EQ(::read(childs.get(), text.data(), text.size()), 6);
  EXPECT_STREQ(text.data(), "child\n");
  EXPECT_EQ(read(line.size() + 7), line + "parent\n");
}

}  // namespace
}  // namespace wsync
