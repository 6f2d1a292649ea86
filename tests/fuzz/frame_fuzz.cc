// A byte stream is cut into the same frames however it arrives. The first byte chooses the chunks.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/check.h"
#include "shared/control/frame.h"

namespace {

using namespace wsync;

constexpr std::uint64_t kMessageBytes = 1U << 20U;

struct Cut {
  std::vector<Bytes> frames;  // encoded again
  std::optional<ErrorCode> error;
  friend bool operator==(const Cut&, const Cut&) = default;
};

Cut cut(std::span<const std::byte> bytes, std::size_t chunk) {
  control::FrameReader reader(kMessageBytes);
  Cut result;
  for (std::size_t at = 0; at < bytes.size() && !result.error; at += chunk) {
    const Result<> fed = reader.feed(bytes.subspan(at, std::min(chunk, bytes.size() - at)));
    if (!fed) result.error = fed.error().code();
    while (!result.error) {
      const Result<std::optional<control::Frame>> frame = reader.next();
      if (!frame) result.error = frame.error().code();
      if (!frame || !*frame) break;
      const Result<Bytes> encoded = control::encode((*frame)->envelope, (*frame)->message);
      WSYNC_CHECK(encoded.has_value(), "frames do not depend on how bytes arrive");
      result.frames.push_back(*encoded);
    }
  }
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const std::size_t chunk = std::size_t{data[0]} + 1;
  WSYNC_CHECK(cut(bytes, chunk) == cut(bytes, bytes.size() + 1),
              "frames do not depend on how bytes arrive");
  return 0;
}
