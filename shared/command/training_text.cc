#include "shared/command/training_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shared/base/format.h"
#include "shared/command/context.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kTableRows = 12;

std::string publish_columns(const json& publish) {
  if (publish.at("state") != "committed")
    return fmt::format("  {:>9}", publish.at("state").get<std::string>());
  return fmt::format("  {:>9}  {:>9.3f}  {:>9.2f}", publish.at("version").get<std::string>(),
                     publish.at("staged_seconds").get<double>(),
                     1e3 * publish.at("paused_seconds").get<double>());
}

std::string rollouts_columns(const json& all, const json& step) {
  for (const json& rollouts : all) {
    if (rollouts.at("step") != step) continue;
    const bool compared = rollouts.at("mismatch_tokens") != 0;
    return fmt::format(
        "  {:>6.3f}  {:>4}  {:>8}  {:>8.1e}", rollouts.at("reward").get<double>(),
        rollouts.at("staleness_most").get<std::uint64_t>(),
        compared ? fmt::format("{:.1e}", rollouts.at("mismatch_most").get<double>()) : "-",
        rollouts.at("drift_most").get<double>());
  }
  // Empty, because right answers were given.
  return fmt::format("{:>{}}", "", 2 + 6 + 2 + 4 + 2 + 8 + 2 + 8);
}

std::string table(const json& steps, const json& rollouts, const json& publishes) {
  std::string text =
      fmt::format("{:>8}  {:>8}  {:>8}  {:>9}  {:>9}", "step", "loss", "norm", "rate", "seconds");
  if (!rollouts.empty())
    text += fmt::format("  {:>6}  {:>4}  {:>8}  {:>8}", "reward", "old", "mismatch", "drift");
  if (!publishes.empty())
    text += fmt::format("  {:>9}  {:>9}  {:>9}", "version", "staged s", "paused ms");
  text += '\n';
  const std::size_t rows = std::min(steps.size(), kTableRows);
  for (std::size_t row = 0; row < rows; ++row) {
    const json& step = steps.at(rows == 1 ? 0 : row * (steps.size() - 1) / (rows - 1));
    text += fmt::format("{:>8}  {:>8.4f}  {:>8.3f}  {:>9.2e}  {:>9.3f}",
                        step.at("step").get<std::uint64_t>(), step.at("loss").get<double>(),
                        step.at("gradient_norm").get<double>(),
                        step.at("learning_rate").get<double>(), step.at("seconds").get<double>());
    if (!rollouts.empty()) text += rollouts_columns(rollouts, step.at("step"));
    for (const json& publish : publishes)
      if (publish.at("step") == step.at("step")) text += publish_columns(publish);
    text += '\n';
  }
  return text;
}

std::string generating_sentence(const json& sum) {
  const auto steps = sum.at("steps").get<std::size_t>();
  return fmt::format(
      "mean reward {:.3f} to {:.3f} (of the first and the last {} of {} steps with answers); "
      "weights at most {:.0f} steps old; engines and trainer differ by {:.1e} at most\n",
      sum.at("reward_first").get<double>(), sum.at("reward_last").get<double>(),
      std::min(steps, kRewardSteps), steps, sum.at("staleness_most").get<double>(),
      sum.at("mismatch_most").get<double>());
}

std::string publishing_sentences(const json& sum) {
  const json& bytes = sum.at("bytes_of_version");
  std::string text = fmt::format(
      "{} of {} published steps were served ({} each): staged in {:.3f} s (median), paused "
      "{:.1f} ms at most; training waited {:.1f} ms a step for snapshots (median)\n",
      sum.at("committed").get<std::size_t>(), sum.at("published").get<std::size_t>(),
      bytes.is_null() ? "0 B" : human_bytes(bytes.get<std::uint64_t>()),
      sum.at("staged_seconds_median").get<double>(),
      1e3 * sum.at("paused_seconds_most").get<double>(),
      1e3 * sum.at("snapshot_wait_seconds_median").get<double>());
  if (!sum.at("step_ratio").is_null())
    text += fmt::format(
        "a step during a publish took {:.3f} s, another one {:.3f} s (medians): {:.3f} times\n",
        sum.at("step_seconds_beside_publish").get<double>(),
        sum.at("step_seconds_alone").get<double>(), sum.at("step_ratio").get<double>());
  return text;
}

}  // namespace

std::string training_text(const json& result) {
  const json& steps = result.at("steps");
  const json& rollouts = result.at("rollouts");
  const json& publishes = result.at("publishes");
  std::string text = "stopped before a step was over";
  if (!steps.empty())
    text = table(steps, rollouts, publishes) +
           fmt::format("{} {} steps in {:.1f} s: loss {:.4f} to {:.4f}, {:.0f} tokens a second\n",
                       result.at("stopped").get<bool>() ? "stopped after" : "took", steps.size(),
                       result.at("seconds").get<double>(), steps.front().at("loss").get<double>(),
                       steps.back().at("loss").get<double>(),
                       result.at("tokens_per_second").get<double>());
  if (!rollouts.empty()) text += generating_sentence(result.at("generating"));
  if (!publishes.empty()) text += publishing_sentences(result.at("publishing"));
  if (const json& losses = result.at("losses"); !losses.empty())
    text += fmt::format("losses of ranks: {}, recoveries: {}\n", losses.size(),
                        result.at("recoveries").size());
  return text;
}

}  // namespace wsync::cli
