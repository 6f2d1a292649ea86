// Spans: what ran when, on which lane. Recorded while an update runs, written afterwards as a
// Chrome trace (chrome_trace.h) or a picture (timeline.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/limits.h"

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
[[nodiscard]] std::string_view category_name(Category category) noexcept;

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

// Collects spans, up to a limit; later ones are counted and dropped. Any thread.
class Recorder {
 public:
  explicit Recorder(std::uint64_t max_spans = limits::kTraceSpans) : max_spans_(max_spans) {}
  void record(Span span);
  // A copy of what has been recorded, by begin.
  [[nodiscard]] std::vector<Span> spans() const;
  // The same, and forgets it.
  [[nodiscard]] std::vector<Span> take();
  // Forgets all but the `count` spans recorded last, so that there is room for what comes.
  void keep_newest(std::uint64_t count);
  [[nodiscard]] std::uint64_t dropped() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::uint64_t max_spans_;
  std::uint64_t dropped_ = 0;
};

}  // namespace wsync::trace
