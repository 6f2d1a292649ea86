// Writes a whole text file, so that no reader sees half of it.
#pragma once

#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::trace {

// Writes beside `path` and renames; an existing file is replaced, a symbolic link's target in its
// place. What is no regular file (a device, a pipe) is written to. kIo, kNotFound (no such
// directory) or kResourceExhausted (disk full); nothing is left behind then.
[[nodiscard]] Result<> write_text_file(const std::string& path, std::string_view text);

// What of it can be known before there is anything to write: kNotFound without the directory;
// kInvalidInput for a directory in its place, or one where no file can be made.
[[nodiscard]] Result<> check_text_file(const std::string& path);

}  // namespace wsync::trace
