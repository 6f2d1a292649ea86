#include "deploy/cli/own_run_dir.h"

#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "shared/base/format.h"
#include "shared/config/role.h"

namespace wsync::cli {
namespace {

constexpr std::string_view kPrefix = "push-";
constexpr std::string_view kLock = "/lock";

// The process that had the lock of such a folder has ended.
void remove_left_over(const std::string& run_dir) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, ignored)) {
    const std::string path = entry.path().string();
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    // One without a lock is being made.
    if (!std::filesystem::exists(path + std::string(kLock), ignored)) continue;
    if (const auto lock = LockFile::acquire(path + std::string(kLock)); lock)
      std::filesystem::remove_all(path, ignored);
  }
}

// Another command, in remove_left_over(), found the lock file between our open() and our flock().
// It holds the lock, or it has removed the folder already. Nobody else knows the name.
bool is_taken_for_left_over(const std::string& path, const Error& error) {
  std::error_code ignored;
  return error.code() == ErrorCode::kBusy ||
         std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found;
}

}  // namespace

Result<OwnRunDir> OwnRunDir::create(const std::string& run_dir) {
  WSYNC_TRY(make_private_directory(run_dir));
  remove_left_over(run_dir);
  constexpr int kTimes = 100;  // on a file system that refuses all locks it would go on for ever
  for (int time = 1;; ++time) {
    std::string path = fmt::format("{}/{}{:08x}", run_dir, kPrefix, std::random_device()());
    if (path.size() > config::kRunDirBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("run_dir: {} has {} bytes, at most {} allowed: set WSYNC_RUN_DIR to "
                              "a shorter path",
                              path, path.size(), config::kRunDirBytesMax));
    WSYNC_TRY(make_private_directory(path));
    auto lock = LockFile::acquire(path + std::string(kLock), {}, LockFile::Naming::kIfRoom);
    if (lock) return OwnRunDir(std::move(path), std::move(*lock));
    if (time == kTimes || !is_taken_for_left_over(path, lock.error())) return fail(lock.error());
  }
}

OwnRunDir::OwnRunDir(OwnRunDir&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {
  other.lock_.reset();
}

OwnRunDir::~OwnRunDir() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace wsync::cli
