#include "deploy/demo/version_maker.h"

#include <filesystem>

#include "shared/base/units.h"
#include "shared/config/units.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/example/derived_checkpoint.h"

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kMakeDeadline{900'000};
constexpr std::uint64_t kRoomLeft = 64 * limits::kMiB;  // disk space to keep free beside a copy
// All bytes are others, so that engines load all of them: what is shown is the way of all bytes.
constexpr std::uint64_t kFlipEvery = 1;

}  // namespace

Result<> VersionMaker::make_first() {
  const DemoOptions& options = context_.options;
  first_ = options.checkpoint;
  if (!first_.empty()) return {};
  first_ = options.work_dir + "/step_1";
  context_.say("making {}: {} of bf16 in the Qwen3-MoE layout", first_, human_bytes(options.size));
  return context_.children.run(
      {.name = "make-checkpoint",
       .arguments = {"make-checkpoint", first_, "--size", config::format_size(options.size)}},
      kMakeDeadline);
}

Result<bool> VersionMaker::has_room_for_copy() const {
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(first_));
  const std::uint64_t bytes = checkpoint.manifest().total_bytes();
  std::error_code error;
  const std::uint64_t room = fs::space(context_.options.work_dir, error).available;
  return !error && room >= bytes + bytes / 8 + kRoomLeft;
}

Result<std::string> VersionMaker::make(unsigned number) {
  if (number == 1) return first_;
  const std::string& work = context_.options.work_dir;
  if (!WSYNC_TRY(has_room_for_copy())) {
    same_bytes_ = true;
    context_.say("{} has no room for a changed copy: {} is published again as it is", work, first_);
    return first_;
  }
  const std::string directory = fmt::format("{}/step_{}", work, number);
  context_.say("making {}: a copy of {} in which every byte is another one", directory, first_);
  WSYNC_TRY(context_.children.in_thread(
      "the copy", kMakeDeadline, [&](const std::atomic<bool>& cancelled) {
        return write_changed_copy(
            {.from = first_, .to = directory, .bit = number - 2, .stride = kFlipEvery}, cancelled);
      }));
  return directory;
}

void VersionMaker::done_with(const std::string& directory) const {
  if (directory == first_) return;
  std::error_code ignored;
  fs::remove_all(directory, ignored);
}

}  // namespace wsync::cli
