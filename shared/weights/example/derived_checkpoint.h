// Checkpoints that are derived from a given one, for demonstrations, benchmarks and tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync::cli {

struct ChangedCopy {
  std::string from;
  std::string to;            // created here
  unsigned bit = 0;          // 0 to 7: the bit that is flipped in a byte
  std::uint64_t stride = 1;  // flips the first byte of every tensor, then every `stride`-th
};
// Writes a copy of a checkpoint with changed bytes in every tensor. Returns errors of reading and
// writing, and kCancelled soon after `cancelled` is set. After an error nothing remains at `to`.
[[nodiscard]] Result<> write_changed_copy(const ChangedCopy& copy,
                                          const std::atomic<bool>& cancelled);

struct WrongShape {
  std::string tensor;
  std::string expected;  // "[128, 64]"
  std::string found;
};
// Creates a directory `to` that equals checkpoint `from` except for the shape of one tensor (a
// transposed matrix if there is one). It uses almost no disk space: the other files are links, and
// the changed file is a hole after its header. kInvalidInput if there is no tensor to change; also
// errors of reading and writing.
[[nodiscard]] Result<WrongShape> write_wrong_shape(const std::string& from, const std::string& to);

}  // namespace wsync::cli
