// What `wsync demo` publishes: made-up checkpoints, or a given one and copies of it with other
// bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shared/base/error.h"
#include "shared/loop/child_process.h"

namespace wsync::cli {

struct VersionMakerOptions {
  std::string checkpoint;  // the given one; empty: made-up ones
  std::uint64_t size = 0;  // of made-up ones
  std::string work_dir;    // where they are made
};

// Makes the directories of the versions, one after the other.
// Thread: that of `children`. Outlives: `children` and `say` outlive it.
class VersionMaker {
 public:
  VersionMaker(ChildProcesses& children, VersionMakerOptions options,
               const std::function<void(const std::string&)>& say)
      : children_(children), options_(std::move(options)), say_(say) {}
  // The directory of version 1, 2, ... (at most 9), each with other bytes in every tensor. A given
  // checkpoint is version 1 itself; it is only read. Errors as ChildProcesses::run and in_thread.
  [[nodiscard]] Result<std::string> make(unsigned number);
  // Removes a directory that was made here, unless it is the first one.
  void done_with(const std::string& directory) const;
  // Whether the given checkpoint stood for a later version, for want of room for a copy.
  [[nodiscard]] bool same_bytes() const noexcept { return same_bytes_; }

 private:
  ChildProcesses& children_;
  const VersionMakerOptions options_;
  const std::function<void(const std::string&)>& say_;
  std::string first_;
  bool same_bytes_ = false;
};

}  // namespace wsync::cli
