// Files with secrets and folders that say who may do what: whom they belong to, and who may read
// and change them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "shared/base/bytes.h"
#include "shared/base/error.h"

namespace wsync {

// Reads a file with a secret. `what` names the secret in errors: "key". kNotFound if it does not
// exist; kRefused unless it is a regular file of this user (or of root) that nobody else may read
// or write; kInvalidInput if it has more than `max_bytes`.
[[nodiscard]] Result<Bytes> read_secret_file(const std::filesystem::path& path,
                                             std::string_view what, std::uint64_t max_bytes);
// kNotFound if the folder does not exist; kRefused unless it is a folder of this user (or of root)
// in which nobody else may write: who writes there could let another key in.
[[nodiscard]] Result<> check_own_folder(const std::filesystem::path& path);

}  // namespace wsync
