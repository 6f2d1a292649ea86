// Any bytes as a key file and as one public key: what is accepted is written again alike.
#include <cstdint>
#include <string_view>

#include "shared/base/check.h"
#include "shared/control/keys/authorized_keys.h"
#include "shared/control/keys/key_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wsync::control;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto key = parse_key_file(text, "x")) {
    WSYNC_CHECK(key_file_text(*key) == text, "a key file is written again alike");
    WSYNC_CHECK(check_key_name(key->owner.name).has_value(), "its name is that of a key");
  }
  AuthorizedKeys keys;
  const bool is_listed = keys.add({.role = KeyRole::kReader, .name = "eve"}, text).has_value();
  WSYNC_CHECK(is_listed == decode_key(text).has_value(), "what is a key can be listed");
  WSYNC_CHECK((keys.find(text) != nullptr) == is_listed, "what is listed is found");
  return 0;
}
