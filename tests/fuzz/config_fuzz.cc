// Any text either makes a config that reads the same twice, or one error of bad input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "shared/base/check.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/train_config.h"
#include "shared/config/trainer_config.h"

namespace {

template <class Parse>
void check(const Parse& parse, std::string_view text) {
  const auto config = parse(text, "fuzz", {});
  const auto again = parse(text, "fuzz", {});
  WSYNC_CHECK(config ? again && *config == *again
                     : !again && config.error().code() == wsync::ErrorCode::kInvalidInput,
              "a config reads the same twice, and fails as bad input only");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wsync::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(parse_sidecar, text);
  check(parse_trainer, text);
  check(parse_train, text);
  return 0;
}
