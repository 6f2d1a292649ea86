// Writes a whole text file atomically: readers never see a partial file.
#pragma once

#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::trace {

// Writes a temporary file next to `path` and renames it. Replaces an existing file; if `path` is a
// symbolic link, replaces its target. A device or pipe is written to directly. Errors: kIo,
// kNotFound (no such directory) or kResourceExhausted (disk full). Leaves no temporary file after
// an error.
[[nodiscard]] Result<> write_text_file(const std::string& path, std::string_view text);

// Checks in advance whether write_text_file() can succeed. Errors: kNotFound if the directory is
// missing; kInvalidInput if `path` is a directory or if no file can be created there.
[[nodiscard]] Result<> check_text_file(const std::string& path);

}  // namespace wsync::trace
