// Small files that survive a crash whole: the old content or the new one, never a mixture.
// Thread: any. Writers of one path, in one process or several, take turns; the last one's content
// stays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/unix_socket.h"

namespace wsync {

// Writes `<path>.new`, flushes it to the disc, renames it over `path` and flushes the directory;
// `<path>.old` is the old content meanwhile, and `<path>.lock` is held. On an error `path` is as it
// was (the sentence says so if it could not be put back) and nothing is left beside it. What a
// killed process left beside it goes with the next write. kBusy: another writer has kept its turn
// for 30 s, so it is stopped, or its disc is; or it took ours over. kTakeOver waits for nobody: the
// writer before is left behind, and what it was about to write is not written.
[[nodiscard]] Result<> write_durably(const std::filesystem::path& path,
                                     std::span<const std::byte> bytes, Claim how = Claim::kIfFree);
// The same with what `content` gives once the lock is held, so that it can read the file and decide
// by what is there; its error ends the call, and nothing is written.
[[nodiscard]] Result<> write_durably(const std::filesystem::path& path,
                                     const std::function<Result<Bytes>()>& content,
                                     Claim how = Claim::kIfFree);
// The whole file. kNotFound when there is none; kInvalidInput when it has more than `max_bytes`.
[[nodiscard]] Result<Bytes> read_small_file(const std::filesystem::path& path,
                                            std::uint64_t max_bytes);

}  // namespace wsync
