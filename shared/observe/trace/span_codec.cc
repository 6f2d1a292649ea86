#include "shared/observe/trace/span_codec.h"

#include <algorithm>
#include <string_view>

#include "shared/base/limits.h"
#include "shared/observe/trace/limits.h"

static_assert(2 * wsync::limits::kTraceAnswerBytes <= wsync::limits::kMessageBytes,
              "an answer fits in a message");

namespace wsync::trace {
namespace {

// Lengths of name, lane and label; category; two times; number of arguments.
constexpr std::size_t kSpanBytesMin = 3 * 4 + 1 + 2 * 8 + 4;
constexpr std::size_t kArgBytesMin = 4 + 1 + 4;

std::string_view cut(std::string_view text) { return text.substr(0, limits::kTraceTextBytes); }

void encode(ByteWriter& writer, const Span& span) {
  writer.put_string(cut(span.name));
  writer.put_string(cut(span.lane));
  writer.put(span.category);
  writer.put(static_cast<std::int64_t>(span.begin));
  writer.put(static_cast<std::int64_t>(span.end));
  writer.put_string(cut(span.label));
  const std::size_t count = std::min<std::size_t>(span.args.size(), limits::kTraceArgs);
  writer.put(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    writer.put_string(cut(span.args[i].name));
    const auto* text = std::get_if<std::string>(&span.args[i].value);
    writer.put(static_cast<std::uint8_t>(text == nullptr ? 0 : 1));
    if (text != nullptr)
      writer.put_string(cut(*text));
    else
      writer.put(std::get<std::int64_t>(span.args[i].value));
  }
}

Span decode(ByteReader& reader) {
  Span span;
  span.name = reader.get_string(limits::kTraceTextBytes, "span name");
  span.lane = reader.get_string(limits::kTraceTextBytes, "lane");
  span.category = reader.get_enum(kLastCategory, "category");
  span.begin = TimePoint{reader.get<std::int64_t>("begin")};
  span.end = TimePoint{reader.get<std::int64_t>("end")};
  // Limits the times, so that their differences cannot overflow.
  constexpr std::int64_t kMax = std::int64_t{1} << 61U;
  if (span.begin < TimePoint{0} || span.end < span.begin || span.end > TimePoint{kMax})
    reader.violate("end", "a span must begin at a valid time and must not end before it");
  span.label = reader.get_string(limits::kTraceTextBytes, "label");
  const std::uint32_t count = reader.get_count(limits::kTraceArgs, kArgBytesMin, "arguments");
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    Arg& arg = span.args.emplace_back();
    arg.name = reader.get_string(limits::kTraceTextBytes, "argument name");
    if (reader.get_bool("argument kind"))
      arg.value = reader.get_string(limits::kTraceTextBytes, "argument");
    else
      arg.value = reader.get<std::int64_t>("argument");
  }
  return span;
}

}  // namespace

EncodedSpans encode_spans(const std::vector<Span>& spans, std::uint64_t max_bytes) {
  std::vector<Bytes> encoded;  // newest first
  std::uint64_t total = sizeof(std::uint32_t);
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    ByteWriter writer;
    encode(writer, *span);
    if (total + writer.size() > max_bytes || encoded.size() == limits::kTraceSpans) break;
    total += writer.size();
    encoded.push_back(std::move(writer).take());
  }
  ByteWriter all;
  all.buffer().reserve(total);
  all.put(static_cast<std::uint32_t>(encoded.size()));
  for (auto one = encoded.rbegin(); one != encoded.rend(); ++one) all.put_raw(*one);
  return {.bytes = std::move(all).take(), .left_out = spans.size() - encoded.size()};
}

EncodedSpans answer_spans(const Recorder& recorder, std::chrono::nanoseconds age,
                          std::uint64_t max_bytes, TimePoint at) {
  if (max_bytes == 0) return encode_spans({}, 0);
  // Most spans of a full ring buffer are older than requested, so they are filtered before they are
  // copied.
  EncodedSpans encoded =
      encode_spans(age.count() > 0 ? recorder.spans(at + -age) : recorder.spans(), max_bytes);
  encoded.left_out += recorder.dropped();
  return encoded;
}

Result<std::vector<Span>> decode_spans(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const std::uint32_t count = reader.get_count(limits::kTraceSpans, kSpanBytesMin, "spans");
  std::vector<Span> spans;
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) spans.push_back(decode(reader));
  WSYNC_TRY(reader.finish("spans of a trace"));
  return spans;
}

}  // namespace wsync::trace
