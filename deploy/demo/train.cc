#include "deploy/demo/train.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "deploy/demo/trace.h"
#include "deploy/demo/train_trace.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/command/context.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/update_flows.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kTrainingDeadline{900'000};
constexpr milliseconds kCommandDeadline{60'000};
constexpr milliseconds kTrainerPatience{20'000};  // a step, its publish and its state on the disk
constexpr std::uint32_t kDevices = 2;
constexpr std::uint64_t kVerifications = 10;  // while training runs

class TrainStory {
 public:
  TrainStory(Children& children, const TrainDemoOptions& options,
             const std::function<Result<std::string>()>& output,
             const std::function<void(const std::string&)>& say)
      : children_(children), options_(options), output_(output), say_(say) {}
  // Before the fleet, whose coordinator it is.
  ~TrainStory() {
    if (trainer_ != nullptr && trainer_->running()) children_.stop(*trainer_, kTrainerPatience);
  }
  TrainStory(const TrainStory&) = delete;
  TrainStory& operator=(const TrainStory&) = delete;

  [[nodiscard]] Result<TrainDemoReport> tell();

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    say_(fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] std::vector<std::string> training(std::vector<std::string> more) const;
  [[nodiscard]] Result<> start_fleet();
  [[nodiscard]] Result<> start_trainer();
  void hear(const std::string& line);
  [[nodiscard]] Result<> watch();
  [[nodiscard]] Result<> verify_meanwhile();
  void add_verified(const std::string& version);
  [[nodiscard]] Result<> take_result();
  [[nodiscard]] Result<> verify_last();
  [[nodiscard]] Result<> compare_saved();
  [[nodiscard]] Result<> end();
  [[nodiscard]] Result<> write_traces();

  Children& children_;
  const TrainDemoOptions& options_;
  const std::function<Result<std::string>()>& output_;
  const std::function<void(const std::string&)>& say_;
  const TimePoint begin_ = now();
  TrainDemoReport report_;
  std::unique_ptr<DemoFleet> fleet_;
  Child* trainer_ = nullptr;
  json step_, publish_;  // what the trainer told last of each
  std::string last_line_;
  std::uint64_t verifications_ = 0;
};

Result<TrainDemoReport> TrainStory::tell() {
  WSYNC_TRY(start_fleet());
  WSYNC_TRY(start_trainer());
  WSYNC_TRY(watch());
  WSYNC_TRY(take_result());
  WSYNC_TRY(verify_last());
  WSYNC_TRY(compare_saved());
  WSYNC_TRY(end());
  WSYNC_TRY(write_traces());
  report_.elapsed_s = seconds(now() - begin_);
  return std::move(report_);
}

// ---- the start ----

// `wsync train` for this run; what it begins with depends on these as well.
std::vector<std::string> TrainStory::training(std::vector<std::string> more) const {
  std::vector<std::string> arguments{"train", "--json"};
  for (const std::string& setting :
       {std::string("parallel.pp=2"), std::string("parallel.vpp=2"), std::string("parallel.dp=2"),
        std::string("parallel.ep=2"), std::string("schedule.overlap=true"),
        std::string("schedule.offload=true"), fmt::format("steps={}", options_.steps)}) {
    arguments.emplace_back("--set");
    arguments.push_back(setting);
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Result<> TrainStory::start_fleet() {
  const std::string model = options_.work_dir + "/model";
  WSYNC_TRY(children_.run({.name = "export", .arguments = training({"--export", model})},
                          kCommandDeadline));
  fleet_ = std::make_unique<DemoFleet>(children_, FleetOptions{.sidecars = 1,
                                                               .engines = options_.engines,
                                                               .devices = kDevices,
                                                               .buffer_bytes = limits::kMiB,
                                                               .with_trainer = false,
                                                               .run_dir = options_.run_dir,
                                                               .trace_dir = options_.trace_dir,
                                                               .checkpoint = model});
  WSYNC_TRY(fleet_->start());
  say("running: a sidecar and {}, which wait for their first weights",
      counted(options_.engines, "engine"));
  return {};
}

Result<> TrainStory::start_trainer() {
  std::vector<std::string> more{"--events"};
  for (const std::string& setting :
       {"publish.run_dir=" + options_.run_dir, "publish.state_dir=" + options_.state_dir,
        fmt::format("publish.min_replicas={}", options_.engines),
        "save.directory=" + options_.work_dir, "trace_file=" + options_.trace_dir + "/trainer"}) {
    more.emplace_back("--set");
    more.push_back(setting);
  }
  const auto child = WSYNC_TRY(children_.start(
      {.name = "trainer", .arguments = training(std::move(more)), .output = ChildOutput::kLines}));
  trainer_ = child;
  trainer_->may_end();
  trainer_->on_line = [this](const std::string& line) { hear(line); };
  return {};
}

// ---- while it trains ----

void TrainStory::hear(const std::string& line) {
  last_line_ = line;
  const json event = json::parse(line, nullptr, false);
  if (!event.is_object()) return;
  const std::string kind = event.value("event", "");
  if (kind == "step") {
    step_ = event;
  } else if (kind == "publish") {
    publish_ = event;
  } else if (kind == "begin") {
    say("training: {} processes (pp {}, vpp {}, dp {}, ep {}, overlapped, activations offloaded), "
        "{} parameters, {} steps",
        event.value("ranks", 0U), event.value("pp", 0U), event.value("vpp", 0U),
        event.value("dp", 0U), event.value("ep", 0U), event.value("parameters", std::uint64_t{0}),
        options_.steps);
  }
}

Result<> TrainStory::watch() {
  const std::uint64_t every = std::max<std::uint64_t>(options_.steps / kVerifications, 1);
  const auto is_due = [&] {
    return publish_.is_object() &&
           publish_.value("step", std::uint64_t{0}) >= every * (verifications_ + 1);
  };
  while (trainer_->running()) {
    WSYNC_TRY(children_.until("the end of the training", kTrainingDeadline,
                              [&] { return !trainer_->running() || is_due(); }));
    if (!trainer_->running()) break;
    verifications_ = publish_.value("step", std::uint64_t{0}) / every;
    WSYNC_TRY(verify_meanwhile());
  }
  if (trainer_->succeeded()) return {};
  return fail(children_.failure_of(*trainer_));
}

Result<> TrainStory::verify_meanwhile() {
  const json step = step_;
  const json publish = publish_;
  const auto ranks = fleet_->verify_whatever(options_.engines);
  if (!ranks) return fail(ranks.error().with_context("verify"));
  std::vector<std::string> held;
  for (const control::VerifyRank& rank : *ranks) {
    const std::string version = rank.version.to_string();
    report_.verified_bytes += rank.bytes;
    if (std::find(held.begin(), held.end(), version) == held.end()) held.push_back(version);
  }
  for (const std::string& version : held) add_verified(version);
  say("step {:>4}: loss {:.3f}; {} was staged in {:.1f} ms, engines paused {:.1f} ms at most; "
      "verified: the engines hold {}",
      step.value("step", std::uint64_t{0}), step.value("loss", 0.0), publish.value("version", ""),
      1e3 * publish.value("staged_seconds", 0.0), 1e3 * publish.value("paused_seconds", 0.0),
      fmt::join(held, " and "));
  return {};
}

void TrainStory::add_verified(const std::string& version) {
  std::vector<std::string>& all = report_.verified;
  if (std::find(all.begin(), all.end(), version) == all.end()) all.push_back(version);
}

// ---- what came of it ----

Result<> TrainStory::take_result() {
  report_.training = WSYNC_TRY(result_in(last_line_, "train"));
  auto steps = WSYNC_TRY(trained_steps(report_.training));
  report_.steps = std::move(steps);
  if (report_.steps.size() != options_.steps)
    return fail(ErrorCode::kInternal, fmt::format("{} steps were taken, expected {}",
                                                  report_.steps.size(), options_.steps));
  for (const TrainedStep& step : report_.steps)
    if (step.state != "committed")
      return fail(ErrorCode::kInternal,
                  fmt::format("step {} was not served by the engines, its publish is {}", step.step,
                              step.state.empty() ? "unknown" : step.state));
  say("trained: loss {:.3f} to {:.3f} in {} steps, the weights of each served by every engine",
      report_.steps.front().loss, report_.steps.back().loss, report_.steps.size());
  return {};
}

Result<> TrainStory::verify_last() {
  const TrainedStep& last = report_.steps.back();
  const auto version = WSYNC_TRY(Version::parse(last.version));
  const auto bytes = fleet_->verify(version, options_.engines);
  if (!bytes) return fail(bytes.error().with_context("verify of the last step"));
  add_verified(last.version);
  report_.verified_bytes += *bytes;
  report_.bytes = *bytes / options_.engines;
  say("verified: every engine holds {}, every tensor equal ({} read back)", last.version,
      human_bytes(*bytes));
  return {};
}

// The trainer's state goes another way: to the disk in float32, from there to bfloat16.
Result<> TrainStory::compare_saved() {
  const TrainedStep& last = report_.steps.back();
  const std::string saved = fmt::format("{}/step_{}", options_.work_dir, last.step);
  const std::string exported = options_.work_dir + "/exported";
  WSYNC_TRY(children_.run(
      {.name = "export", .arguments = training({"--resume", saved, "--export", exported})},
      kCommandDeadline));
  WSYNC_TRY(children_.run({.name = "inspect",
                           .arguments = {"inspect", "--json", "--digest", exported},
                           .output = ChildOutput::kFile},
                          kCommandDeadline));
  std::ifstream file(children_.output_path("inspect"));
  std::string line;
  std::getline(file, line);
  const auto result = WSYNC_TRY(result_in(line, "inspect"));
  report_.exported_digest = result.value("content_digest", "");
  if (report_.exported_digest != last.content_digest)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("the saved state of step {} has content digest {} in bfloat16, version "
                            "{} has {}",
                            last.step, report_.exported_digest, last.version, last.content_digest));
  say("compared: {} is the state that the trainer has saved, in bfloat16: content digest {}",
      last.version, report_.exported_digest);
  return {};
}

Result<> TrainStory::end() {
  auto engines = WSYNC_TRY(fleet_->stop());
  report_.engines = std::move(engines);
  say("stopped: the engines served {} steps, {} of them torn", report_.engine_steps(),
      report_.torn());
  return {};
}

Result<> TrainStory::write_traces() {
  const auto output = WSYNC_TRY(output_());
  report_.trace = output + "/trace.json";
  report_.picture = output + "/timeline.svg";
  std::vector<trace::ProcessTrace> processes;
  for (const std::string& name :
       {std::string("trainer"), std::string("trainer-rounds"), DemoFleet::sidecar_name(0)}) {
    auto traced = WSYNC_TRY(read_traces(fmt::format("{}/{}.json", options_.trace_dir, name)));
    std::move(traced.begin(), traced.end(), std::back_inserter(processes));
  }
  WSYNC_TRY(write_training_picture(report_.picture, processes,
                                   {.loss_before = report_.steps.front().loss,
                                    .loss_after = report_.steps.back().loss,
                                    .bytes = report_.bytes,
                                    .engines = options_.engines}));
  trace::Trace trace{.processes = std::move(processes)};
  trace.flows = trace::update_flows(trace.processes);
  return trace::write_chrome_trace(report_.trace, trace);
}

}  // namespace

Result<TrainDemoReport> tell_train_demo(Children& children, const TrainDemoOptions& options,
                                        const std::function<Result<std::string>()>& output,
                                        const std::function<void(const std::string&)>& say) {
  TrainStory story(children, options, output, say);
  auto told = story.tell();
  if (!told) return fail(children.explained(std::move(told).error()));
  return told;
}

}  // namespace wsync::cli
