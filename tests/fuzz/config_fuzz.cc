// Any text either makes a config that reads the same twice, or one error of bad input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "shared/base/check.h"
#include "shared/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wsync;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto sidecar = config::parse_sidecar(text, "fuzz");
  const auto again = config::parse_sidecar(text, "fuzz");
  const auto trainer = config::parse_trainer(text, "fuzz");
  WSYNC_CHECK(sidecar.has_value() == again.has_value(),
              "a config reads the same twice, and fails as bad input only");
  if (sidecar)
    WSYNC_CHECK(*sidecar == *again, "a config reads the same twice, and fails as bad input only");
  else
    WSYNC_CHECK(sidecar.error().code() == ErrorCode::kInvalidInput,
                "a config reads the same twice, and fails as bad input only");
  if (!trainer)
    WSYNC_CHECK(trainer.error().code() == ErrorCode::kInvalidInput,
                "a config reads the same twice, and fails as bad input only");
  return 0;
}
