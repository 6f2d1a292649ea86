// AuthorizedKeys: the public halves that a coordinator admits, and whose each of them is. They
// stand in a folder of files `ROLE/NAME`, each of which has one line with one key.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/control/keys/key_owner.h"

namespace wsync::control {

inline constexpr std::size_t kAuthorizedKeysMax = 16'384;

class AuthorizedKeys {
 public:
  // Reads the folder. Files that are being written (NAME.new, NAME.old, NAME.lock) are left out.
  // kNotFound if it does not exist; kRefused as check_own_folder(), for each folder in it as well;
  // kInvalidInput for a file that has no name, no role or no key, for a key that has two owners,
  // and for more than kAuthorizedKeysMax keys.
  [[nodiscard]] static Result<AuthorizedKeys> read(const std::filesystem::path& folder);

  // Adds a public half (Z85). kInvalidInput if it is no key, or has another owner already.
  [[nodiscard]] Result<> add(const KeyOwner& owner, std::string_view public_key);
  // The owner of a public half, or null if it is not listed. Valid until this object changes.
  [[nodiscard]] const KeyOwner* find(std::string_view public_key) const;
  [[nodiscard]] std::size_t size() const noexcept { return owners_.size(); }
  // From the public half to its owner.
  [[nodiscard]] const std::map<std::string, KeyOwner, std::less<>>& owners() const noexcept {
    return owners_;
  }

 private:
  std::map<std::string, KeyOwner, std::less<>> owners_;
};

}  // namespace wsync::control
