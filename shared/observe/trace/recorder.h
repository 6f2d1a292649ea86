// Spans: what ran when, on which lane. Recorded while an update runs, written afterwards as a
// Chrome trace (chrome_trace.h) or a picture (timeline.h).
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

// Decides the colour in the picture; kPause is drawn as a band over all lanes.
enum class Category : std::uint8_t {
  kH2D,
  kBroadcast,
  kReload,
  kPause,
  kStage,
  kOther,
  // Of a training step.
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
  std::string label;  // short text inside its cell, e.g. the source device's number; may be empty
  std::vector<Arg> args;
};

// The argument of that name, or nothing where there is none of this kind.
[[nodiscard]] std::optional<std::int64_t> number_arg(const Span& span, std::string_view name);
[[nodiscard]] std::string_view text_arg(const Span& span, std::string_view name);

// What a recorder does at its limit.
enum class WhenFull : std::uint8_t { kDropNewest, kDropOldest };

// Collects spans, up to a limit; what is dropped is counted. Any thread.
//
// A limit of 0 is a recorder that nobody wants spans of: who would make one asks wanted() first.
class Recorder {
 public:
  explicit Recorder(std::uint64_t max_spans = limits::kTraceSpans,
                    WhenFull when_full = WhenFull::kDropNewest)
      : max_spans_(max_spans), when_full_(when_full) {}
  [[nodiscard]] bool wanted() const noexcept { return max_spans_ > 0; }
  void record(Span span);
  // A copy of what has been recorded, by begin; of those only that ended at `since` or later.
  [[nodiscard]] std::vector<Span> spans(TimePoint since = kEver) const;
  // The same, and forgets it.
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
