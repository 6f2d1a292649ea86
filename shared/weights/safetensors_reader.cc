#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"
#include "shared/weights/safetensors.h"

namespace wsync {

Result<SafetensorsFile::Identity> SafetensorsFile::identity_of(int fd, const std::string& path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return fail_errno(path, errno);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::kInvalidInput, path + ": not a regular file; expected safetensors");
  return Identity{.bytes = static_cast<std::uint64_t>(status.st_size),
                  .modified_s = status.st_mtim.tv_sec,
                  .modified_ns = status.st_mtim.tv_nsec};
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path, SafetensorsOptions options) {
  SafetensorsFile file;
  file.path_ = path;
  // O_NONBLOCK, so that open() does not wait on a FIFO, which is refused below.
  file.fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd_.valid()) return fail_errno("cannot open " + path, errno);
  auto identity = WSYNC_TRY(identity_of(file.fd_.get(), path));
  file.identity_ = identity;
  if (options.access == SafetensorsAccess::kMap) file.map();
  WSYNC_TRY(file.read_header(options.rules));
  WSYNC_TRY(file.check_unchanged());
  return file;
}

Result<> SafetensorsFile::read_header(SafetensorsRules rules) {
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::kInvalidInput, fmt::format("{}: {}", path_, what));
  };
  if (identity_.bytes < 8)
    return bad(
        fmt::format("the file has {} bytes; a safetensors file has at least 8", identity_.bytes));
  std::array<std::byte, 8> length_bytes{};
  WSYNC_TRY(copy_with_pread(0, length_bytes));
  std::uint64_t length = 0;
  std::memcpy(&length, length_bytes.data(), sizeof length);
  if (length > limits::kSafetensorsHeaderBytes)
    return bad(fmt::format("the header length is {}; at most {} are allowed", length,
                           limits::kSafetensorsHeaderBytes));
  if (length > identity_.bytes - 8)
    return bad(fmt::format("the header length is {}; the file has only {} bytes", length,
                           identity_.bytes));
  std::vector<std::byte> json(length);
  WSYNC_TRY(copy_with_pread(8, json));
  auto header = parse_safetensors_header(json, identity_.bytes, rules);
  if (!header) return fail(header.error().with_context(path_));
  header_ = std::move(*header);
  return {};
}

Result<> SafetensorsFile::check_unchanged() const {
  const auto now = WSYNC_TRY(identity_of(fd_.get(), path_));
  if (now == identity_) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: the file changed while it was read ({} bytes at opening, {} now); "
                          "write a new file and rename it instead",
                          path_, identity_.bytes, now.bytes));
}

void SafetensorsFile::map() {
  if (identity_.bytes == 0) return;
  void* const at = ::mmap(nullptr, identity_.bytes, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) return;  // some file systems have no mappings; pread is used instead
  mapping_ = static_cast<const std::byte*>(at);
}

void SafetensorsFile::unmap() noexcept {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), identity_.bytes);
  mapping_ = nullptr;
}

SafetensorsFile::~SafetensorsFile() { unmap(); }

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::move(other.fd_)),
      identity_(other.identity_),
      header_(std::move(other.header_)),
      mapping_(std::exchange(other.mapping_, nullptr)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  path_ = std::move(other.path_);
  fd_ = std::move(other.fd_);
  identity_ = other.identity_;
  header_ = std::move(other.header_);
  mapping_ = std::exchange(other.mapping_, nullptr);
  return *this;
}

bool SafetensorsFile::copy_from_map(std::uint64_t at, std::span<std::byte> out) const {
  if (mapping_ == nullptr) return false;
  while (!out.empty()) {
    const iovec to{.iov_base = out.data(), .iov_len = out.size()};
    const iovec from{.iov_base = const_cast<std::byte*>(mapping_) + at, .iov_len = out.size()};
    const ssize_t n = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
    // EFAULT means that a page has disappeared. pread then reports the end of the file.
    if (n <= 0) return false;
    at += static_cast<std::uint64_t>(n);
    out = out.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

Result<> SafetensorsFile::copy_with_pread(std::uint64_t at, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(fmt::format("cannot read {} at byte {}", path_, at), errno);
    if (n == 0)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: the file was truncated while it was read: it ends at byte {}, "
                              "{} bytes at opening",
                              path_, at, identity_.bytes));
    at += static_cast<std::uint64_t>(n);
    out = out.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<> SafetensorsFile::read(std::size_t tensor, std::uint64_t offset,
                               std::span<std::byte> out) const {
  if (tensor >= header_.tensors.size())
    return fail(ErrorCode::kInvalidInput, fmt::format("{}: no tensor {}; the file has {}", path_,
                                                      tensor, header_.tensors.size()));
  const SafetensorsEntry& entry = header_.tensors[tensor];
  const std::uint64_t bytes = entry.end - entry.begin;
  if (offset > bytes || out.size() > bytes - offset)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: tensor {} has {} bytes; requested {} bytes at offset {}", path_,
                            quote_text(entry.info.name), bytes, out.size(), offset));
  const std::uint64_t at = header_.data_begin + entry.begin + offset;
  if (!copy_from_map(at, out)) WSYNC_TRY(copy_with_pread(at, out));
  return check_unchanged();
}

}  // namespace wsync
