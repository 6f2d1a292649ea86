#include "deploy/cli/bundle_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::cli {
namespace {

constexpr std::size_t kNameMax = 80;  // ustar allows 100 after the last '/'
constexpr std::size_t kListedMax = 1000;

struct FileEnd {
  std::string bytes;
  std::uint64_t left_out = 0;  // bytes before them
};

std::string errno_text(int number) { return std::strerror(number); }

// Returns the last `max` bytes of a regular file, or the reason why it cannot be read.
Result<FileEnd> read_end(const std::string& path, std::uint64_t max) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail(ErrorCode::kIo, errno_text(errno));
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return fail(ErrorCode::kIo, errno_text(errno));
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kIo, "not a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  FileEnd end{.bytes = {}, .left_out = size - std::min(size, max)};
  end.bytes.resize(static_cast<std::size_t>(size - end.left_out));
  std::size_t got = 0;
  while (got < end.bytes.size()) {
    const ssize_t n = ::pread(fd.get(), end.bytes.data() + got, end.bytes.size() - got,
                              static_cast<off_t>(end.left_out + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorCode::kIo, errno_text(errno));
    if (n == 0) break;  // the file was truncated meanwhile
    got += static_cast<std::size_t>(n);
  }
  end.bytes.resize(got);
  return end;
}

std::string_view kind_of(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return "file";
  if (S_ISDIR(status.st_mode)) return "directory";
  if (S_ISSOCK(status.st_mode)) return "socket";
  if (S_ISLNK(status.st_mode)) return "link";
  return "other";
}

}  // namespace

std::string file_name_of(std::string_view text) {
  std::string name;
  for (const char c : text.substr(0, kNameMax)) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '_';
    name += plain ? c : '_';
  }
  return name.empty() || name == "." || name == ".." ? "_" : name;
}

BundleFiles::BundleFiles(ArchiveFile& archive, std::string folder)
    : archive_(archive), folder_(std::move(folder)) {}

Result<> BundleFiles::add(const std::string& name, std::string_view bytes, const std::string& from,
                          std::uint64_t left_out) {
  WSYNC_TRY(
      archive_.add(folder_ + "/" + name, std::as_bytes(std::span(bytes)), std::time(nullptr)));
  files_.push_back({{"name", name}, {"bytes", bytes.size()}, {"from", from}});
  if (left_out > 0) files_.back()["bytes_left_out_before"] = left_out;
  return {};
}

Result<> BundleFiles::add_text(const std::string& name, std::string_view text,
                               const std::string& from) {
  return add(name, text, from, 0);
}

Result<> BundleFiles::add_json(const std::string& name, const nlohmann::json& object,
                               const std::string& from) {
  return add(name, object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n",
             from, 0);
}

Result<> BundleFiles::add_file(const std::string& name, const std::string& path, std::uint64_t max,
                               TooLong rule) {
  const Result<FileEnd> end = read_end(path, rule == TooLong::kLeaveOut ? max + 1 : max);
  if (!end) {
    missing(path, end.error().message());
    return {};
  }
  if (rule == TooLong::kLeaveOut && end->bytes.size() > max) {
    missing(path, fmt::format("the file has {} bytes; a bundle accepts at most {}",
                              end->left_out + end->bytes.size(), max));
    return {};
  }
  return add(name, end->bytes, path, end->left_out);
}

Result<> BundleFiles::add_listing(const std::string& name, const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    if (names.size() == kListedMax) break;
    names.push_back(it->path().filename().string());
  }
  if (error) {
    missing(directory, error.message());
    return {};
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& entry : names) {
    struct stat status{};
    if (::lstat((directory + "/" + entry).c_str(), &status) != 0) continue;  // removed meanwhile
    text += fmt::format("{:<9} {:04o} {:>12} bytes  {:>8} s old  {}\n", kind_of(status),
                        status.st_mode & 07777U, status.st_size,
                        std::time(nullptr) - status.st_mtime, entry);
  }
  if (names.size() == kListedMax)
    text += fmt::format("(only the first {} entries that were found)\n", kListedMax);
  return add(name, text, directory, 0);
}

void BundleFiles::missing(const std::string& what, const std::string& why) {
  missing_.push_back({{"what", what}, {"why", why}});
}

Result<> BundleFiles::finish(nlohmann::json facts) {
  facts["files"] = files_;
  facts["missing"] = missing_;
  const std::string text =
      facts.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return archive_.add(folder_ + "/manifest.json", std::as_bytes(std::span(text)),
                      std::time(nullptr));
}

}  // namespace wsync::cli
