#include "deploy/cli/archive_file.h"

#include <archive.h>
#include <archive_entry.h>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::cli {
namespace {

constexpr mode_t kOwnerOnly = 0600;

struct ArchiveFree {
  void operator()(archive* a) const noexcept { archive_write_free(a); }
};
struct EntryFree {
  void operator()(archive_entry* entry) const noexcept { archive_entry_free(entry); }
};

}  // namespace

struct ArchiveFile::State {
  std::string path;
  UniqueFd fd;
  std::unique_ptr<archive, ArchiveFree> writer;
  bool finished = false;

  [[nodiscard]] tl::unexpected<Error> failure(const std::string& what) const {
    const char* why = archive_error_string(writer.get());
    return fail(ErrorCode::kIo,
                fmt::format("{}: {}: {}", path, what, why == nullptr ? "no reason given" : why));
  }
};

ArchiveFile::ArchiveFile(std::unique_ptr<State> state) : state_(std::move(state)) {}

ArchiveFile::~ArchiveFile() {
  state_->writer.reset();
  if (!state_->finished) ::unlink(state_->path.c_str());
}

Result<std::unique_ptr<ArchiveFile>> ArchiveFile::create(const std::string& path) {
  const bool zstd = path.ends_with(".tar.zst");
  if (!zstd && !path.ends_with(".tar.gz") && !path.ends_with(".tgz"))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected a name that ends in .tar.zst, .tar.gz or .tgz", path));
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (!fd.valid() && errno == EEXIST)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} is there already; name another file with -o", path));
  if (!fd.valid()) return fail_errno(path, errno);
  auto state = std::make_unique<State>();
  state->path = path;
  state->fd = std::move(fd);
  state->writer.reset(archive_write_new());
  auto file = std::unique_ptr<ArchiveFile>(new ArchiveFile(std::move(state)));
  archive* writer = file->state_->writer.get();
  if (writer == nullptr) return fail(ErrorCode::kResourceExhausted, "no memory for an archive");
  const int filter =
      zstd ? archive_write_add_filter_zstd(writer) : archive_write_add_filter_gzip(writer);
  // ARCHIVE_WARN: libarchive would start a program for it.
  if (filter != ARCHIVE_OK)
    return file->state_->failure(zstd ? "this libarchive has no zstd; name a .tar.gz"
                                      : "this libarchive has no gzip; name a .tar.zst");
  if (archive_write_set_format_ustar(writer) != ARCHIVE_OK ||
      archive_write_open_fd(writer, file->state_->fd.get()) != ARCHIVE_OK)
    return file->state_->failure("cannot be begun");
  return file;
}

Result<> ArchiveFile::add(const std::string& name, std::span<const std::byte> bytes,
                          std::time_t modified) {
  const std::unique_ptr<archive_entry, EntryFree> entry(archive_entry_new());
  if (entry == nullptr) return fail(ErrorCode::kResourceExhausted, "no memory for an archive");
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), kOwnerOnly);
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes.size()));
  archive_entry_set_mtime(entry.get(), modified, 0);
  archive* writer = state_->writer.get();
  if (archive_write_header(writer, entry.get()) != ARCHIVE_OK)
    return state_->failure(name + " cannot be added");
  while (!bytes.empty()) {
    const la_ssize_t n = archive_write_data(writer, bytes.data(), bytes.size());
    if (n <= 0) return state_->failure(name + " cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  if (archive_write_finish_entry(writer) != ARCHIVE_OK)
    return state_->failure(name + " cannot be written");
  return {};
}

Result<std::uint64_t> ArchiveFile::finish() {
  if (archive_write_close(state_->writer.get()) != ARCHIVE_OK)
    return state_->failure("cannot be ended");
  struct stat status{};
  if (::fstat(state_->fd.get(), &status) != 0) return fail_errno(state_->path, errno);
  state_->finished = true;
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace wsync::cli
