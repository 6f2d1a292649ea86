#include "shared/transport/tcp/frame_reader.h"

#include <utility>

#include "shared/base/check.h"

namespace wsync::transport::tcp {
namespace {

bool has_payload(const Frame& frame) {
  return frame.type == FrameType::kBucket || frame.type == FrameType::kLeaves ||
         frame.type == FrameType::kChanges;
}

}  // namespace

std::span<std::byte> FrameReader::next() noexcept {
  switch (part_) {
    case Part::kHeader:
      return std::span(header_).subspan(done_);
    case Part::kPayload:
      return payload_.subspan(done_);
    case Part::kTrailer:
      return std::span(trailer_).subspan(done_);
    case Part::kText:
      return std::as_writable_bytes(std::span(text_)).subspan(done_);
  }
  return {};
}

Result<std::optional<ArrivedFrame>> FrameReader::advance(std::size_t n) {
  const std::span<std::byte> arrived = next();
  WSYNC_CHECK(n <= arrived.size(), "more bytes reported than asked for");
  done_ += n;
  if (part_ == Part::kPayload) summer_.advance(done_);
  if (n < arrived.size()) return std::nullopt;
  done_ = 0;
  switch (part_) {
    case Part::kHeader:
      return header_complete();
    case Part::kPayload:
      part_ = Part::kTrailer;
      return std::nullopt;
    case Part::kTrailer:
    case Part::kText:
      return finish_frame();
  }
  return std::nullopt;
}

Result<std::optional<ArrivedFrame>> FrameReader::header_complete() {
  auto frame = WSYNC_TRY(decode_frame(header_));
  frame_ = frame;
  auto destination = WSYNC_TRY(accept_(frame_));
  if (has_payload(frame_)) {
    WSYNC_CHECK(destination.bytes.size() == frame_.bytes, "a bucket goes where it fits exactly");
    payload_ = destination.bytes;
    summer_ = LeafSummer(destination.leaves, destination.arena_offset, destination.arena);
    part_ = payload_.empty() ? Part::kTrailer : Part::kPayload;
    return std::nullopt;
  }
  if (frame_.type == FrameType::kFailure && frame_.bytes != 0) {
    text_.assign(frame_.bytes, '\0');
    part_ = Part::kText;
    return std::nullopt;
  }
  return finish_frame();
}

ArrivedFrame FrameReader::finish_frame() {
  ArrivedFrame arrived{.frame = frame_, .text = std::exchange(text_, {})};
  if (has_payload(frame_)) {
    arrived.sums = summer_.take();
    arrived.computed = bucket_digest(arrived.sums);
    arrived.promised = decode_trailer(trailer_);
  }
  payload_ = {};
  part_ = Part::kHeader;
  return arrived;
}

}  // namespace wsync::transport::tcp
