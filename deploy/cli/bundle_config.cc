#include "deploy/cli/bundle_config.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "shared/base/format.h"
#include "shared/config/binder.h"
#include "shared/config/document.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/train_config.h"
#include "shared/config/trainer_config.h"

namespace wsync::cli {
namespace {

constexpr std::string_view kWithheld = "(withheld)";
// Words that mark a value as secret if they occur in the last component of a key.
constexpr std::array<std::string_view, 8> kSecretWords = {
    "secret", "password", "passwd", "passphrase", "credential", "credentials", "private", "auth"};

std::set<std::string> known_keys() {
  std::set<std::string> keys;
  for (const auto& role : {config::sidecar_keys(), config::trainer_keys(), config::train_keys()})
    keys.insert(role.begin(), role.end());
  return keys;
}

// Returns true if the key's name marks its value as secret. No key of wsync is secret today; this
// protects keys of future versions.
bool names_a_secret(std::string_view key) {
  std::string_view rest = key.substr(key.find_last_of('.') + 1);
  std::string_view word;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('_'), rest.size());
    word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (std::find(kSecretWords.begin(), kSecretWords.end(), word) != kSecretWords.end())
      return true;
  }
  return word == "key" || word == "token";
}

}  // namespace

std::string without_credentials(std::string_view value) {
  std::string result;
  while (!value.empty()) {
    const std::size_t scheme = value.find("://");
    if (scheme == std::string_view::npos) break;
    result += value.substr(0, scheme + 3);
    value.remove_prefix(scheme + 3);
    const std::size_t end = std::min(value.find_first_of(" ,"), value.size());
    std::string_view url = value.substr(0, end);
    value.remove_prefix(end);
    const std::size_t host_end = std::min(url.find_first_of("/?#"), url.size());
    if (const std::size_t at = url.substr(0, host_end).find_last_of('@');
        at != std::string_view::npos) {
      result += kWithheld;
      result += '@';
      url.remove_prefix(at + 1);
    }
    const std::size_t query = std::min(url.find_first_of("?#"), url.size());
    result += url.substr(0, query);
    if (query < url.size()) result += fmt::format("?{}", kWithheld);
  }
  return result + std::string(value);
}

Result<ShownConfig> shown_config(std::string_view text, std::string_view name) {
  const std::set<std::string> known = known_keys();
  const auto entries = config::parse_document(text, name, known);
  if (!entries)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{}: wsync cannot read this configuration; `wsync doctor -c FILE` prints the reason",
            name));
  ShownConfig shown;
  for (const config::Entry& entry : *entries) {
    if (entry.section) {
      shown.text += entry.key + ": {}\n";
      continue;
    }
    shown.values[entry.key] = entry.value;
    if (!known.contains(entry.key))
      shown.text += fmt::format("{}: {}  # not a key of wsync\n", entry.key, kWithheld);
    else
      shown.text += fmt::format(
          "{}: {}\n", entry.key,
          names_a_secret(entry.key) ? std::string(kWithheld) : without_credentials(entry.value));
  }
  return shown;
}

std::string shown_environment(const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::string> keys;
  for (const std::string& key : known_keys()) keys[config::environment_name(key)] = key;
  std::string text;
  for (const auto& [name, value] : variables) {
    const auto key = keys.find(name);
    if (key == keys.end())
      text += fmt::format("{}={}  # not a key of wsync\n", name, kWithheld);
    else
      text += fmt::format(
          "{}={}\n", name,
          names_a_secret(key->second) ? std::string(kWithheld) : without_credentials(value));
  }
  return text;
}

}  // namespace wsync::cli
