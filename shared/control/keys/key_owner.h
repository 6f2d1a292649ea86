// KeyOwner: whose key it is, as a role and a name. The role decides what its holder may ask of a
// coordinator, the name which sidecar it may be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::control {

enum class KeyRole : std::uint8_t {
  kCoordinator,  // the holder is the coordinator of the fleet
  kPublisher,    // publishes versions
  kSidecar,      // brings versions to the engines of its host
  kReader,       // looks at the fleet, and changes nothing
  kOperator,     // does what an operator does, and what a reader may
};
inline constexpr KeyRole kLastKeyRole = KeyRole::kOperator;

// The role in lower case ("sidecar"), as files, folders and commands have it.
[[nodiscard]] std::string_view role_name(KeyRole role) noexcept;
// The role of that name. kInvalidInput, with all names, for any other text.
[[nodiscard]] Result<KeyRole> parse_role(std::string_view text);
// The roles that `wsync keys add` makes keys for: all but the coordinator.
[[nodiscard]] const std::vector<KeyRole>& peer_roles();

struct KeyOwner {
  KeyRole role = KeyRole::kReader;
  std::string name;  // see check_key_name()
  // "sidecar host7"
  [[nodiscard]] std::string text() const;
  friend bool operator==(const KeyOwner&, const KeyOwner&) = default;
};

// A name is a file name: 1 to limits::kReplicaNameBytes letters, digits, '.', '_' and '-', of which
// the first is a letter or a digit; the ends .lock, .new and .old belong to files that are being
// written. kInvalidInput for any other text.
[[nodiscard]] Result<> check_key_name(std::string_view name);

}  // namespace wsync::control
