#include "deploy/demo/rl.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/weights/version.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kRlCommandDeadline{60'000};
constexpr std::chrono::milliseconds kRlDeadline{7'200'000};
constexpr std::chrono::milliseconds kRlTrainerPatience{15'000};
constexpr std::uint32_t kRlDevices = 2;
constexpr std::uint64_t kTold = 16;  // lines while it trains

class RlStory {
 public:
  RlStory(Children& children, const RlDemoOptions& options,
          const std::function<Result<std::string>()>& output,
          const std::function<void(const std::string&)>& say)
      : children_(children), options_(options), output_(output), say_(say) {}
  // Before the fleet, whose coordinator it is.
  ~RlStory() {
    if (trainer_ != nullptr && trainer_->running()) children_.stop(*trainer_, kRlTrainerPatience);
  }
  RlStory(const RlStory&) = delete;
  RlStory& operator=(const RlStory&) = delete;

  [[nodiscard]] Result<RlDemoReport> tell();

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    say_(fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] std::uint32_t last_step() const {
    return options_.warm_start_steps + options_.steps;
  }
  [[nodiscard]] std::vector<std::string> training(std::vector<std::string> settings) const;
  [[nodiscard]] Result<> start_fleet();
  [[nodiscard]] Result<> start_trainer();
  void hear(const std::string& line);
  void hear_rollouts(const json& event);
  [[nodiscard]] Result<> take_result();
  [[nodiscard]] Result<> verify_last();
  [[nodiscard]] Result<> end();

  Children& children_;
  const RlDemoOptions& options_;
  const std::function<Result<std::string>()>& output_;
  const std::function<void(const std::string&)>& say_;
  const TimePoint begin_ = now();
  RlDemoReport report_;
  std::unique_ptr<DemoFleet> fleet_;
  Child* trainer_ = nullptr;
  std::string last_line_;
};

Result<RlDemoReport> RlStory::tell() {
  WSYNC_TRY(start_fleet());
  WSYNC_TRY(start_trainer());
  WSYNC_TRY(children_.until("the end of the training", kRlDeadline,
                            [this] { return !trainer_->running(); }));
  if (!trainer_->succeeded()) return fail(children_.failure_of(*trainer_));
  WSYNC_TRY(take_result());
  WSYNC_TRY(verify_last());
  WSYNC_TRY(end());
  const auto output = WSYNC_TRY(output_());
  report_.picture = output + "/rl.svg";
  WSYNC_TRY(write_rl_picture(report_.picture, report_, options_));
  report_.elapsed_s = seconds(now() - begin_);
  return std::move(report_);
}

// `wsync train` for this run; what it begins with depends on these as well.
std::vector<std::string> RlStory::training(std::vector<std::string> settings) const {
  std::vector<std::string> arguments{"train", "--json"};
  for (const char* setting :
       {"parallel.pp=2", "parallel.vpp=2", "model.experts=4", "data.sequence=20",
        "data.micro_batch=32", "optimizer.learning_rate=1e-3", "optimizer.final_learning_rate=1e-4",
        "optimizer.weight_decay=0.01"})
    settings.emplace_back(setting);
  settings.push_back(fmt::format("model.seed={}", options_.seed));
  settings.push_back(fmt::format("steps={}", last_step()));
  for (std::string& setting : settings) {
    arguments.emplace_back("--set");
    arguments.push_back(std::move(setting));
  }
  return arguments;
}

Result<> RlStory::start_fleet() {
  const std::string model = options_.work_dir + "/model";
  std::vector<std::string> exporting = training({});
  exporting.insert(exporting.end(), {"--export", model});
  WSYNC_TRY(
      children_.run({.name = "export", .arguments = std::move(exporting)}, kRlCommandDeadline));
  fleet_ = std::make_unique<DemoFleet>(children_, FleetOptions{.sidecars = 1,
                                                               .engines = options_.engines,
                                                               .devices = kRlDevices,
                                                               .buffer_bytes = limits::kMiB,
                                                               .with_trainer = false,
                                                               .generates = true,
                                                               .run_dir = options_.run_dir,
                                                               .trace_dir = options_.trace_dir,
                                                               .checkpoint = model});
  WSYNC_TRY(fleet_->start());
  say("running: a sidecar and {}, which answer over HTTP once they have weights",
      counted(options_.engines, "engine"));
  return {};
}

Result<> RlStory::start_trainer() {
  const auto addresses = WSYNC_TRY(fleet_->addresses());
  std::vector<std::string> arguments =
      training({fmt::format("rollout.engines={}", fmt::join(addresses, ",")),
                fmt::format("rollout.warm_start_steps={}", options_.warm_start_steps),
                fmt::format("rollout.max_staleness={}", options_.max_staleness),
                fmt::format("rollout.seed={}", options_.seed),
                "publish.run_dir=" + options_.run_dir, "publish.state_dir=" + options_.state_dir,
                fmt::format("publish.min_replicas={}", options_.engines),
                fmt::format("publish.pause_mode=keep"),
                fmt::format("publish.every={}", options_.sync ? 1 : last_step() + 1)});
  arguments.emplace_back("--events");
  const auto child = WSYNC_TRY(children_.start(
      {.name = "trainer", .arguments = std::move(arguments), .output = ChildOutput::kLines}));
  trainer_ = child;
  trainer_->may_end();
  trainer_->on_line = [this](const std::string& line) { hear(line); };
  return {};
}

void RlStory::hear(const std::string& line) {
  last_line_ = line;
  const json event = json::parse(line, nullptr, false);
  if (!event.is_object()) return;
  const std::string kind = event.value("event", "");
  if (kind == "begin")
    say("training: {} processes (pp {}, vpp {}), {} parameters; {} steps on right answers, then {} "
        "on the engines' own",
        event.value("ranks", 0U), event.value("pp", 0U), event.value("vpp", 0U),
        event.value("parameters", std::uint64_t{0}), options_.warm_start_steps, options_.steps);
  else if (kind == "rollouts")
    hear_rollouts(event);
}

void RlStory::hear_rollouts(const json& event) {
  const auto step = event.value("step", std::uint64_t{0}) - options_.warm_start_steps;
  const std::uint64_t every = std::max<std::uint64_t>(options_.steps / kTold, 1);
  if (step != 1 && step % every != 0) return;
  say("step {:>4}: mean reward {:.3f} of {} answers, weights {} old at most; engines and trainer "
      "differ by {:.1e}",
      step, event.value("reward", 0.0), event.value("answers", 0U),
      counted(event.value("staleness_most", std::uint64_t{0}), "step"),
      event.value("mismatch_most", 0.0));
}

// ---- what came of it ----

Result<> RlStory::take_result() {
  report_.training = WSYNC_TRY(result_in(last_line_, "train"));
  auto steps = WSYNC_TRY(rl_steps(report_.training));
  report_.steps = std::move(steps);
  if (report_.steps.size() == options_.steps) return {};
  return fail(ErrorCode::kInternal, fmt::format("{} steps trained on answers, expected {}",
                                                report_.steps.size(), options_.steps));
}

Result<> RlStory::verify_last() {
  const auto& publishes = report_.training.at("publishes");
  if (publishes.empty()) return fail(ErrorCode::kInternal, "no weights were published");
  const auto version = WSYNC_TRY(Version::parse(publishes.back().value("version", "")));
  const auto bytes = fleet_->verify(version, options_.engines);
  if (!bytes) return fail(bytes.error().with_context("verify of the last version"));
  report_.verified_bytes = *bytes;
  say("verified: every engine holds {}, every tensor equal ({} read back)", version.to_string(),
      human_bytes(*bytes));
  return {};
}

Result<> RlStory::end() {
  auto engines = WSYNC_TRY(fleet_->stop());
  report_.engines = std::move(engines);
  return {};
}

}  // namespace

Result<RlDemoReport> tell_rl_demo(Children& children, const RlDemoOptions& options,
                                  const std::function<Result<std::string>()>& output,
                                  const std::function<void(const std::string&)>& say) {
  RlStory story(children, options, output, say);
  auto told = story.tell();
  if (!told) return fail(children.explained(std::move(told).error()));
  return told;
}

}  // namespace wsync::cli
