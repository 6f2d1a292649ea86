// The report of `wsync demo --train`: a table for people, an object for --json.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "deploy/demo/train.h"
#include "shared/base/format.h"
#include "shared/command/context.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kStepsTold = 12;

TrainedStep trained_step(const json& step) {
  return {.step = step.at("step"),
          .loss = step.at("loss"),
          .seconds = step.at("seconds"),
          .waited_seconds = step.at("snapshot_wait_seconds"),
          .state = {},
          .version = {},
          .content_digest = {}};
}

void add_publish(const json& publish, TrainedStep& step) {
  step.state = publish.at("state");
  step.version = publish.at("version");
  step.content_digest = publish.at("content_digest");
  step.staged_seconds = publish.at("staged_seconds");
  step.paused_seconds = publish.at("paused_seconds");
}

}  // namespace

Result<std::vector<TrainedStep>> trained_steps(const json& result) {
  try {
    std::vector<TrainedStep> steps;
    for (const json& step : result.at("steps")) steps.push_back(trained_step(step));
    for (const json& publish : result.at("publishes")) {
      const std::uint64_t number = publish.at("step");
      const auto step = std::find_if(steps.begin(), steps.end(),
                                     [number](const TrainedStep& s) { return s.step == number; });
      if (step != steps.end()) add_publish(publish, *step);
    }
    return steps;
  } catch (const json::exception& error) {
    return fail(ErrorCode::kInternal, fmt::format("the result of `wsync train`: {}", error.what()));
  }
}

std::uint64_t TrainDemoReport::torn() const {
  return std::accumulate(engines.begin(), engines.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const EngineResult& e) { return sum + e.torn; });
}

std::uint64_t TrainDemoReport::engine_steps() const {
  return std::accumulate(engines.begin(), engines.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const EngineResult& e) { return sum + e.steps; });
}

std::uint64_t TrainDemoReport::committed() const {
  return static_cast<std::uint64_t>(
      std::count_if(steps.begin(), steps.end(),
                    [](const TrainedStep& step) { return step.state == "committed"; }));
}

double TrainDemoReport::staged_seconds_median() const {
  if (steps.empty()) return 0;
  std::vector<double> staged;
  for (const TrainedStep& step : steps) staged.push_back(step.staged_seconds);
  const auto middle = staged.begin() + static_cast<std::ptrdiff_t>(staged.size() / 2);
  std::nth_element(staged.begin(), middle, staged.end());
  return *middle;
}

double TrainDemoReport::paused_seconds_most() const {
  double most = 0;
  for (const TrainedStep& step : steps) most = std::max(most, step.paused_seconds);
  return most;
}

double TrainDemoReport::waited_share() const {
  double waited = 0;
  double taken = 0;
  for (const TrainedStep& step : steps) {
    waited += step.waited_seconds;
    taken += step.seconds;
  }
  return taken > 0 ? waited / taken : 0;
}

std::string train_demo_text(const TrainDemoReport& report) {
  std::string text = fmt::format("\n{:>6}  {:>7}  {:>8}  {:<9}{:>10}{:>11}\n", "step", "loss",
                                 "step ms", "version", "staged ms", "paused ms");
  const std::size_t rows = std::min(report.steps.size(), kStepsTold);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t index = rows == 1 ? 0 : row * (report.steps.size() - 1) / (rows - 1);
    const TrainedStep& step = report.steps[index];
    text += fmt::format("{:>6}  {:>7.4f}  {:>8.1f}  {:<9}{:>10.1f}{:>11.1f}\n", step.step,
                        step.loss, step.seconds * 1e3, step.version, step.staged_seconds * 1e3,
                        step.paused_seconds * 1e3);
  }
  text += fmt::format(
      "\npublished:  {} steps, {} of them served by every engine, {} each in bf16\n"
      "staged:     {:.1f} ms (median); engines paused {:.1f} ms at most\n"
      "training:   waited {:.3f}% of its step time for snapshots\n"
      "verified:   {} versions read back from the engines, {} in all, every tensor equal\n"
      "last one:   content digest {}, that of the saved state in bf16\n"
      "torn steps: {} of {}\n",
      report.steps.size(), report.committed(), human_bytes(report.bytes),
      report.staged_seconds_median() * 1e3, report.paused_seconds_most() * 1e3,
      report.waited_share() * 100, report.verified.size(), human_bytes(report.verified_bytes),
      report.exported_digest, report.torn(), report.engine_steps());
  text += fmt::format("picture:    {}\ntrace:      {} (open it at https://ui.perfetto.dev)\n",
                      report.picture, report.trace);
  text += fmt::format("done in {:.1f} s\n", report.elapsed_s);
  return text;
}

json train_demo_json(const TrainDemoReport& report) {
  const bool any = !report.steps.empty();
  return {{"training", report.training},
          {"bytes", report.bytes},
          {"published", report.steps.size()},
          {"committed", report.committed()},
          {"staged_seconds_median", report.staged_seconds_median()},
          {"paused_seconds_most", report.paused_seconds_most()},
          {"snapshot_wait_share", report.waited_share()},
          {"verified", report.verified},
          {"verified_bytes", report.verified_bytes},
          {"last",
           {{"version", any ? report.steps.back().version : ""},
            {"content_digest", any ? report.steps.back().content_digest : ""},
            {"saved_content_digest", report.exported_digest}}},
          {"engines", engines_json(report.engines)},
          {"torn", report.torn()},
          {"picture", report.picture},
          {"trace", report.trace},
          {"elapsed_ms", static_cast<std::uint64_t>(report.elapsed_s * 1000)}};
}

}  // namespace wsync::cli
