// Spans as bytes, for messages between processes.
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
  std::uint64_t left_out = 0;  // there was no room for them
};
// The last ones of `spans` that fit into `max_bytes`, in their order. Texts longer
// than limits::kTraceTextBytes are cut, arguments over limits::kTraceArgs left out.
[[nodiscard]] EncodedSpans encode_spans(const std::vector<Span>& spans, std::uint64_t max_bytes);

// What a process answers that is asked for its trace at `at`: the spans that ended no longer than
// `age` ago (0: all). `left_out` counts those that the recorder has dropped as well.
[[nodiscard]] EncodedSpans answer_spans(const Recorder& recorder, std::chrono::nanoseconds age,
                                        std::uint64_t max_bytes, TimePoint at);

// kInvalidInput, naming the field: anything else than such bytes, or more than limits::kTraceSpans.
[[nodiscard]] Result<std::vector<Span>> decode_spans(std::span<const std::byte> bytes);

}  // namespace wsync::trace
