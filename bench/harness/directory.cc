#include "bench/harness/directory.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <linux/magic.h>
#include <sys/vfs.h>

namespace wsync::bench {

Result<TemporaryDirectory> TemporaryDirectory::create(const std::string& parent) {
  std::error_code error;
  const std::string base =
      parent.empty() ? std::filesystem::temp_directory_path(error).string() : parent;
  if (error) return fail_errno("the directory for temporary files", error.value());
  std::string path = base + "/wsync-bench-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return fail_errno(base, errno);
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

bool is_in_memory(const std::string& directory) {
  struct statfs facts{};
  return ::statfs(directory.c_str(), &facts) == 0 &&
         (facts.f_type == TMPFS_MAGIC || facts.f_type == RAMFS_MAGIC);
}

}  // namespace wsync::bench
