// Any stream of the TCP data transport, cut anywhere: the frames and the refusal do not depend on
// the cuts, a header that is accepted has one encoding, and no byte lands outside of the arena. The
// first byte says how the rest is cut.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "shared/base/check.h"
#include "shared/transport/tcp/frame_reader.h"

namespace {

using wsync::Bytes;
using wsync::Result;
using wsync::transport::Frame;
using wsync::transport::tcp::ArrivedFrame;
using wsync::transport::tcp::FrameReader;
using wsync::transport::tcp::PayloadPlace;

constexpr std::size_t kArenaBytes = 1024;
constexpr std::byte kGuard{0xA5};

struct Outcome {
  std::vector<ArrivedFrame> frames;
  Bytes arena = Bytes(2 * kArenaBytes, kGuard);  // the second half is never written
  bool refused = false;
};

Outcome read(std::span<const std::byte> stream, std::size_t piece) {
  Outcome outcome;
  // A leaf in the middle of the arena, if the bucket has room for it.
  static const std::vector<wsync::LeafPlace> leaves = {
      {.arena_offset = 16, .bytes = 45, .place = {.seed = 3, .position = 8}, .tensor = 0}};
  FrameReader reader([&](const Frame& frame) -> Result<PayloadPlace> {
    if (frame.bytes > kArenaBytes)
      return wsync::fail(wsync::ErrorCode::kInvalidInput, "larger than the arena");
    const auto bytes = std::span(outcome.arena).first(frame.bytes);
    return PayloadPlace{.bytes = bytes,
                        .leaves = frame.bytes >= 61 ? std::span<const wsync::LeafPlace>(leaves)
                                                    : std::span<const wsync::LeafPlace>(),
                        .arena_offset = 0,
                        .arena = outcome.arena};
  });
  while (!stream.empty()) {
    const auto room = reader.next();
    WSYNC_CHECK(!room.empty(), "there is always room for the next byte");
    const std::size_t n = std::min({piece, room.size(), stream.size()});
    std::memcpy(room.data(), stream.data(), n);
    stream = stream.subspan(n);
    auto arrived = reader.advance(n);
    if (!arrived) {
      outcome.refused = true;
      break;
    }
    if (*arrived) outcome.frames.push_back(std::move(**arrived));
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto stream = std::as_bytes(std::span(data, size)).subspan(1);
  const Outcome whole = read(stream, stream.size());
  const Outcome cut = read(stream, 1U + data[0]);
  WSYNC_CHECK(whole.refused == cut.refused && whole.frames.size() == cut.frames.size() &&
                  whole.arena == cut.arena,
              "what arrives does not depend on how it is cut");
  WSYNC_CHECK(std::all_of(whole.arena.begin() + kArenaBytes, whole.arena.end(),
                          [](std::byte byte) { return byte == kGuard; }),
              "a payload stays where it was sent");
  for (std::size_t i = 0; i < whole.frames.size(); ++i) {
    const auto& frame = whole.frames[i].frame;
    const auto again = wsync::transport::decode_frame(wsync::transport::encode_frame(frame));
    WSYNC_CHECK(again.has_value() && again->key == frame.key && again->bytes == frame.bytes,
                "an accepted header has one meaning");
    WSYNC_CHECK(whole.frames[i].text == cut.frames[i].text &&
                    whole.frames[i].computed == cut.frames[i].computed,
                "text and digest do not depend on the cuts");
  }
  return 0;
}
