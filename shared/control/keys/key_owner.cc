#include "shared/control/keys/key_owner.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::control {
namespace {

bool is_letter_or_digit(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

std::string_view role_name(KeyRole role) noexcept {
  switch (role) {
    case KeyRole::kCoordinator:
      return "coordinator";
    case KeyRole::kPublisher:
      return "publisher";
    case KeyRole::kSidecar:
      return "sidecar";
    case KeyRole::kReader:
      return "reader";
    case KeyRole::kOperator:
      return "operator";
  }
  return "unknown";
}

Result<KeyRole> parse_role(std::string_view text) {
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(kLastKeyRole); ++i) {
    const auto role = static_cast<KeyRole>(i);
    if (role_name(role) == text) return role;
    names.push_back(role_name(role));
  }
  return fail(ErrorCode::kInvalidInput,
              fmt::format("role: expected one of {}, found '{}'", fmt::join(names, ", "), text));
}

const std::vector<KeyRole>& peer_roles() {
  static const std::vector<KeyRole> roles = {KeyRole::kPublisher, KeyRole::kSidecar,
                                             KeyRole::kReader, KeyRole::kOperator};
  return roles;
}

std::string KeyOwner::text() const { return fmt::format("{} {}", role_name(role), name); }

Result<> check_key_name(std::string_view name) {
  const bool good = !name.empty() && name.size() <= limits::kReplicaNameBytes &&
                    is_letter_or_digit(name.front()) && std::ranges::all_of(name, [](char c) {
                      return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-';
                    });
  if (!good)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("name of a key: expected 1 to {} letters, digits, '.', '_' and '-', "
                            "beginning with a letter or digit, found '{}'",
                            limits::kReplicaNameBytes, name));
  for (const std::string_view end : {".lock", ".new", ".old"})
    if (name.ends_with(end))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("name of a key: '{}' ends with {}, as files do that are being "
                              "written; choose another name",
                              name, end));
  return {};
}

}  // namespace wsync::control
