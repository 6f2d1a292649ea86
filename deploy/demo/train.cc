// `wsync demo --train`: four processes train a model with the overlapped schedule. The engines load
// the weights of every step while the next step is computed. At the end their weights must equal
// the state that the trainer has saved.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "deploy/demo/train_report.h"
#include "deploy/demo/training_picture.h"
#include "shared/command/outcome.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kCommandDeadline{60'000};
constexpr std::uint64_t kVerifications = 10;  // during training

class TrainScenario final : public TrainingScenario {
 public:
  using TrainingScenario::TrainingScenario;

 private:
  [[nodiscard]] std::vector<std::string> model_settings() const override {
    return {"parallel.pp=2",
            "parallel.vpp=2",
            "parallel.dp=2",
            "parallel.ep=2",
            "schedule.overlap=true",
            "schedule.offload=true",
            fmt::format("steps={}", options_.steps)};
  }
  [[nodiscard]] Result<std::vector<std::string>> run_settings() override {
    return std::vector<std::string>{"save.directory=" + options_.work_dir,
                                    "trace_file=" + options_.trace_dir + "/trainer"};
  }
  [[nodiscard]] bool engines_generate() const override { return false; }
  void handle_event(const std::string& kind, const json& event) override;
  [[nodiscard]] std::uint64_t every() const {
    return std::max<std::uint64_t>(options_.steps / kVerifications, 1);
  }
  [[nodiscard]] std::uint64_t published_step() const {
    return publish_.is_object() ? publish_.value("step", std::uint64_t{0}) : 0;
  }
  [[nodiscard]] bool is_verification_due() const override {
    return published_step() >= every() * (verifications_ + 1);
  }
  [[nodiscard]] Result<> verify_meanwhile() override;
  void add_verified(const std::string& version);
  [[nodiscard]] Result<> check_steps() override;
  [[nodiscard]] Result<> compare_saved();
  [[nodiscard]] Result<Outcome> report() override;

  TrainReport report_;
  json step_, publish_;  // latest event of each kind from the trainer
  std::uint64_t verifications_ = 0;
};

void TrainScenario::handle_event(const std::string& kind, const json& event) {
  if (kind == "step") step_ = event;
  if (kind == "publish") publish_ = event;
  if (kind == "begin")
    context_.say(
        "training: {} processes (pp {}, vpp {}, dp {}, ep {}, overlapped, activations offloaded), "
        "{} parameters, {} steps",
        event.value("ranks", 0U), event.value("pp", 0U), event.value("vpp", 0U),
        event.value("dp", 0U), event.value("ep", 0U), event.value("parameters", std::uint64_t{0}),
        options_.steps);
}

Result<> TrainScenario::verify_meanwhile() {
  verifications_ = published_step() / every();
  const json step = step_;  // copied because step_ changes with new events during the verification
  const json publish = publish_;
  const auto ranks = fleet_->verify(Version{}, options_.engines);
  if (!ranks) return fail(ranks.error().with_context("verify"));
  report_.verified_bytes += bytes_of(*ranks);
  std::vector<std::string> held;
  for (const control::VerifyRank& rank : *ranks)
    if (const std::string version = rank.version.to_string();
        std::find(held.begin(), held.end(), version) == held.end())
      held.push_back(version);
  for (const std::string& version : held) add_verified(version);
  context_.say(
      "step {:>4}: loss {:.3f}; {} was staged in {:.1f} ms, engines paused {:.1f} ms at most; "
      "verified: the engines hold {}",
      step.value("step", std::uint64_t{0}), step.value("loss", 0.0), publish.value("version", ""),
      1e3 * publish.value("staged_seconds", 0.0), 1e3 * publish.value("paused_seconds", 0.0),
      fmt::join(held, " and "));
  return {};
}

void TrainScenario::add_verified(const std::string& version) {
  std::vector<std::string>& all = report_.verified;
  if (std::find(all.begin(), all.end(), version) == all.end()) all.push_back(version);
}

Result<> TrainScenario::check_steps() {
  if (steps_.size() != options_.steps)
    return fail(ErrorCode::kInternal,
                fmt::format("{} steps were taken, expected {}", steps_.size(), options_.steps));
  for (const TrainedStep& step : steps_)
    if (step.state != "committed")
      return fail(ErrorCode::kInternal,
                  fmt::format("step {} was not served by the engines, its publish is {}", step.step,
                              step.state.empty() ? "unknown" : step.state));
  context_.say(
      "trained: loss {:.3f} to {:.3f} in {} steps, the weights of each served by every "
      "engine",
      steps_.front().loss, steps_.back().loss, steps_.size());
  const auto bytes = WSYNC_TRY(verify_all(steps_.back().version, "the last step"));
  add_verified(steps_.back().version);
  report_.verified_bytes += bytes;
  report_.bytes = bytes / options_.engines;
  return compare_saved();
}

// Compares the last version with the saved state of the trainer. That state has taken another path:
// saved to disk as float32, then converted to bfloat16.
Result<> TrainScenario::compare_saved() {
  const TrainedStep& last = steps_.back();
  const std::string saved = fmt::format("{}/step_{}", options_.work_dir, last.step);
  const std::string exported = options_.work_dir + "/exported";
  WSYNC_TRY(context_.children.run(
      {.name = "export", .arguments = train_command({}, {"--resume", saved, "--export", exported})},
      kCommandDeadline));
  WSYNC_TRY(context_.children.run({.name = "inspect",
                                   .arguments = {"inspect", "--json", "--digest", exported},
                                   .output = ChildOutput::kFile},
                                  kCommandDeadline));
  const std::string line = fleet::last_line_of(context_.children.output_path("inspect"));
  const auto result = WSYNC_TRY(fleet::result_in(line, "inspect"));
  report_.exported_digest = result.value("content_digest", "");
  if (report_.exported_digest != last.content_digest)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("the saved state of step {} has content digest {} in bfloat16, version "
                            "{} has {}",
                            last.step, report_.exported_digest, last.version, last.content_digest));
  context_.say(
      "compared: {} is the state that the trainer has saved, in bfloat16: content digest "
      "{}",
      last.version, report_.exported_digest);
  return {};
}

Result<Outcome> TrainScenario::report() {
  const StepCounts counts = steps_of(engines_);
  context_.say("stopped: the engines served {} steps, {} of them torn", counts.steps, counts.torn);
  const auto output = WSYNC_TRY(context_.output());
  auto processes =
      WSYNC_TRY(read_traces(options_.trace_dir, {"trainer", "trainer-rounds", demo_sidecar(0)}));
  report_.picture = output + "/timeline.svg";
  report_.trace = output + "/trace.json";
  WSYNC_TRY(write_training_picture(report_.picture, processes,
                                   {.loss_before = steps_.front().loss,
                                    .loss_after = steps_.back().loss,
                                    .bytes = report_.bytes,
                                    .engines = options_.engines}));
  WSYNC_TRY(write_traces(report_.trace, std::move(processes)));
  report_.training = std::move(training_);
  report_.steps = std::move(steps_);
  report_.engines = std::move(engines_);
  report_.elapsed_s = elapsed_s();
  return Outcome{.result = train_json(report_),
                 .text = train_text(report_),
                 .complaint = {},
                 .exit_code = counts.torn == 0 ? kExitOk : kExitFailed};
}

}  // namespace

Result<Outcome> run_train_demo(const DemoContext& context) {
  return run_scenario<TrainScenario>(context);
}

}  // namespace wsync::cli
