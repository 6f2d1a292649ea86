#include "shared/base/durable_file.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/base/unix_socket.h"

namespace wsync {
namespace {

// Much longer than a write to a working disk takes, so that only a writer that hangs is given up.
constexpr std::chrono::seconds kTurn{30};
constexpr timespec kBetweenTries{.tv_sec = 0, .tv_nsec = 1'000'000};

Result<> write_all(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("write " + path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  if (::fsync(fd) != 0) return fail_errno("fsync " + path, errno);
  return {};
}

Result<> rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  return fail_errno("rename " + from + " to " + to, errno);
}

Result<> write_temporary(const std::string& path, std::span<const std::byte> bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return fail_errno("open " + path, errno);
  return write_all(fd.get(), path, bytes);
}

// Replaces `path` by `fresh`. `old` keeps the previous content until the directory is flushed, so
// that it can be restored if the flush fails.
Result<> replace(int directory, const std::string& path, const std::string& fresh,
                 const std::string& old) {
  ::unlink(old.c_str());  // left by a process that was killed here
  const bool is_first = ::link(path.c_str(), old.c_str()) != 0 && errno == ENOENT;
  Result<> done = rename_file(fresh, path);
  if (done && ::fsync(directory) != 0) {
    done = fail_errno("fsync the directory of " + path, errno);
    if (is_first)
      ::unlink(path.c_str());
    else if (const auto back = rename_file(old, path); !back)
      done = fail(done.error().with_context(back.error().message() + "; the first error was"));
  }
  ::unlink(old.c_str());
  return done;
}

}  // namespace

// Serialises the writers: the names of the temporary files are fixed, so two writers would rename
// each other's file.
Result<LockFile> take_turn(const std::filesystem::path& path, Claim how) {
  if (how == Claim::kTakeOver) return LockFile::seize(path.string() + ".lock");
  const TimePoint deadline = now() + kTurn;
  for (;;) {
    auto lock = LockFile::acquire(path.string() + ".lock", {}, LockFile::Naming::kIfRoom);
    if (lock || lock.error().code() != ErrorCode::kBusy) return lock;
    if (now() >= deadline)
      return fail(lock.error().with_context(fmt::format(
          "write {}: waited {} s for another writer to finish", path.string(), kTurn.count())));
    ::nanosleep(&kBetweenTries, nullptr);
  }
}

Result<> write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes,
                       Claim how) {
  return write_durably(
      path, [bytes]() -> Result<Bytes> { return Bytes(bytes.begin(), bytes.end()); }, how);
}

Result<> write_durably(const std::filesystem::path& path,
                       const std::function<Result<Bytes>()>& content, Claim how) {
  const auto turn = WSYNC_TRY(take_turn(path, how));
  return replace_durably(path, WSYNC_TRY(content()), turn, how);
}

Result<> replace_durably(const std::filesystem::path& path, std::span<const std::byte> bytes,
                         const LockFile& turn, Claim how) {
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return fail_errno("open " + parent, errno);
  // A writer whose lock was taken over may still write to `<path>.new`.
  const std::string fresh =
      path.string() + (how == Claim::kTakeOver ? fmt::format(".new.{}", ::getpid()) : ".new");
  Result<> written = write_temporary(fresh, bytes);
  if (written && !turn.is_ours())
    written = fail(ErrorCode::kBusy,
                   fmt::format("write {}: another writer has taken over the file", path.string()));
  if (written) written = replace(directory.get(), path.string(), fresh, path.string() + ".old");
  if (!written) ::unlink(fresh.c_str());
  return written;
}

Result<Bytes> read_small_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno("open " + path.string(), errno);
  return read_to_end(fd.get(), path.string(), max_bytes);
}

Result<Bytes> read_to_end(int fd, const std::string& name, std::uint64_t max_bytes) {
  Bytes bytes;
  std::byte buffer[4096];
  while (true) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("read " + name, errno);
    if (n == 0) return bytes;
    if (bytes.size() + static_cast<std::size_t>(n) > max_bytes)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} has more than {} bytes", name, max_bytes));
    bytes.insert(bytes.end(), buffer, buffer + n);
  }
}

}  // namespace wsync
