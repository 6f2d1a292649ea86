// Crash-safe writing of small files: after a crash a file has its old or its new content, never a
// mixture.
// Thread: any. A lock file serialises the writers of one path, in one process or several. The
// content of the last writer remains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/unix_socket.h"

namespace wsync {

// Writes `<path>.new`, flushes it to disk, renames it over `path` and flushes the directory.
// Meanwhile it holds `<path>.lock`, and `<path>.old` is the old content. On an error `path` keeps
// its old content (the sentence says so if it could not be restored), and no temporary file
// remains. The next write removes the temporary files of a killed process.
// kBusy if another writer held the lock for 30 s, because that process or its disk hangs, or if
// another writer took over our lock. kTakeOver does not wait: it takes over the lock, and the
// previous holder fails with kBusy instead of replacing the file.
[[nodiscard]] Result<> write_durably(const std::filesystem::path& path,
                                     std::span<const std::byte> bytes, Claim how = Claim::kIfFree);
// The same, with the content that `content` returns. `content` is called while the lock is held, so
// it can read the current file and decide. If it fails, its error is returned and nothing is
// written.
[[nodiscard]] Result<> write_durably(const std::filesystem::path& path,
                                     const std::function<Result<Bytes>()>& content,
                                     Claim how = Claim::kIfFree);
// The same in two steps, for who looks at the file in between. `turn` is held until both are done.
// kBusy as above.
[[nodiscard]] Result<LockFile> take_turn(const std::filesystem::path& path, Claim how);
[[nodiscard]] Result<> replace_durably(const std::filesystem::path& path,
                                       std::span<const std::byte> bytes, const LockFile& turn,
                                       Claim how);
// Reads the whole file. kNotFound if it does not exist; kInvalidInput if it has more than
// `max_bytes`.
[[nodiscard]] Result<Bytes> read_small_file(const std::filesystem::path& path,
                                            std::uint64_t max_bytes);
// The same from an open file, from where it is. `name` is for errors.
[[nodiscard]] Result<Bytes> read_to_end(int fd, const std::string& name, std::uint64_t max_bytes);

}  // namespace wsync
