// FrameReader: splits a byte stream into frames. Pure: no socket, no thread.
//
// The caller reads into next() and reports with advance(). A payload is received directly at the
// place that the `Accept` function returns (in the staging arena). Its leaves are summed on the
// way, while the bytes are in the cache.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/transport/frame.h"
#include "shared/transport/tcp/leaf_summer.h"

namespace wsync::transport::tcp {

// A frame that has arrived completely.
struct ArrivedFrame {
  Frame frame;
  std::string text;           // failure: the reason
  std::vector<WordSum> sums;  // bucket and leaves: of the leaves that arrived
  Digest computed;            // bucket and leaves: bucket_digest(sums)
  Digest promised;            // bucket, leaves and changes: digest that the source sent
};

// Where a bucket, some of its leaves, or its changes go. Changes have no leaves.
struct PayloadPlace {
  std::span<std::byte> bytes;
  std::span<const LeafPlace> leaves;  // in it
  std::uint64_t arena_offset = 0;     // at which its first byte belongs
  std::span<const std::byte> arena;
};

class FrameReader {
 public:
  // Checks a header. For a bucket, for leaves and for changes it returns the destination of the
  // payload, frame.bytes long; for other types it is ignored. An error ends the stream.
  using Accept = std::function<Result<PayloadPlace>(const Frame&)>;
  explicit FrameReader(Accept accept) : accept_(std::move(accept)) {}

  // Returns the place for the next bytes of the stream; never empty.
  [[nodiscard]] std::span<std::byte> next() noexcept;
  // Reports that `n` bytes (at most next().size()) have been stored there. Returns a frame if one
  // is complete. After an error the reader must not be used again.
  [[nodiscard]] Result<std::optional<ArrivedFrame>> advance(std::size_t n);

 private:
  enum class Part : std::uint8_t { kHeader, kPayload, kTrailer, kText };
  Result<std::optional<ArrivedFrame>> header_complete();
  ArrivedFrame finish_frame();

  Accept accept_;
  Part part_ = Part::kHeader;
  std::size_t done_ = 0;  // bytes of the current part
  std::array<std::byte, kFrameBytes> header_{};
  std::array<std::byte, kTrailerBytes> trailer_{};
  std::span<std::byte> payload_;
  std::string text_;
  Frame frame_;
  LeafSummer summer_;
};

}  // namespace wsync::transport::tcp
