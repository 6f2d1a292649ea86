// The checks of `wsync doctor` that are about keys, and about what is encrypted.
#include "deploy/cli/doctor_checks.h"
#include "shared/base/format.h"
#include "shared/config/address.h"
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

Check check_data_security(const config::NetworkConfig& network) {
  if (network.data_security == DataSecurity::kTrustedNetwork)
    return {"data", CheckStatus::kWarn,
            fmt::format("weights travel to other hosts without encryption, and who reaches {} can "
                        "ask for them (data_security: trusted_network)",
                        network.data_address),
            "leave data_security out unless nobody else is on this network", nullptr};
  return {"data", CheckStatus::kOk,
          config::is_beyond_this_host(network.data_address)
              ? fmt::format("weights are served at {} by TLS 1.3, with a key for each pair of ends",
                            network.data_address)
              : fmt::format("weights are served on this host only ({})", network.data_address),
          "", nullptr};
}

}  // namespace wsync::cli
