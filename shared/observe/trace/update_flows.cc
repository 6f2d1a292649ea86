#include "shared/observe/trace/update_flows.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "shared/base/format.h"

namespace wsync::trace {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(kLastStage) + 1> kStageNames = {
    "snapshot", "receive", "h2d", "broadcast", "reload", "load"};

// A part of an update, read from the arguments of a span.
struct Part {
  FlowStep place;
  std::int64_t offset = 0;
  std::int64_t end = 0;
  TimePoint begin{};
};

// All parts of one stage of one version in one process.
class Parts {
 public:
  void add(const Part& part) {
    parts_.emplace(part.offset, part);
    longest_ = std::max(longest_, part.end - part.offset);
  }
  // Returns the parts that overlap [offset, end). For each offset, returns the last part that
  // begins at or before `until`.
  [[nodiscard]] std::vector<Part> of(std::int64_t offset, std::int64_t end, TimePoint until) const {
    std::vector<Part> found;
    for (auto it = parts_.lower_bound(offset - longest_); it != parts_.end() && it->first < end;
         ++it) {
      const Part& part = it->second;
      if (part.end <= offset || part.begin > until) continue;
      if (found.empty() || found.back().offset != part.offset)
        found.push_back(part);
      else if (part.begin >= found.back().begin)
        found.back() = part;
    }
    return found;
  }

 private:
  std::multimap<std::int64_t, Part> parts_;
  std::int64_t longest_ = 0;
};

// A flow under construction, followed backwards from its last span.
struct Chain {
  std::int64_t offset = 0;
  std::int64_t end = 0;
  TimePoint begin{};
  std::vector<FlowStep> steps;  // last step first
};

class Linker {
 public:
  explicit Linker(const std::vector<ProcessTrace>& processes) : processes_(processes) {
    for (std::size_t p = 0; p < processes_.size(); ++p)
      for (std::size_t s = 0; s < processes_[p].spans.size(); ++s) index({.process = p, .span = s});
  }

  std::vector<Flow> link(std::uint64_t max, std::uint64_t& left_out) const {
    std::vector<Flow> flows;
    for (const FlowStep& end : ends_)
      for (const Chain& chain : traced_back(end)) {
        if (chain.steps.size() < 2) continue;
        if (flows.size() == max) {
          ++left_out;
          continue;
        }
        flows.push_back(
            {.name = name_of(chain), .steps = {chain.steps.rbegin(), chain.steps.rend()}});
      }
    return flows;
  }

 private:
  // Snapshots are made by the trainer, so they are searched in all processes.
  static constexpr std::size_t kAnyProcess = ~std::size_t{0};
  using Key = std::tuple<std::size_t, Stage, std::string_view>;  // process, stage, version

  [[nodiscard]] const Span& span(const FlowStep& step) const {
    return processes_[step.process].spans[step.span];
  }
  void index(const FlowStep& place) {
    const Span& s = span(place);
    const std::optional<Stage> stage = stage_of(s);
    const std::string_view version = text_arg(s, "version");
    const auto offset = number_arg(s, "offset");
    const auto bytes = number_arg(s, "bytes");
    constexpr std::int64_t kMax = std::int64_t{1} << 61U;
    if (!stage || !offset || !bytes || *offset < 0 || *offset > kMax || *bytes < 1 || *bytes > kMax)
      return;
    if (*stage == Stage::kReload || *stage == Stage::kLoad) {
      ends_.push_back(place);
      return;
    }
    parts_[Key{*stage == Stage::kSnapshot ? kAnyProcess : place.process, *stage, version}].add(
        {.place = place, .offset = *offset, .end = *offset + *bytes, .begin = s.begin});
  }
  [[nodiscard]] std::chrono::nanoseconds uncertainty(std::size_t process) const {
    const auto& clock = processes_[process].clock;
    return clock ? clock->uncertainty : std::chrono::nanoseconds(0);
  }

  [[nodiscard]] std::vector<Chain> traced_back(const FlowStep& end) const {
    const Span& last = span(end);
    const std::int64_t offset = *number_arg(last, "offset");
    std::vector<Chain> chains = {{.offset = offset,
                                  .end = offset + *number_arg(last, "bytes"),
                                  .begin = last.begin,
                                  .steps = {end}}};
    for (const Stage stage : {Stage::kBroadcast, Stage::kH2D, Stage::kReceive, Stage::kSnapshot}) {
      const bool devices = stage == Stage::kBroadcast || stage == Stage::kH2D;
      if (devices && stage_of(last) == Stage::kLoad) continue;
      const bool anywhere = stage == Stage::kSnapshot;
      const auto parts =
          parts_.find(Key{anywhere ? kAnyProcess : end.process, stage, text_arg(last, "version")});
      if (parts == parts_.end()) continue;
      const auto tolerance = anywhere ? 2 * uncertainty(end.process) : std::chrono::nanoseconds(0);
      std::vector<Chain> longer;
      for (Chain& chain : chains) extend(chain, parts->second, tolerance, longer);
      chains = std::move(longer);
    }
    return chains;
  }
  static void extend(Chain& chain, const Parts& parts, std::chrono::nanoseconds tolerance,
                     std::vector<Chain>& longer) {
    const std::vector<Part> found = parts.of(chain.offset, chain.end, chain.begin + tolerance);
    if (found.empty()) longer.push_back(std::move(chain));
    for (const Part& part : found) {
      Chain& next = longer.emplace_back(chain);
      next.offset = std::max(chain.offset, part.offset);
      next.end = std::min(chain.end, part.end);
      next.begin = part.begin;
      next.steps.push_back(part.place);
    }
  }

  [[nodiscard]] std::string name_of(const Chain& chain) const {
    const Span& last = span(chain.steps.front());
    const auto bucket = [&]() -> std::int64_t {
      for (const FlowStep& step : chain.steps)
        if (const auto number = number_arg(span(step), "bucket")) return *number;
      return 0;
    }();
    return fmt::format("{} bucket {} to {}", text_arg(last, "version"), bucket,
                       text_arg(last, "engine"));
  }

  const std::vector<ProcessTrace>& processes_;
  std::map<Key, Parts> parts_;
  std::vector<FlowStep> ends_;
};

}  // namespace

std::string_view stage_name(Stage stage) noexcept {
  return kStageNames[static_cast<std::size_t>(stage)];
}

std::vector<Arg> stage_args(Stage stage, const PartOfVersion& part) {
  std::vector<Arg> args;
  args.reserve(6);  // one more for an argument that the caller adds
  args.push_back({.name = "stage", .value = std::string(stage_name(stage))});
  args.push_back({.name = "version", .value = part.version});
  if (part.bucket)
    args.push_back({.name = "bucket", .value = static_cast<std::int64_t>(*part.bucket)});
  args.push_back({.name = "offset", .value = static_cast<std::int64_t>(part.offset)});
  args.push_back({.name = "bytes", .value = static_cast<std::int64_t>(part.bytes)});
  return args;
}

std::optional<Stage> stage_of(const Span& span) {
  const std::string_view name = text_arg(span, "stage");
  const auto found = std::find(kStageNames.begin(), kStageNames.end(), name);
  if (found == kStageNames.end()) return std::nullopt;
  return static_cast<Stage>(found - kStageNames.begin());
}

std::vector<Flow> update_flows(const std::vector<ProcessTrace>& processes, std::uint64_t max,
                               std::uint64_t* left_out) {
  std::uint64_t others = 0;
  std::vector<Flow> flows = Linker(processes).link(max, others);
  if (left_out != nullptr) *left_out = others;
  return flows;
}

}  // namespace wsync::trace
