// Encodes spans as bytes for messages between processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::trace {

struct EncodedSpans {
  Bytes bytes;
  std::uint64_t left_out = 0;  // spans that did not fit
};
// Encodes the last spans that fit into `max_bytes`, in their original order. Texts are cut to
// limits::kTraceTextBytes and arguments beyond limits::kTraceArgs are dropped.
[[nodiscard]] EncodedSpans encode_spans(const std::vector<Span>& spans, std::uint64_t max_bytes);

// Builds the response to a trace request that arrived at time `at`: the spans that ended at most
// `age` ago (0: all). `left_out` also counts the spans that the recorder has dropped.
[[nodiscard]] EncodedSpans answer_spans(const Recorder& recorder, std::chrono::nanoseconds age,
                                        std::uint64_t max_bytes, TimePoint at);

// kInvalidInput names the field if the bytes are not a valid encoding or hold more than
// limits::kTraceSpans spans.
[[nodiscard]] Result<std::vector<Span>> decode_spans(std::span<const std::byte> bytes);

}  // namespace wsync::trace
