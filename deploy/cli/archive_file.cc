#include "deploy/cli/archive_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::cli {
namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr std::size_t kBlock = 512;
constexpr std::size_t kNameBytes = 100;
constexpr std::size_t kPrefixBytes = 155;
constexpr std::uint64_t kSizeEnd = std::uint64_t{1} << 33U;  // 11 octal digits

struct CloseGzip {
  void operator()(gzFile_s* file) const noexcept { gzclose(file); }
};

// A header in POSIX.1-1988's `ustar` format (IEEE Std 1003.1, `pax`, "ustar Interchange Format"): a
// block of text fields with numbers in octal. The checksum is the sum of all bytes, with the
// checksum field itself counted as blanks.
using Header = std::array<char, kBlock>;

void put(Header& header, std::size_t offset, std::string_view text) {
  std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(offset));
}

// Returns the position of the `/` that splits a long name into the fields `prefix` and `name`, or 0
// if the whole name fits into `name`. Returns std::nullopt if the name does not fit at all.
std::optional<std::size_t> parting(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name.size() <= kNameBytes) return 0;
  const std::size_t slash = name.rfind('/', kPrefixBytes);
  const bool fits = slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
                    name.size() - slash - 1 <= kNameBytes;
  return fits ? std::optional(slash) : std::nullopt;
}

Header header_of(const std::string& name, std::size_t parted, std::uint64_t bytes,
                 std::time_t modified) {
  Header header{};
  put(header, 0, std::string_view(name).substr(parted == 0 ? 0 : parted + 1));
  put(header, 345, std::string_view(name).substr(0, parted));
  put(header, 100, fmt::format("{:07o}", kOwnerOnly));
  put(header, 108, "0000000");  // user and group: not recorded
  put(header, 116, "0000000");
  put(header, 124, fmt::format("{:011o}", bytes));
  put(header, 136, fmt::format("{:011o}", std::max<std::time_t>(modified, 0)));
  put(header, 148, "        ");
  put(header, 156, "0");  // regular file
  put(header, 257,
      std::string_view("ustar\0"
                       "00",
                       8));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(header, 148, fmt::format("{:06o}", sum));
  header[154] = '\0';
  return header;
}

}  // namespace

struct ArchiveFile::State {
  std::string path;
  UniqueFd fd;  // second descriptor besides zlib's, to read the size of the file
  std::unique_ptr<gzFile_s, CloseGzip> writer;
  bool finished = false;

  [[nodiscard]] tl::unexpected<Error> failure(const std::string& what) const {
    const int number = errno;
    int code = Z_OK;
    const char* why = gzerror(writer.get(), &code);
    if (code == Z_ERRNO) return fail_errno(fmt::format("{}: {}", path, what), number);
    return fail(ErrorCode::kIo, fmt::format("{}: {}: {}", path, what, why));
  }
  [[nodiscard]] Result<> write(std::span<const std::byte> bytes, const std::string& what) const {
    constexpr std::size_t kAtOnce = std::size_t{1} << 20U;
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kAtOnce));
      if (gzwrite(writer.get(), piece.data(), static_cast<unsigned>(piece.size())) == 0)
        return failure(what);
      bytes = bytes.subspan(piece.size());
    }
    return {};
  }
};

ArchiveFile::ArchiveFile(std::unique_ptr<State> state) : state_(std::move(state)) {}

ArchiveFile::~ArchiveFile() {
  state_->writer.reset();
  if (!state_->finished) ::unlink(state_->path.c_str());
}

Result<std::unique_ptr<ArchiveFile>> ArchiveFile::create(const std::string& path) {
  if (!path.ends_with(".tar.gz") && !path.ends_with(".tgz"))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected a name that ends in .tar.gz or .tgz", path));
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (!fd.valid() && errno == EEXIST)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} already exists; name another file with -o", path));
  if (!fd.valid()) return fail_errno(path, errno);
  auto state = std::make_unique<State>();
  state->path = path;
  state->fd = std::move(fd);
  auto file = std::unique_ptr<ArchiveFile>(new ArchiveFile(std::move(state)));
  const int own = ::fcntl(file->state_->fd.get(), F_DUPFD_CLOEXEC, 0);
  if (own < 0) return fail_errno(path, errno);
  file->state_->writer.reset(gzdopen(own, "wb"));
  if (file->state_->writer == nullptr) {
    ::close(own);
    return fail(ErrorCode::kResourceExhausted, "not enough memory to write a compressed archive");
  }
  return file;
}

Result<> ArchiveFile::add(const std::string& name, std::span<const std::byte> bytes,
                          std::time_t modified) {
  const std::optional<std::size_t> parted = parting(name);
  if (!parted)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected a file name of 1 to {} bytes, in a folder name of at "
                            "most {} bytes, found '{}'",
                            state_->path, kNameBytes, kPrefixBytes, name));
  if (bytes.size() >= kSizeEnd)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{}: {} has {} bytes; expected less than {} bytes for a file in the archive",
                    state_->path, name, bytes.size(), kSizeEnd));
  const Header header = header_of(name, *parted, bytes.size(), modified);
  WSYNC_TRY(state_->write(std::as_bytes(std::span(header)), name + " cannot be added"));
  WSYNC_TRY(state_->write(bytes, name + " cannot be written"));
  const std::array<std::byte, kBlock> zeros{};
  const std::size_t rest = bytes.size() % kBlock;
  return state_->write(std::span(zeros).first(rest == 0 ? 0 : kBlock - rest),
                       name + " cannot be written");
}

Result<std::uint64_t> ArchiveFile::finish() {
  const std::array<std::byte, 2 * kBlock> end{};
  WSYNC_TRY(state_->write(end, "the end of the archive cannot be written"));
  errno = 0;
  if (gzclose(state_->writer.release()) != Z_OK)
    return fail_errno(state_->path + ": the archive cannot be closed", errno == 0 ? EIO : errno);
  struct stat status{};
  if (::fstat(state_->fd.get(), &status) != 0) return fail_errno(state_->path, errno);
  state_->finished = true;
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace wsync::cli
