#include "trainer_side/run/events.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/command/outcome.h"
#include "shared/command/training_text.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> each(const std::vector<json>& events, const char* member) {
  std::vector<double> values;
  for (const json& event : events) values.push_back(event.at(member).get<double>());
  return values;
}

void forget_from(std::vector<json>& events, std::uint64_t step) {
  std::erase_if(events, [&](const json& event) { return event.at("step") >= step; });
}

bool is_committed(const json& publish) { return publish.at("state") == "committed"; }

}  // namespace

void TrainReport::take(const json& event) {
  const std::string kind = event.at("event");
  // A replacement of rank 0 does not know which events its predecessor has sent, and may repeat
  // them.
  if (kind == "begin" && !begin_.is_null()) return;
  if (kind == "saved" && std::any_of(saved_.begin(), saved_.end(), [&](const json& one) {
        return one.at("step") == event.at("step");
      }))
    return;
  if (prints_events_) print_line(stdout, to_line(event));
  if (kind == "begin") {
    begin_ = event;
    began_ = now();
    log_info(
        "training {} parameters on {} ranks (pp {}, vpp {}, ep {}, dp {}), {} of text, {} "
        "tokens a step{}",
        event.at("parameters").get<std::uint64_t>(), event.at("ranks").get<std::uint32_t>(),
        event.at("pp").get<std::uint32_t>(), event.at("vpp").get<std::uint32_t>(),
        event.at("ep").get<std::uint32_t>(), event.at("dp").get<std::uint32_t>(),
        human_bytes(event.at("text_bytes").get<std::uint64_t>()),
        event.at("tokens_of_step").get<std::uint64_t>(),
        event.at("first_step") == 1
            ? ""
            : fmt::format("; continues with step {}", event.at("first_step").get<std::uint64_t>()));
  } else if (kind == "step") {
    take_step(event);
  } else if (kind == "rollouts") {
    take_rollouts(event);
  } else if (kind == "publish") {
    take_publish(event);
  } else if (kind == "saved") {
    saved_.push_back(event);
    log_info("saved {}", event.at("directory").get<std::string>());
  } else if (kind == "save_failed") {
    log_warning("step {} is not saved: {}", event.at("step").get<std::uint64_t>(),
                event.at("reason").get<std::string>());
  } else if (kind == "lost") {
    losses_.push_back(event);
  } else if (kind == "recovered") {
    take_recovered(event);
  } else if (kind == "stopped") {
    stopped_ = true;
  } else if (kind == "end") {
    end_ = event;
    ended_ = now();
  }
}

// Newest last. A step that is run again is reported again.
void TrainReport::take_step(const json& event) {
  forget_from(steps_, event.at("step"));
  forget_from(saved_, event.at("step"));
  steps_.push_back(event);
  last_step_ = event.at("step");
  log_info("step {}/{}: loss {:.4f}, gradient norm {:.3f}, learning rate {:.2e}, {:.3f} s",
           last_step_, begin_.at("steps").get<std::uint64_t>(), event.at("loss").get<double>(),
           event.at("gradient_norm").get<double>(), event.at("learning_rate").get<double>(),
           event.at("seconds").get<double>());
}

void TrainReport::take_recovered(const json& event) {
  recoveries_.push_back(event);
  log_info("recovered in {:.3f} s, from {}: continues with step {}",
           event.at("seconds").get<double>(), event.at("from").get<std::string>(),
           event.at("step").get<std::uint64_t>());
}

void TrainReport::take_rollouts(const json& event) {
  forget_from(rollouts_, event.at("step"));
  rollouts_.push_back(event);
  log_info(
      "step {}: {} answers, mean reward {:.3f}, {} steps old at most, log-probabilities differ "
      "by {:.1e} at most",
      event.at("step").get<std::uint64_t>(), event.at("answers").get<std::uint64_t>(),
      event.at("reward").get<double>(), event.at("staleness_most").get<std::uint64_t>(),
      event.at("mismatch_most").get<double>());
}

void TrainReport::take_publish(const json& event) {
  std::erase_if(publishes_, [&](const json& one) { return one.at("step") == event.at("step"); });
  publishes_.push_back(event);
  const auto step = event.at("step").get<std::uint64_t>();
  if (is_committed(event))
    log_info("step {} is served as {}: staged in {:.3f} s, paused {:.1f} ms at most", step,
             event.at("version").get<std::string>(), event.at("staged_seconds").get<double>(),
             1e3 * event.at("paused_seconds").get<double>());
  else if (event.at("state") == "superseded")  // training is faster than its fleet
    log_info("step {} is not served (superseded): {}", step, event.at("reason").get<std::string>());
  else
    log_warning("step {} is not served ({}): {}", step, event.at("state").get<std::string>(),
                event.at("reason").get<std::string>());
}

