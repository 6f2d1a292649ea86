// Spans: timed activities on named lanes. They are recorded while an update runs, and written later
// as a Chrome trace (chrome_trace.h) or as a picture (timeline.h).
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/observe/trace/limits.h"

namespace wsync::trace {

// Selects the colour in pictures. kPause is drawn as a band over all lanes.
enum class Category : std::uint8_t {
  kH2D,
  kBroadcast,
  kReload,
  kPause,
  kStage,
  kOther,
  // Categories of a training step:
  kForward,
  kBackward,
  kExpertParallel,
  kPipelineParallel,
  kOffload,
  kStep,
};
inline constexpr Category kLastCategory = Category::kStep;
[[nodiscard]] std::string_view category_name(Category category) noexcept;
[[nodiscard]] std::optional<Category> category_named(std::string_view name) noexcept;

struct Arg {
  std::string name;
  std::variant<std::int64_t, std::string> value;
};

struct Span {
  std::string name;  // "broadcast of bucket 3"
  std::string lane;  // "IPC 0"
  Category category = Category::kOther;
  TimePoint begin{};
  TimePoint end{};
  std::string label;  // short text inside the cell, e.g. device number; may be empty
  std::vector<Arg> args;
};

// Returns the argument of this name; std::nullopt (empty text) if there is none of this type.
[[nodiscard]] std::optional<std::int64_t> number_arg(const Span& span, std::string_view name);
[[nodiscard]] std::string_view text_arg(const Span& span, std::string_view name);

// Behaviour of a recorder at its limit.
enum class WhenFull : std::uint8_t { kDropNewest, kDropOldest };

// Collects spans up to a limit and counts dropped spans. Thread: any.
//
// A limit of 0 disables the recorder. Callers check wanted() before they build a span.
class Recorder {
 public:
  explicit Recorder(std::uint64_t max_spans = limits::kTraceSpans,
                    WhenFull when_full = WhenFull::kDropNewest)
      : max_spans_(max_spans), when_full_(when_full) {}
  [[nodiscard]] bool wanted() const noexcept { return max_spans_ > 0; }
  void record(Span span);
  // Returns a copy of the recorded spans, sorted by begin. Only spans that ended at or after
  // `since` are included.
  [[nodiscard]] std::vector<Span> spans(TimePoint since = kEver) const;
  // Returns all recorded spans, sorted by begin, and clears the recorder.
  [[nodiscard]] std::vector<Span> take();
  [[nodiscard]] std::uint64_t dropped() const;

 private:
  static constexpr TimePoint kEver{std::numeric_limits<std::int64_t>::min()};
  mutable std::mutex mutex_;
  std::deque<Span> spans_;
  std::uint64_t max_spans_;
  WhenFull when_full_;
  std::uint64_t dropped_ = 0;
};

}  // namespace wsync::trace
