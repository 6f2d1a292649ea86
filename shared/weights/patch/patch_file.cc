#include "shared/weights/patch/patch_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/weights/output_file.h"

namespace wsync::patch {
namespace {

constexpr std::array<char, 8> kFileMagic = {'W', 'S', 'P', 'A', 'T', 'C', 'H', '\0'};
constexpr std::uint32_t kFileVersion = 1;
constexpr std::uint64_t kFileHeadBytes = 48;

struct FileHead {
  std::uint64_t manifest_bytes = 0;
  std::uint64_t index_bytes = 0;
  Digest manifest;  // of its bytes
};

Result<FileHead> read_head(std::span<const std::byte> bytes) {
  if (bytes.size() < kFileMagic.size() ||
      std::memcmp(bytes.data(), kFileMagic.data(), kFileMagic.size()) != 0)
    return fail(ErrorCode::kInvalidInput,
                "this is not a patch: `wsync patch make` writes files that begin with WSPATCH");
  ByteReader reader(
      bytes.first(std::min<std::size_t>(bytes.size(), kFileHeadBytes)).subspan(kFileMagic.size()));
  const auto version = reader.get<std::uint32_t>("version");
  if (reader.ok() && version != kFileVersion)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the file has version {} of the format of patch files; this wsync reads "
                    "version {}: make the patch again, or use the wsync that made it",
                    version, kFileVersion));
  FileHead head;
  if (reader.get<std::uint32_t>("zero") != 0) reader.violate("zero", "expected 0");
  head.manifest_bytes = reader.get<std::uint64_t>("manifest_bytes");
  head.index_bytes = reader.get<std::uint64_t>("index_bytes");
  head.manifest.low = reader.get<std::uint64_t>("digest");
  head.manifest.high = reader.get<std::uint64_t>("digest");
  WSYNC_TRY(reader.finish("the head of the patch"));
  const std::uint64_t rest = bytes.size() - kFileHeadBytes;
  if (head.manifest_bytes > rest || head.index_bytes > rest - head.manifest_bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the patch is truncated: its manifest and index have {} and {} bytes, "
                            "but only {} follow its head",
                            head.manifest_bytes, head.index_bytes, rest));
  return head;
}

Result<Manifest> read_manifest(std::span<const std::byte> bytes, const Digest& promised) {
  if (const Digest found = digest_of(bytes); found != promised)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("the manifest of the patch is damaged: its bytes have the digest {}, "
                            "expected {}",
                            found.to_string(), promised.to_string()));
  ByteReader reader(bytes);
  auto manifest = WSYNC_TRY(Manifest::decode(reader));
  WSYNC_TRY(reader.finish("the manifest of the patch"));
  return manifest;
}

// The bytes of each bucket, which fill the rest of the file.
Result<std::vector<std::span<const std::byte>>> cut(const Index& index,
                                                    std::span<const std::byte> body) {
  if (body.size() != index.body_bytes())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the patch {}: its buckets have {} bytes, found {}",
                    body.size() < index.body_bytes() ? "is truncated" : "has bytes behind its end",
                    index.body_bytes(), body.size()));
  std::vector<std::span<const std::byte>> buckets;
  for (std::size_t i = 0; i < index.buckets().size(); ++i)
    buckets.push_back(body.subspan(index.bucket_offset(i), index.buckets()[i].bytes));
  return buckets;
}

Result<Bytes> read_all(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail_errno("cannot open " + path, errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return fail_errno("cannot read " + path, errno);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::kInvalidInput, path + ": it is not a file; expected a patch");
  Bytes bytes(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("cannot read " + path, errno);
    if (n == 0)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: it was truncated to {} bytes while it was read", path, done));
    done += static_cast<std::size_t>(n);
  }
  return bytes;
}

}  // namespace

Result<PatchFile> PatchFile::parse(Bytes bytes) {
  const auto head = WSYNC_TRY(read_head(bytes));
  const auto rest = std::span<const std::byte>(bytes).subspan(kFileHeadBytes);
  auto manifest = WSYNC_TRY(read_manifest(rest.first(head.manifest_bytes), head.manifest));
  // The vector's memory stays where it is when it moves.
  const auto index_bytes = rest.subspan(head.manifest_bytes, head.index_bytes);
  const auto body = rest.subspan(head.manifest_bytes + head.index_bytes);
  auto parts = std::make_unique<Parts>(std::move(bytes), std::move(manifest));
  const auto index = WSYNC_TRY(Index::parse(index_bytes));
  const auto buckets = WSYNC_TRY(cut(index, body));
  parts->patch = WSYNC_TRY(PatchReader::open(parts->layout, index_bytes, buckets));
  return PatchFile(std::move(parts));
}

Result<PatchFile> PatchFile::open(const std::string& path) {
  auto parsed = parse(WSYNC_TRY(read_all(path)));
  if (parsed) return parsed;
  // A damaged file is as little a patch as a truncated one. Nothing was changed by either.
  const Error& error = parsed.error();
  const ErrorCode code =
      error.code() == ErrorCode::kDigestMismatch ? ErrorCode::kInvalidInput : error.code();
  return fail(Error(code, fmt::format("{}: {}", path, error.message()), error.where()));
}

Bytes patch_file_head(const Manifest& manifest, const Patch& patch) {
  ByteWriter encoded;
  manifest.encode(encoded);
  const Digest digest = digest_of(encoded.buffer());
  ByteWriter writer;
  writer.put_raw(std::as_bytes(std::span(kFileMagic)));
  writer.put(kFileVersion);
  writer.put(std::uint32_t{0});
  writer.put(std::uint64_t{encoded.size()});
  writer.put(std::uint64_t{patch.index.size()});
  writer.put(digest.low);
  writer.put(digest.high);
  writer.put_raw(encoded.buffer());
  writer.put_raw(patch.index);
  return std::move(writer).take();
}

Result<std::uint64_t> write_patch_file(const std::string& path, const Manifest& manifest,
                                       const Patch& patch, const std::function<bool()>& stopped) {
  const Bytes head = patch_file_head(manifest, patch);
  std::uint64_t bytes = head.size();
  for (const Bytes& bucket : patch.buckets) bytes += bucket.size();
  auto file = WSYNC_TRY(OutputFile::create(path, bytes));
  WSYNC_TRY(file.append(head));
  for (const Bytes& bucket : patch.buckets) {
    if (stopped && stopped()) return fail(ErrorCode::kCancelled, "stopped by a signal");
    WSYNC_TRY(file.append(bucket));
  }
  WSYNC_TRY(file.commit());
  return bytes;
}

}  // namespace wsync::patch
