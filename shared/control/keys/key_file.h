// KeyFile: one key pair with its owner and the public half of the coordinator, in a text file that
// is carried to the host of its owner. Public and secret halves are Z85, the text that ZeroMQ uses:
//
//   wsync-key: 1
//   role: sidecar
//   name: host7
//   public: <40 characters>
//   server: <40 characters>
//   secret: <40 characters>
//
// These six lines, in this order and with nothing else. In the coordinator's own file `server` is
// its own public half.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/control/keys/key_owner.h"

namespace wsync::control {

inline constexpr std::size_t kKeyBytes = 32;       // of one half
inline constexpr std::size_t kKeyCharacters = 40;  // of one half in Z85
inline constexpr std::size_t kKeyFileBytesMax = 1024;

struct KeyPair {
  std::string public_key;  // Z85
  std::string secret_key;  // Z85; never printed
};

struct KeyFile {
  KeyOwner owner;
  KeyPair pair;
  std::string server_key;  // public half of the coordinator, Z85
};

// The 32 bytes of a half, or std::nullopt if the text is not the Z85 form of 32 bytes.
[[nodiscard]] std::optional<std::array<std::byte, kKeyBytes>> decode_key(std::string_view text);

// Parses the text of a key file. `name` stands for the file in errors. kInvalidInput names the line
// and what was expected there; no error shows a line of the file.
[[nodiscard]] Result<KeyFile> parse_key_file(std::string_view text, std::string_view name);
// The text of the file, with its secret.
[[nodiscard]] std::string key_file_text(const KeyFile& key);
// Reads a key file. Errors: those of read_secret_file() and of parse_key_file().
[[nodiscard]] Result<KeyFile> load_key_file(const std::filesystem::path& path);

}  // namespace wsync::control
