#include "shared/observe/trace/recorder.h"

#include <algorithm>
#include <iterator>
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

std::optional<std::int64_t> number_arg(const Span& span, std::string_view name) {
  for (const Arg& arg : span.args)
    if (const auto* value = std::get_if<std::int64_t>(&arg.value); value && arg.name == name)
      return *value;
  return std::nullopt;
}

std::string_view text_arg(const Span& span, std::string_view name) {
  for (const Arg& arg : span.args)
    if (const auto* value = std::get_if<std::string>(&arg.value); value && arg.name == name)
      return *value;
  return {};
}

std::optional<Category> category_named(std::string_view name) noexcept {
  for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(kLastCategory); ++i)
    if (name == category_name(Category{i})) return Category{i};
  return std::nullopt;
}

void Recorder::record(Span span) {
  if (!wanted()) return;
  const std::lock_guard lock(mutex_);
  if (spans_.size() >= max_spans_) {
    ++dropped_;
    if (when_full_ == WhenFull::kDropNewest || spans_.empty()) return;
    spans_.pop_front();
  }
  spans_.push_back(std::move(span));
}

std::vector<Span> Recorder::spans(TimePoint since) const {
  std::vector<Span> copy;
  {
    const std::lock_guard lock(mutex_);
    std::ranges::copy_if(spans_, std::back_inserter(copy),
                         [&](const Span& span) { return span.end >= since; });
  }
  return by_begin(std::move(copy));
}

std::vector<Span> Recorder::take() {
  // The lock is held only for the swap, so that sorting does not delay threads that record.
  std::deque<Span> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(spans_);
  }
  return by_begin({std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end())});
}

std::uint64_t Recorder::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace wsync::trace
