// Checkpoints that are made from a given one: for demonstrations, benchmarks and tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync::cli {

struct ChangedCopy {
  std::string from;
  std::string to;            // made here
  unsigned bit = 0;          // 0 to 7: this one of a byte is flipped
  std::uint64_t stride = 1;  // in the first byte of every tensor, and in each `stride`-th after it
};
// Writes a copy of a checkpoint with other bytes in every tensor. Errors of reading and writing;
// kCancelled soon after `cancelled` is set. Nothing is left at `to` then.
[[nodiscard]] Result<> write_changed_copy(const ChangedCopy& copy,
                                          const std::atomic<bool>& cancelled);

struct WrongShape {
  std::string tensor;
  std::string expected;  // "[128, 64]"
  std::string found;
};
// Makes a directory `to` that looks like checkpoint `from` but for the shape of one tensor (a
// transposed matrix where there is one). It takes next to no disk: other files are links, and the
// changed one has a header but no bytes behind it. kInvalidInput without a tensor to change; errors
// of reading and writing.
[[nodiscard]] Result<WrongShape> write_wrong_shape(const std::string& from, const std::string& to);

}  // namespace wsync::cli
