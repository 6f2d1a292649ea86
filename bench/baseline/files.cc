#include "bench/baseline/files.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "bench/harness/directory.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t kReadBytes = 4 * limits::kMiB;  // bytes per call

struct ReadFile {
  UniqueFd fd;
  Digest digest;
  bool forget = false;  // drop the page cache of the file before each reading
};

Result<> write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(kReadBytes, bytes.size()));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail_errno(path, written == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<nanoseconds> read_all(Workbench& bench, const ReadFile& file) {
  if (file.forget) {
    if (const int error = ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0)
      return fail_errno("posix_fadvise", error);
  }
  const auto to = bench.target();
  const TimePoint begin = now();
  for (std::size_t at = 0; at < to.size();) {
    const ssize_t got = ::pread(file.fd.get(), to.data() + at, std::min(kReadBytes, to.size() - at),
                                static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("read", errno);
    if (got == 0)
      return fail(ErrorCode::kIo, fmt::format("the file ends at byte {} of {}", at, to.size()));
    at += static_cast<std::size_t>(got);
  }
  const nanoseconds taken = now() - begin;
  if (digest_of(to) != file.digest)
    return fail(ErrorCode::kDigestMismatch,
                "the bytes that were read differ from those that were written");
  return taken;
}

Result<std::shared_ptr<ReadFile>> make_disk_file(const Workbench& bench,
                                                 const std::string& directory) {
  const std::string path = directory + "/read";
  const UniqueFd writer(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!writer.valid()) return fail_errno(path, errno);
  WSYNC_TRY(write_all(writer.get(), bench.source(), path));
  if (::fsync(writer.get()) != 0) return fail_errno(path, errno);
  auto file = std::make_shared<ReadFile>();
  file->digest = digest_of(bench.source());
  file->fd.reset(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (file->fd.valid()) return file;
  if (errno != EINVAL) return fail_errno(path, errno);
  file->forget = true;
  file->fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file->fd.valid()) return fail_errno(path, errno);
  return file;
}

}  // namespace

Result<> add_file_rows(Workbench& bench, const std::string& directory, BaselineRows& rows) {
  const auto add = [&](const char* name, std::shared_ptr<ReadFile> file) {
    rows.rows.push_back({.name = name, .variant = "", .measure = [&bench, file = std::move(file)] {
                           return read_all(bench, *file);
                         }});
  };
  if (is_in_memory(directory)) {
    rows.notes.push_back(
        fmt::format("disk read is not measured: {} is on a file system in memory; choose a "
                    "directory on a disk with --directory",
                    directory));
  } else {
    auto disk = WSYNC_TRY(make_disk_file(bench, directory));
    rows.parameters["disk_read"] = disk->forget ? "fadvise" : "O_DIRECT";
    if (disk->forget)
      rows.notes.push_back(
          fmt::format("disk read: the file system of {} does not support O_DIRECT. The kernel was "
                      "asked to drop the file from the page cache before each read, but it may "
                      "ignore this request. The reads may therefore come from the page cache",
                      directory));
    add("disk read", std::move(disk));
  }
  auto memory = std::make_shared<ReadFile>();
  auto fd = WSYNC_TRY(make_memory_file(bench.bytes()));
  memory->fd = std::move(fd);
  memory->digest = digest_of(bench.source());
  WSYNC_TRY(write_all(memory->fd.get(), bench.source(), "a file in memory"));
  add("tmpfs read", std::move(memory));
  return {};
}

}  // namespace wsync::bench
