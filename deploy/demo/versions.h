// Checkpoints for `wsync demo`: generated ones, or a given one and copies of it with other bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shared/base/error.h"
#include "shared/loop/child_process.h"

namespace wsync::cli {

struct VersionMakerOptions {
  std::string checkpoint;  // given checkpoint; empty: generate
  std::uint64_t size = 0;  // bytes of a generated checkpoint
  std::string work_dir;    // directory of new checkpoints
};

// Creates the checkpoint directories of the versions, one after the other.
// Thread: that of `children`. Outlives: `children` and `say` outlive it.
class VersionMaker {
 public:
  VersionMaker(ChildProcesses& children, VersionMakerOptions options,
               const std::function<void(const std::string&)>& say)
      : children_(children), options_(std::move(options)), say_(say) {}
  // Returns the directory of version 1, 2, ... (at most 9). Every version differs in the bytes of
  // every tensor, except as same_bytes() describes. A given checkpoint is used as version 1 and
  // only read. Errors: those of ChildProcesses::run and in_thread.
  [[nodiscard]] Result<std::string> make(unsigned number);
  // Removes a directory that this object created, unless it is the first one.
  void done_with(const std::string& directory) const;
  // Returns true if the given checkpoint was also used as a later version because there was no room
  // for a copy.
  [[nodiscard]] bool same_bytes() const noexcept { return same_bytes_; }

 private:
  ChildProcesses& children_;
  const VersionMakerOptions options_;
  const std::function<void(const std::string&)>& say_;
  std::string first_;
  bool same_bytes_ = false;
};

}  // namespace wsync::cli
