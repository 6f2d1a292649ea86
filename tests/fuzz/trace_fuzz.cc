// Any bytes are a trace, which is written and read again as the same spans, or one error; the same
// bytes as encoded spans decode to spans of the same encoding, or one error.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "shared/base/check.h"
#include "shared/observe/trace/chrome_trace_reader.h"
#include "shared/observe/trace/span_codec.h"
#include "shared/observe/trace/update_flows.h"

namespace {

using namespace wsync;

std::size_t spans_in(const std::vector<trace::ProcessTrace>& processes) {
  std::size_t count = 0;
  for (const trace::ProcessTrace& process : processes) count += process.spans.size();
  return count;
}

void check_text(std::string_view text) {
  const trace::ReadLimits limits{.bytes = 1U << 20U, .events = 4096, .depth = 16};
  auto first = trace::parse_chrome_trace(text, limits);
  if (!first) {
    WSYNC_CHECK(first.error().code() == ErrorCode::kInvalidInput, "what is no trace is bad input");
    return;
  }
  const auto second = trace::parse_chrome_trace(trace::chrome_trace_json(*first));
  WSYNC_CHECK(second.has_value(), "what is written can be read");
  WSYNC_CHECK(spans_in(*second) == spans_in(*first), "no span is lost");
  (void)trace::update_flows(*first, 1000);
}

void check_spans(std::span<const std::byte> bytes) {
  const auto spans = trace::decode_spans(bytes);
  if (!spans) return;
  const auto encoded = trace::encode_spans(*spans, bytes.size());
  WSYNC_CHECK(encoded.left_out == 0 && std::ranges::equal(encoded.bytes, bytes),
              "spans encode to the bytes they came from");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_text({reinterpret_cast<const char*>(data), size});
  check_spans(std::as_bytes(std::span(data, size)));
  return 0;
}
