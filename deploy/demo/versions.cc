#include "deploy/demo/versions.h"

#include <filesystem>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/command/context.h"
#include "shared/command/outcome.h"
#include "shared/config/units.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/example/derived_checkpoint.h"

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kMakeDeadline{900'000};
constexpr std::uint64_t kRoomLeft = 64 * limits::kMiB;  // disk space to keep free beside a copy
constexpr std::uint64_t kFlipEvery = 4096;

// Returns the bytes of all tensors. Returns 0 if the checkpoint cannot be read; the publish then
// reports the error.
std::uint64_t bytes_of(const std::string& directory) {
  std::uint64_t sum = 0;
  const auto checkpoint = CheckpointDirectory::open(directory);
  if (!checkpoint) return 0;
  for (const TensorInfo& tensor : checkpoint->manifest().tensors())
    sum += tensor.byte_size().value_or(0);
  return sum;
}

}  // namespace

Result<std::string> VersionMaker::make(unsigned number) {
  const std::string directory = fmt::format("{}/step_{}", options_.work_dir, number);
  if (number == 1) first_ = options_.checkpoint.empty() ? directory : options_.checkpoint;
  if (options_.checkpoint.empty()) {
    say_(fmt::format("making {}: {} of bf16 in the Qwen3-MoE layout", directory,
                     human_bytes(options_.size)));
    WSYNC_TRY(children_.run(
        {.name = "make-checkpoint",
         .arguments = {"make-checkpoint", directory, "--size", config::format_size(options_.size),
                       "--step", std::to_string(number)}},
        kMakeDeadline));
    return directory;
  }
  if (number == 1) return options_.checkpoint;
  std::error_code error;
  const std::uint64_t bytes = bytes_of(options_.checkpoint);
  const std::uint64_t room = fs::space(options_.work_dir, error).available;
  if (error || room < bytes + bytes / 8 + kRoomLeft) {
    same_bytes_ = true;
    say_(fmt::format("{} has no room for a changed copy: {} is published again as it is",
                     options_.work_dir, options_.checkpoint));
    return options_.checkpoint;
  }
  say_(fmt::format("making {}: a copy of {} with other bytes in every tensor", directory,
                   options_.checkpoint));
  WSYNC_TRY(children_.in_thread("the copy", kMakeDeadline, [&](const std::atomic<bool>& cancelled) {
    return write_changed_copy(
        {.from = options_.checkpoint, .to = directory, .bit = number - 2, .stride = kFlipEvery},
        cancelled);
  }));
  return directory;
}

void VersionMaker::done_with(const std::string& directory) const {
  if (directory == first_ || directory == options_.checkpoint) return;
  std::error_code ignored;
  fs::remove_all(directory, ignored);
}

}  // namespace wsync::cli
