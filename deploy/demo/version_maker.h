// The checkpoints of the versions that `wsync demo` publishes: the first one is given or generated,
// the others are copies of it with other bytes.
#pragma once

#include <string>

#include "deploy/demo/scenario.h"
#include "shared/base/error.h"

namespace wsync::cli {

// Thread: that of the context's children. Outlives: the context outlives it.
class VersionMaker {
 public:
  explicit VersionMaker(const DemoContext& context) : context_(context) {}
  // Makes version 1; a given checkpoint is only read. Errors: those of ChildProcesses::run().
  [[nodiscard]] Result<> make_first();
  [[nodiscard]] const std::string& first() const noexcept { return first_; }
  // Returns the directory of version 1, 2, ... (at most 9). Every version differs in the bytes of
  // every tensor, except as same_bytes() describes. Errors: those of ChildProcesses::in_thread().
  [[nodiscard]] Result<std::string> make(unsigned number);
  // Removes a directory of the work directory, unless it is that of version 1.
  void done_with(const std::string& directory) const;
  // Returns true if a later version has the bytes of the first because there was no room for a
  // copy.
  [[nodiscard]] bool same_bytes() const noexcept { return same_bytes_; }

 private:
  [[nodiscard]] Result<bool> has_room_for_copy() const;

  const DemoContext& context_;
  std::string first_;
  bool same_bytes_ = false;
};

}  // namespace wsync::cli
