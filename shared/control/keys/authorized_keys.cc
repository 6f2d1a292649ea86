#include "shared/control/keys/authorized_keys.h"

#include <system_error>

#include "shared/base/bytes.h"
#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/private_path.h"
#include "shared/control/keys/key_file.h"

namespace wsync::control {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPublicFileBytes = kKeyCharacters + 1;

bool is_being_written(const std::string& name) {
  return name.ends_with(".new") || name.ends_with(".old") || name.ends_with(".lock");
}

// Calls `each` with every entry of a folder, until one fails.
Result<> for_each_entry(const fs::path& folder,
                        const std::function<Result<>(const fs::directory_entry&)>& each) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    WSYNC_TRY(each(*entry));
  if (error) return fail_errno("list the keys in " + folder.string(), error.value());
  return {};
}

Result<std::string> read_public_half(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected a file with a public key", path.string()));
  const Bytes bytes = WSYNC_TRY(read_small_file(path, kPublicFileBytes));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

Result<AuthorizedKeys> AuthorizedKeys::read(const fs::path& folder) {
  AuthorizedKeys keys;
  WSYNC_TRY(check_own_folder(folder));
  WSYNC_TRY(for_each_entry(folder, [&](const fs::directory_entry& of_role) -> Result<> {
    const auto role = parse_role(of_role.path().filename().string());
    if (!role) return fail(role.error().with_context(of_role.path().string()));
    WSYNC_TRY(check_own_folder(of_role.path()));
    return for_each_entry(of_role.path(), [&](const fs::directory_entry& file) -> Result<> {
      const std::string name = file.path().filename().string();
      if (is_being_written(name)) return {};
      if (const auto good = check_key_name(name); !good)
        return fail(good.error().with_context(file.path().string()));
      const std::string key = WSYNC_TRY(read_public_half(file.path()));
      if (const auto added = keys.add({.role = *role, .name = name}, key); !added)
        return fail(added.error().with_context(file.path().string()));
      return {};
    });
  }));
  return keys;
}

Result<> AuthorizedKeys::add(const KeyOwner& owner, std::string_view public_key) {
  if (!decode_key(public_key))
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("expected one line with a public key of {} characters in Z85", kKeyCharacters));
  const auto [place, is_new] = owners_.emplace(std::string(public_key), owner);
  if (!is_new)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the key is listed for {} already; each key has one owner: remove one "
                            "of them",
                            place->second.text()));
  if (owners_.size() > kAuthorizedKeysMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("expected at most {} keys, found more", kAuthorizedKeysMax));
  return {};
}

const KeyOwner* AuthorizedKeys::find(std::string_view public_key) const {
  const auto found = owners_.find(public_key);
  return found == owners_.end() ? nullptr : &found->second;
}

}  // namespace wsync::control
