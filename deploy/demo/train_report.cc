#include "deploy/demo/train_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace wsync::cli {
namespace {

constexpr std::size_t kRows = 12;

}  // namespace

std::uint64_t TrainReport::committed() const {
  return static_cast<std::uint64_t>(std::count_if(
      steps.begin(), steps.end(), [](const auto& step) { return step.state == "committed"; }));
}

double TrainReport::staged_seconds_median() const {
  if (steps.empty()) return 0;
  std::vector<double> staged;
  for (const TrainedStep& step : steps) staged.push_back(step.staged_seconds);
  const auto middle = staged.begin() + static_cast<std::ptrdiff_t>(staged.size() / 2);
  std::nth_element(staged.begin(), middle, staged.end());
  return *middle;
}

double TrainReport::paused_seconds_max() const {
  double max = 0;
  for (const TrainedStep& step : steps) max = std::max(max, step.paused_seconds);
  return max;
}

double TrainReport::waited_share() const {
  double waited = 0;
  double taken = 0;
  for (const TrainedStep& step : steps) {
    waited += step.snapshot_seconds;
    taken += step.seconds;
  }
  return taken > 0 ? waited / taken : 0;
}

std::string train_text(const TrainReport& report) {
  std::string text = fmt::format("\n{:>6}  {:>7}  {:>8}  {:<9}{:>10}{:>11}\n", "step", "loss",
                                 "step ms", "version", "staged ms", "paused ms");
  for (const std::size_t row : sampled_rows(report.steps.size(), kRows)) {
    const TrainedStep& step = report.steps[row];
    text += fmt::format("{:>6}  {:>7.4f}  {:>8.1f}  {:<9}{:>10.1f}{:>11.1f}\n", step.step,
                        step.loss, step.seconds * 1e3, step.version, step.staged_seconds * 1e3,
                        step.paused_seconds * 1e3);
  }
  const StepCounts counts = steps_of(report.engines);
  text += fmt::format(
      "\npublished:  {} steps, {} of them served by every engine, {} each in bf16\n"
      "staged:     {:.1f} ms (median); engines paused {:.1f} ms at most\n"
      "training:   waited {:.3f}% of its step time for snapshots\n"
      "verified:   {} versions read back from the engines, {} in all, every tensor equal\n"
      "last one:   content digest {}, that of the saved state in bf16\n"
      "torn steps: {} of {}\n",
      report.steps.size(), report.committed(), human_bytes(report.bytes),
      report.staged_seconds_median() * 1e3, report.paused_seconds_max() * 1e3,
      report.waited_share() * 100, report.verified.size(), human_bytes(report.verified_bytes),
      report.exported_digest, counts.torn, counts.steps);
  return text + ending_text(report.picture, report.trace, report.elapsed_s);
}

nlohmann::json train_json(const TrainReport& report) {
  const TrainedStep last = report.steps.empty() ? TrainedStep{} : report.steps.back();
  return {{"training", report.training},
          {"bytes", report.bytes},
          {"published", report.steps.size()},
          {"committed", report.committed()},
          {"staged_seconds_median", report.staged_seconds_median()},
          {"paused_seconds_most", report.paused_seconds_max()},
          {"snapshot_wait_share", report.waited_share()},
          {"verified", report.verified},
          {"verified_bytes", report.verified_bytes},
          {"last",
           {{"version", last.version},
            {"content_digest", last.content_digest},
            {"saved_content_digest", report.exported_digest}}},
          {"engines", engines_json(report.engines)},
          {"torn", steps_of(report.engines).torn},
          {"picture", report.picture},
          {"trace", report.trace},
          {"elapsed_ms", static_cast<std::uint64_t>(report.elapsed_s * 1000)}};
}

}  // namespace wsync::cli
