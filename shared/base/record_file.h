// A record that is stored often: a file with room for two of them, which are written in turns.
//
// A write goes into the place of the older record, so the newer one stays whole whatever happens
// meanwhile, and one flush of those bytes makes the write durable. Replacing the file
// (durable_file.h) costs two flushes of the file system's journal, several milliseconds on a disk;
// it is done only for the first record, for one that needs more room, and when another process
// takes the file over. A write into its place also needs no space: a full disk does not stop it.
//
// File: two halves of equal size. Each is empty (zeros), or has
//
//   offset 0   8 bytes   "WSRECORD"
//          8   8         number of the write: the higher of the two is the newer record
//         16   8         length of the record
//         24  16         XXH3-128 of the 24 bytes before and of the record (low, high half)
//         40             the record
//
// All numbers are little-endian. A file without either is a record that was stored as a whole, as
// releases before did.
//
// Thread: any; writers of one path take turns as in durable_file.h, in one process or several.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/unix_socket.h"

namespace wsync {

// Stores what `content` returns, durably. It is called while the turn is held, so it can read the
// record and decide; its error is returned, and then nothing is written. After an error the record
// before is valid (the sentence says so if it could not be restored). kBusy as write_durably(). A
// writer that stands still and is taken over by kTakeOver never writes into the new file: it keeps
// the old one, and fails with kBusy.
[[nodiscard]] Result<> write_record(const std::filesystem::path& path,
                                    const std::function<Result<Bytes>()>& content,
                                    Claim how = Claim::kIfFree);
[[nodiscard]] Result<> write_record(const std::filesystem::path& path,
                                    std::span<const std::byte> record, Claim how = Claim::kIfFree);

// The newest record that is whole. A half that is not whole is a write that did not end, and is
// logged. kNotFound if the file does not exist; kInvalidInput if the record has more than
// `max_bytes`.
[[nodiscard]] Result<Bytes> read_record(const std::filesystem::path& path, std::uint64_t max_bytes);

// The record in the bytes of such a file. Pure.
[[nodiscard]] std::span<const std::byte> record_in(std::span<const std::byte> file);

}  // namespace wsync
