#include "shared/control/keys/key_file.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/private_path.h"

namespace wsync::control {
namespace {

constexpr std::string_view kAlphabet =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
constexpr std::size_t kGroup = 5;  // characters that stand for 4 bytes
constexpr std::string_view kFormat = "1";
constexpr std::array<std::string_view, 6> kFields = {"wsync-key", "role",   "name",
                                                     "public",    "server", "secret"};
static_assert(kAlphabet.size() == 85);

tl::unexpected<Error> wrong_line(std::string_view file, std::size_t line, std::string_view why) {
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("{}:{}: {}; a key is a file that `wsync keys` has written", file, line + 1, why));
}

}  // namespace

std::optional<std::array<std::byte, kKeyBytes>> decode_key(std::string_view text) {
  if (text.size() != kKeyCharacters) return std::nullopt;
  std::array<std::byte, kKeyBytes> bytes{};
  for (std::size_t group = 0; group < kKeyCharacters / kGroup; ++group) {
    std::uint64_t value = 0;
    for (const char c : text.substr(group * kGroup, kGroup)) {
      const std::size_t digit = kAlphabet.find(c);
      if (digit == std::string_view::npos) return std::nullopt;
      value = value * kAlphabet.size() + digit;
    }
    if (value > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
    for (std::size_t i = 0; i < 4; ++i)
      bytes[group * 4 + i] = static_cast<std::byte>((value >> (24 - 8 * i)) & 0xffU);
  }
  return bytes;
}

Result<KeyFile> parse_key_file(std::string_view text, std::string_view name) {
  std::array<std::string, kFields.size()> values;
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const std::string begin = fmt::format("{}: ", kFields[i]);
    if (end == std::string_view::npos || !line.starts_with(begin))
      return wrong_line(name, i, fmt::format("expected '{}' and a value", begin));
    values[i] = line.substr(begin.size());
    text.remove_prefix(end + 1);
  }
  if (!text.empty())
    return wrong_line(name, kFields.size(), "expected the end of the file, found more");
  if (values[0] != kFormat)
    return wrong_line(
        name, 0, fmt::format("expected format {}, found another, of another release", kFormat));
  KeyFile key;
  const auto role = parse_role(values[1]);
  if (!role) return wrong_line(name, 1, "expected a role that this release knows");
  key.owner.role = *role;
  if (!check_key_name(values[2])) return wrong_line(name, 2, "expected the name of a key");
  key.owner.name = values[2];
  for (std::size_t i = 3; i < kFields.size(); ++i)
    if (!decode_key(values[i]))
      return wrong_line(name, i,
                        fmt::format("expected a key of {} characters in Z85", kKeyCharacters));
  key.pair.public_key = values[3];
  key.server_key = values[4];
  key.pair.secret_key = values[5];
  if (key.owner.role == KeyRole::kCoordinator && key.server_key != key.pair.public_key)
    return wrong_line(name, 4, "expected the coordinator's own public half");
  return key;
}

std::string key_file_text(const KeyFile& key) {
  return fmt::format("wsync-key: {}\nrole: {}\nname: {}\npublic: {}\nserver: {}\nsecret: {}\n",
                     kFormat, role_name(key.owner.role), key.owner.name, key.pair.public_key,
                     key.server_key, key.pair.secret_key);
}

Result<KeyFile> load_key_file(const std::filesystem::path& path) {
  const Bytes bytes = WSYNC_TRY(read_secret_file(path, "key", kKeyFileBytesMax));
  return parse_key_file({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace wsync::control
