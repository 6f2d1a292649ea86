// Any bytes are either one message, which encodes to the same bytes, or one error.
#include <algorithm>
#include <cstdint>
#include <span>

#include "shared/base/check.h"
#include "shared/control/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace wsync;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const Result<control::Decoded> decoded = control::decode(bytes);
  if (!decoded) {
    const ErrorCode code = decoded.error().code();
    WSYNC_CHECK(code == ErrorCode::kInvalidInput || code == ErrorCode::kRefused,
                "a message encodes to the bytes it came from");
    return 0;
  }
  WSYNC_CHECK(control::decode_envelope(bytes).has_value(),
              "a message encodes to the bytes it came from");
  const Result<Bytes> encoded = control::encode(decoded->envelope, decoded->message);
  WSYNC_CHECK(encoded.has_value(), "a message encodes to the bytes it came from");
  WSYNC_CHECK(std::ranges::equal(*encoded, bytes), "a message encodes to the bytes it came from");
  return 0;
}
