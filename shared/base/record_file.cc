#include "shared/base/record_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <string_view>
#include <unistd.h>

#include "shared/base/digest.h"
#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/unique_fd.h"

namespace wsync {
namespace {

constexpr std::string_view kMagic = "WSRECORD";
constexpr std::size_t kHeadBytes = 24;  // what the digest covers besides the record
constexpr std::size_t kPrefixBytes = kHeadBytes + sizeof(Digest);
constexpr std::size_t kBlockBytes = 4096;  // halves share no block of the disk
constexpr std::uint64_t kFileBytesMax = 16 * limits::kMiB;
constexpr int kReads = 3;

Bytes half_of(std::uint64_t number, std::span<const std::byte> record) {
  ByteWriter writer;
  writer.put_raw(std::as_bytes(std::span(kMagic)));
  writer.put(number);
  writer.put(std::uint64_t{record.size()});
  Digester digester;
  digester.update(writer.buffer());
  digester.update(record);
  const Digest digest = digester.finish();
  writer.put(digest.low);
  writer.put(digest.high);
  writer.put_raw(record);
  return std::move(writer).take();
}

struct Half {
  std::uint64_t number = 0;
  std::span<const std::byte> record;
};

std::optional<Half> read_half(std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefixBytes ||
      !std::ranges::equal(bytes.first(kMagic.size()), std::as_bytes(std::span(kMagic))))
    return std::nullopt;
  ByteReader reader(bytes.subspan(kMagic.size(), kPrefixBytes - kMagic.size()));
  Half half{.number = reader.get<std::uint64_t>("number"), .record = {}};
  const auto length = reader.get<std::uint64_t>("length");
  const Digest digest{.low = reader.get<std::uint64_t>("digest"),
                      .high = reader.get<std::uint64_t>("digest")};
  if (length > bytes.size() - kPrefixBytes) return std::nullopt;
  half.record = bytes.subspan(kPrefixBytes, length);
  Digester digester;
  digester.update(bytes.first(kHeadBytes));
  digester.update(half.record);
  if (digester.finish() != digest && !planted("record_half_not_checked")) return std::nullopt;
  return half;
}

struct Halves {
  std::size_t bytes = 0;  // of each
  std::array<std::optional<Half>, 2> half;
  [[nodiscard]] bool any() const { return half[0] || half[1]; }
  // The one with the newer record. There is one.
  [[nodiscard]] std::size_t newest() const {
    if (!half[0] || !half[1]) return half[0] ? 0 : 1;
    return half[0]->number > half[1]->number ? 0 : 1;
  }
  // Whether one half of `file` is whole, and the other has begun with something else. (One that was
  // emptied after an error begins with zeros.)
  [[nodiscard]] bool is_torn(std::span<const std::byte> file) const {
    if (!any() || (half[0] && half[1])) return false;
    return std::ranges::any_of(file.subspan((1 - newest()) * bytes, std::min(bytes, kPrefixBytes)),
                               [](std::byte each) { return each != std::byte{}; });
  }
};

Halves halves_of(std::span<const std::byte> file) {
  Halves found{.bytes = file.size() / 2, .half = {}};
  found.half[0] = read_half(file.first(found.bytes));
  found.half[1] = read_half(file.subspan(found.bytes));
  return found;
}

// A file with `record` in its first half, and room for one that is twice as long.
Bytes new_file(std::uint64_t number, std::span<const std::byte> record) {
  Bytes file = half_of(number, record);
  const std::size_t half =
      (kPrefixBytes + 2 * record.size() + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  file.resize(2 * half);
  return file;
}

Result<> taken_over(const std::filesystem::path& path) {
  return fail(ErrorCode::kBusy,
              fmt::format("write {}: another writer has taken over the file", path.string()));
}

Result<Bytes> read_all(int fd, const std::filesystem::path& path) {
  Bytes bytes;
  std::array<std::byte, kBlockBytes> buffer{};
  for (;;) {
    const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(bytes.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("read " + path.string(), errno);
    if (n == 0) return bytes;
    if (bytes.size() + static_cast<std::size_t>(n) > kFileBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} has more than {} bytes", path.string(), kFileBytesMax));
    bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + n);
  }
}

Result<> write_at(int fd, const std::string& path, std::uint64_t offset,
                  std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("write " + path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  // The size of the file stays, so its data is all that has to be flushed.
  if (::fdatasync(fd) != 0) return fail_errno("fdatasync " + path, errno);
  return {};
}

// Writes a half in place. After an error it is empty again, so that nobody reads a record that
// may not be on the disk.
Result<> write_half(int fd, const std::string& path, std::uint64_t offset,
                    std::span<const std::byte> bytes) {
  Result<> written = write_at(fd, path, offset, bytes);
  if (written) return {};
  constexpr std::array<std::byte, kPrefixBytes> kEmpty{};
  if (const auto emptied = write_at(fd, path, offset, kEmpty); !emptied) {
    // Nothing of it was written: what is there is the older record, as before.
    std::array<std::byte, kPrefixBytes> there{};
    const ssize_t n = ::pread(fd, there.data(), there.size(), static_cast<off_t>(offset));
    if (n == static_cast<ssize_t>(there.size()) &&
        std::ranges::equal(there, bytes.first(kPrefixBytes)))
      return fail(
          written.error().with_context(emptied.error().message() + "; the first error was"));
  }
  return written;
}

}  // namespace

Result<> write_record(const std::filesystem::path& path, std::span<const std::byte> record,
                      Claim how) {
  return write_record(
      path, [record]() -> Result<Bytes> { return Bytes(record.begin(), record.end()); }, how);
}

Result<> write_record(const std::filesystem::path& path,
                      const std::function<Result<Bytes>()>& content, Claim how) {
  const auto turn = WSYNC_TRY(take_turn(path, how));
  const Bytes record = WSYNC_TRY(content());
  // Opened once: a file that replaces this one from here on is never written here.
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid() && errno != ENOENT) return fail_errno("open " + path.string(), errno);
  if (!turn.is_ours()) return taken_over(path);
  const Bytes file = fd.valid() ? WSYNC_TRY(read_all(fd.get(), path)) : Bytes();
  const Halves halves = halves_of(file);
  const std::size_t newest = halves.any() ? halves.newest() : 0;
  const std::uint64_t number = halves.any() ? halves.half[newest]->number + 1 : 1;
  if (how == Claim::kTakeOver || !halves.any() || kPrefixBytes + record.size() > halves.bytes)
    return replace_durably(path, new_file(number, record), turn, how);
  const std::size_t older = planted("record_newest_overwritten") ? newest : 1 - newest;
  WSYNC_TRY(write_half(fd.get(), path.string(), older * halves.bytes, half_of(number, record)));
  if (!turn.is_ours()) return taken_over(path);
  return {};
}

Result<Bytes> read_record(const std::filesystem::path& path, std::uint64_t max_bytes) {
  Bytes file;
  for (int tries = 0; tries < kReads; ++tries) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return fail_errno("open " + path.string(), errno);
    file = WSYNC_TRY(read_all(fd.get(), path));
    if (!halves_of(file).is_torn(file)) break;
    // Somebody may be writing.
  }
  const Halves halves = halves_of(file);
  if (halves.is_torn(file))
    log_warning(
        "{}: a write of it did not end, because its process or the machine ended; the record "
        "before it is used",
        path.string());
  const auto record = record_in(file);
  if (record.size() > max_bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the record in {} has {} bytes, at most {} are expected", path.string(),
                            record.size(), max_bytes));
  return Bytes(record.begin(), record.end());
}

std::span<const std::byte> record_in(std::span<const std::byte> file) {
  const Halves halves = halves_of(file);
  return halves.any() ? halves.half[halves.newest()]->record : file;
}

}  // namespace wsync
