#include "shared/trace/recorder.h"

#include <algorithm>
#include <utility>

namespace wsync::trace {
namespace {

std::vector<Span> by_begin(std::vector<Span> spans) {
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return spans;
}

}  // namespace

std::string_view category_name(Category category) noexcept {
  switch (category) {
    case Category::kH2D:
      return "h2d";
    case Category::kBroadcast:
      return "broadcast";
    case Category::kReload:
      return "reload";
    case Category::kPause:
      return "pause";
    case Category::kStage:
      return "stage";
    case Category::kOther:
      return "other";
    case Category::kForward:
      return "forward";
    case Category::kBackward:
      return "backward";
    case Category::kExpertParallel:
      return "expert_parallel";
    case Category::kPipelineParallel:
      return "pipeline_parallel";
    case Category::kOffload:
      return "offload";
    case Category::kStep:
      return "step";
  }
  return "other";
}

void Recorder::record(Span span) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() >= max_spans_) {
    ++dropped_;
    return;
  }
  spans_.push_back(std::move(span));
}

std::vector<Span> Recorder::spans() const {
  const std::lock_guard lock(mutex_);
  return by_begin(spans_);
}

std::vector<Span> Recorder::take() {
  const std::lock_guard lock(mutex_);
  return by_begin(std::exchange(spans_, {}));
}

void Recorder::keep_newest(std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() <= count) return;
  spans_.erase(spans_.begin(), spans_.end() - static_cast<std::ptrdiff_t>(count));
}

std::uint64_t Recorder::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace wsync::trace