json TrainReport::generating() const {
  if (rollouts_.empty()) return nullptr;
  const auto max = [&](const char* member) {
    double found = 0;
    for (const double value : each(rollouts_, member)) found = std::max(found, value);
    return found;
  };
  const auto mean_reward = [&](std::size_t first) {
    double sum = 0;
    const std::size_t count = std::min(rollouts_.size(), kRewardSteps);
    for (std::size_t i = first; i < first + count; ++i)
      sum += rollouts_[i].at("reward").get<double>();
    return sum / static_cast<double>(count);
  };
  double waited = 0;
  for (const double value : each(rollouts_, "waited_seconds")) waited += value;
  return {{"steps", rollouts_.size()},
          {"reward_first", mean_reward(0)},
          {"reward_last", mean_reward(rollouts_.size() - std::min(rollouts_.size(), kRewardSteps))},
          {"staleness_most", max("staleness_most")},
          {"mismatch_most", max("mismatch_most")},
          {"drift_most", max("drift_most")},
          {"waited_seconds", waited}};
}

json TrainReport::publishing() const {
  // With `publish.every` above 1, only some steps are computed during a publish.
  std::set<std::uint64_t> published;
  for (const json& publish : publishes_) published.insert(publish.at("step").get<std::uint64_t>());
  std::vector<double> beside, alone;
  for (const json& step : steps_) {
    const bool is_beside = published.contains(step.at("step").get<std::uint64_t>() - 1);
    if (&step != &steps_.front()) (is_beside ? beside : alone).push_back(step.at("seconds"));
  }
  const bool compares = !beside.empty() && !alone.empty();
  std::vector<json> committed;
  std::copy_if(publishes_.begin(), publishes_.end(), std::back_inserter(committed), is_committed);
  double max = 0;
  for (const double paused : each(committed, "paused_seconds")) max = std::max(max, paused);
  return {{"published", publishes_.size()},
          {"committed", committed.size()},
          {"bytes_of_version", committed.empty() ? json(nullptr) : committed.back().at("bytes")},
          {"step_seconds_beside_publish", beside.empty() ? json(nullptr) : json(median(beside))},
          {"step_seconds_alone", alone.empty() ? json(nullptr) : json(median(alone))},
          {"step_ratio", compares ? json(median(beside) / median(alone)) : json(nullptr)},
          {"staged_seconds_median", median(each(committed, "staged_seconds"))},
          {"paused_seconds_most", max},
          // Time that a step waited for the snapshot of the previous step.
          {"snapshot_wait_seconds_median", median(each(steps_, "snapshot_wait_seconds"))}};
}

json TrainReport::device_activations_max() const {
  return end_.is_null() ? json() : end_.value("device_activations_most", json());
}

Outcome TrainReport::outcome() const {
  Outcome outcome;
  const double seconds = end_.is_null() ? 0 : wsync::seconds(ended_ - began_);
  const auto tokens =
      begin_.at("tokens_of_step").get<double>() * static_cast<double>(steps_.size());
  outcome.result = {{"run", begin_},
                    {"stopped", stopped_},
                    {"seconds", seconds},
                    {"tokens_per_second", seconds > 0 ? tokens / seconds : 0},
                    {"step_seconds_median", median(each(steps_, "seconds"))},
                    {"steps", steps_},
                    {"rollouts", rollouts_},
                    {"generating", generating()},
                    {"publishes", publishes_},
                    {"publishing", publishing()},
                    {"saved", saved_},
                    {"losses", losses_},
                    {"recoveries", recoveries_},
                    {"device_activations_most", device_activations_max()}};
  outcome.text = training_text(outcome.result);
  if (!saved_.empty())
    outcome.text += fmt::format("saved {}\n", saved_.back().at("directory").get<std::string>());
  if (stopped_) {
    outcome.exit_code = kExitInterrupted;
    outcome.complaint =
        fmt::format("wsync trainer: stopped on request after step {} of {}{}", last_step_,
                    begin_.at("steps").get<std::uint64_t>(),
                    saved_.empty() ? "; nothing is saved without save.directory"
                                   : fmt::format("; continue with --resume {}",
                                                 saved_.back().at("directory").get<std::string>()));
  }
  return outcome;
}

}  // namespace wsync::cli
