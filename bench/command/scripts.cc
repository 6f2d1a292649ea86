#include "bench/command/scripts.h"

#include <filesystem>

#include "shared/base/format.h"

namespace wsync::cli {

Result<std::string> find_script(const std::string& name, const std::string& purpose) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string script =
      (own.parent_path() / WSYNC_SCRIPT_FOLDER / name).lexically_normal().string();
  if (std::filesystem::is_regular_file(script, error)) return script;
  return fail(ErrorCode::kNotFound,
              fmt::format("{} does not exist; this script {}. Install the complete package "
                          "wsync-bench",
                          script, purpose));
}

}  // namespace wsync::cli
