// The check of `wsync doctor` that is about keys.
#include "deploy/cli/doctor_checks.h"
#include "shared/base/format.h"
#include "shared/control/keys/key_folder.h"

namespace wsync::cli {
namespace {

constexpr const char* kKeysCheck = "keys";

Check failed_keys(const Error& error) {
  return {kKeysCheck, CheckStatus::kFail, error.message(), "see deploy/guides/security.md"};
}

}  // namespace

Check check_key_folder(const std::string& folder) {
  if (folder.empty())
    return {kKeysCheck, CheckStatus::kOk,
            "keys is empty: who reaches the control address is admitted, and may do everything",
            ""};
  const auto opened = control::KeyFolder::open(folder);
  if (!opened) return failed_keys(opened.error());
  const auto listed = opened->authorized();
  if (!listed) return failed_keys(listed.error());
  return {kKeysCheck, CheckStatus::kOk,
          fmt::format("the control port has keys: {} listed in {}", counted(listed->size(), "key"),
                      folder),
          ""};
}

Check check_sidecar_key(const std::string& file, const std::string& name) {
  if (file.empty())
    return {kKeysCheck, CheckStatus::kOk, "key is empty: the coordinator must have no keys", ""};
  const auto key = control::load_key_file(file);
  if (!key) return failed_keys(key.error());
  if (key->owner != control::KeyOwner{.role = control::KeyRole::kSidecar, .name = name})
    return {
        kKeysCheck, CheckStatus::kFail,
        fmt::format("{} has the key of {}, and this is sidecar {}", file, key->owner.text(), name),
        fmt::format("make a key with `wsync keys add sidecar {}`, or set `name`", name)};
  return {kKeysCheck, CheckStatus::kOk,
          fmt::format("{} has the key of {}", file, key->owner.text()), ""};
}

}  // namespace wsync::cli
