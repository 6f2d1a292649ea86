// Writes a whole text file, so that no reader sees half of it.
#pragma once

#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::trace {

// Writes beside `path` and renames; an existing file is replaced. kIo, kNotFound (no such
// directory) or kResourceExhausted (disk full); nothing is left behind then.
[[nodiscard]] Result<> write_text_file(const std::string& path, std::string_view text);

}  // namespace wsync::trace
