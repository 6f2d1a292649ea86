#include "shared/control/keys/key_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <span>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/private_path.h"
#include "shared/base/unique_fd.h"

namespace wsync::control {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCoordinatorName = "coordinator";

Result<> make_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return fail_errno("make the folder of keys " + folder.string(), errno);
  return check_own_folder(folder);
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Writes a file that must not exist.
Result<> write_new(const fs::path& path, std::string_view text) {
  return write_durably(path, [&]() -> Result<Bytes> {
    std::error_code error;
    if (fs::exists(fs::symlink_status(path, error)))
      return fail(
          ErrorCode::kBusy,
          fmt::format("{} exists already: remove it, or choose another name", path.string()));
    return bytes_of(text);
  });
}

// Whether there was such a file.
Result<bool> remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) != 0) {
    if (errno == ENOENT) return false;
    return fail_errno("remove " + path.string(), errno);
  }
  const UniqueFd parent(::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.valid() || ::fsync(parent.get()) != 0)
    return fail_errno("store that " + path.string() + " was removed", errno);
  return true;
}

std::string names_of(const AuthorizedKeys& keys, KeyRole role) {
  std::vector<std::string> names;
  for (const auto& [key, owner] : keys.owners())
    if (owner.role == role) names.push_back(owner.name);
  if (names.empty()) return fmt::format("no {} has a key", role_name(role));
  return fmt::format("keys of this role: {}", fmt::join(names, ", "));
}

}  // namespace

Result<KeyFolder> KeyFolder::init(const fs::path& folder, const KeyPair& coordinator) {
  WSYNC_TRY(make_folder(folder));
  WSYNC_TRY(make_folder(folder / "authorized"));
  for (const KeyRole role : peer_roles())
    WSYNC_TRY(make_folder(folder / "authorized" / role_name(role)));
  WSYNC_TRY(make_folder(folder / "issued"));
  KeyFile key{.owner = {.role = KeyRole::kCoordinator, .name = std::string(kCoordinatorName)},
              .pair = coordinator,
              .server_key = coordinator.public_key};
  WSYNC_TRY(write_new(folder / "coordinator.key", key_file_text(key)));
  return KeyFolder(folder, std::move(key));
}

Result<KeyFolder> KeyFolder::open(const fs::path& folder) {
  WSYNC_TRY(check_own_folder(folder));
  auto key = load_key_file(folder / "coordinator.key");
  if (!key && key.error().code() == ErrorCode::kNotFound)
    return fail(ErrorCode::kNotFound,
                fmt::format("{} is no folder of keys, because it has no coordinator.key: make one "
                            "with `wsync keys init`",
                            folder.string()));
  if (!key) return fail(key.error());
  if (key->owner.role != KeyRole::kCoordinator)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected the key of a coordinator, found that of {}",
                            (folder / "coordinator.key").string(), key->owner.text()));
  return KeyFolder(folder, std::move(*key));
}

Result<AuthorizedKeys> KeyFolder::authorized() const {
  return AuthorizedKeys::read(folder_ / "authorized");
}

fs::path KeyFolder::public_file(const KeyOwner& owner) const {
  return folder_ / "authorized" / role_name(owner.role) / owner.name;
}

fs::path KeyFolder::issued_file(const KeyOwner& owner) const {
  return folder_ / "issued" / fmt::format("{}.{}.key", role_name(owner.role), owner.name);
}

Result<fs::path> KeyFolder::add(const KeyOwner& owner, const KeyPair& pair, const fs::path& file) {
  if (owner.role == KeyRole::kCoordinator)
    return fail(ErrorCode::kInvalidInput,
                "role: a fleet has one coordinator, whose key `wsync keys init` makes; expected "
                "publisher, sidecar, reader or operator");
  WSYNC_TRY(check_key_name(owner.name));
  const auto listed = WSYNC_TRY(authorized());
  for (const auto& [key, other] : listed.owners())
    if (other == owner)
      return fail(ErrorCode::kBusy,
                  fmt::format("{} has a key already: to replace it, remove it first with `wsync "
                              "keys remove {}`",
                              owner.text(), owner.text()));
  const fs::path secret = file.empty() ? issued_file(owner) : file;
  WSYNC_TRY(write_new(
      secret,
      key_file_text({.owner = owner, .pair = pair, .server_key = coordinator_.pair.public_key})));
  // Last, so that no key is admitted that nobody can hold.
  if (const auto written = write_new(public_file(owner), pair.public_key + "\n"); !written) {
    (void)remove_file(secret);
    return fail(written.error());
  }
  return secret;
}

Result<bool> KeyFolder::remove(const KeyOwner& owner) {
  WSYNC_TRY(check_key_name(owner.name));
  const bool was_listed = WSYNC_TRY(remove_file(public_file(owner)));
  if (!was_listed)
    return fail(ErrorCode::kNotFound, fmt::format("{} has no key; {}", owner.text(),
                                                  names_of(WSYNC_TRY(authorized()), owner.role)));
  return remove_file(issued_file(owner));
}

}  // namespace wsync::control
