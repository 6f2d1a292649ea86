// `wsync demo --train`: four processes train a model with the overlapped schedule. The engines load
// the weights of every step while the next step is computed. At the end their weights must equal
// the state that the trainer has saved.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "deploy/demo/training_picture.h"
#include "deploy/demo/training_scenario.h"
#include "shared/command/training_text.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kCommandDeadline{60'000};
constexpr std::uint64_t kVerifications = 10;  // during training

class TrainScenario final : public TrainingScenario {
 public:
  explicit TrainScenario(const DemoContext& context)
      : TrainingScenario(context, {.settings = {"parallel.pp=2", "parallel.vpp=2", "parallel.dp=2",
                                                "parallel.ep=2", "schedule.overlap=true",
                                                "schedule.offload=true",
                                                fmt::format("steps={}", context.options.steps)}}) {}

 private:
  [[nodiscard]] Result<std::vector<std::string>> run_settings() override {
    return std::vector<std::string>{"save.directory=" + options_.work_dir,
                                    "trace_file=" + options_.trace_dir + "/trainer"};
  }
  [[nodiscard]] bool handle_event(const std::string& kind, const json& event) override;
  [[nodiscard]] Result<> verify_meanwhile() override;
  [[nodiscard]] Result<> check_result() override;
  [[nodiscard]] Result<> compare_saved();
  [[nodiscard]] Result<std::string> report() override;
  [[nodiscard]] Result<> write_files();
  [[nodiscard]] double first_loss() const { return training_.at("steps").front().at("loss"); }
  [[nodiscard]] double last_loss() const { return training_.at("steps").back().at("loss"); }

  json step_, publish_;  // latest event of each kind from the trainer
  std::uint64_t verifications_ = 0;
};

bool TrainScenario::handle_event(const std::string& kind, const json& event) {
  if (kind == "begin")
    context_.say(
        "training: {} processes (pp {}, vpp {}, dp {}, ep {}, overlapped, activations offloaded), "
        "{} parameters, {} steps",
        event.value("ranks", 0U), event.value("pp", 0U), event.value("vpp", 0U),
        event.value("dp", 0U), event.value("ep", 0U), event.value("parameters", std::uint64_t{0}),
        options_.steps);
  if (kind == "step") step_ = event;
  if (kind != "publish") return false;
  publish_ = event;
  const std::uint64_t every = std::max<std::uint64_t>(options_.steps / kVerifications, 1);
  const std::uint64_t due = event.value("step", std::uint64_t{0}) / every;
  if (due <= verifications_) return false;
  verifications_ = due;
  return true;
}

Result<> TrainScenario::verify_meanwhile() {
  context_.say(
      "step {:>4}: loss {:.3f}; {} was staged in {:.1f} ms, engines paused {:.1f} ms at most",
      step_.value("step", std::uint64_t{0}), step_.value("loss", 0.0),
      publish_.value("version", ""), 1e3 * publish_.value("staged_seconds", 0.0),
      1e3 * publish_.value("paused_seconds", 0.0));
  return verify_all(Version{});
}

Result<> TrainScenario::check_result() {
  const std::size_t steps = training_.at("steps").size();
  if (steps != options_.steps)
    return fail(ErrorCode::kInternal,
                fmt::format("{} steps were taken, expected {}", steps, options_.steps));
  const json& publishes = training_.at("publishes");
  std::size_t served = 0;
  for (const json& publish : publishes) {
    // Training waits for no engine: on a busy machine a newer step takes the place of one that
    // waits.
    const bool is_replaced = publish.at("state") == "superseded" && &publish != &publishes.back();
    if (publish.at("state") != "committed" && !is_replaced)
      return fail(ErrorCode::kInternal,
                  fmt::format("step {} was not served by the engines, its publish is {}",
                              publish.at("step").get<std::uint64_t>(),
                              publish.at("state").get<std::string>()));
    if (!is_replaced) ++served;
  }
  if (publishes.size() != steps)
    return fail(ErrorCode::kInternal,
                fmt::format("{} of {} steps were published", publishes.size(), steps));
  context_.say(
      "trained: loss {:.3f} to {:.3f} in {} steps, the weights of {} served by every engine{}",
      first_loss(), last_loss(), steps, served == steps ? "each" : counted(served, "step"),
      served == steps ? "" : "; newer ones took the place of the others while they waited");
  const std::uint64_t before = verified_bytes_;
  WSYNC_TRY(verify_last());
  report_["bytes"] = (verified_bytes_ - before) / options_.engines;
  return compare_saved();
}

// Compares the last version with the saved state of the trainer. That state has taken another path:
// saved to disk as float32, then converted to bfloat16.
Result<> TrainScenario::compare_saved() {
  const json& last = training_.at("publishes").back();
  const std::string saved =
      fmt::format("{}/step_{}", options_.work_dir, last.at("step").get<std::uint64_t>());
  const std::string exported = options_.work_dir + "/exported";
  WSYNC_TRY(context_.children.run(
      {.name = "export", .arguments = train_command({}, {"--resume", saved, "--export", exported})},
      kCommandDeadline));
  WSYNC_TRY(context_.children.run({.name = "inspect",
                                   .arguments = {"inspect", "--json", "--digest", exported},
                                   .output = ChildOutput::kFile},
                                  kCommandDeadline));
  const std::string line = fleet::last_line_of(context_.children.output_path("inspect"));
  const auto inspected = WSYNC_TRY(fleet::result_in(line, "inspect"));
  const std::string found = inspected.value("content_digest", "");
  const std::string version = last.at("version");
  const std::string expected = last.at("content_digest");
  report_["last"] = {
      {"version", version}, {"content_digest", expected}, {"saved_content_digest", found}};
  if (found != expected)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("the saved state in {} has content digest {} in bfloat16, version {} "
                            "has {}",
                            saved, found, version, expected));
  context_.say(
      "compared: {} is the state that the trainer has saved, in bfloat16: content digest {}",
      version, found);
  return {};
}

// ---- the report ----

Result<std::string> TrainScenario::report() {
  WSYNC_TRY(write_files());
  const json& publishing = training_.at("publishing");
  report_["training"] = training_;
  for (const char* field :
       {"published", "committed", "staged_seconds_median", "paused_seconds_most"})
    report_[field] = publishing.at(field);
  const double waited_share = sum_of(step_values(training_, "steps", "snapshot_wait_seconds")) /
                              sum_of(step_values(training_, "steps", "seconds"));
  report_["snapshot_wait_share"] = waited_share;
  report_["verified"] = verified_;
  report_["verified_bytes"] = verified_bytes_;
  return "\n" + training_text(training_) +
         fmt::format(
             "training:   waited {:.3f}% of its step time for snapshots\n"
             "verified:   {} versions read back from the engines, {} in all, every tensor equal\n"
             "last one:   content digest {}, that of the saved state in bf16\n",
             100 * waited_share, verified_.size(), human_bytes(verified_bytes_),
             report_.at("last").at("content_digest").get<std::string>());
}

Result<> TrainScenario::write_files() {
  const auto output = WSYNC_TRY(context_.output());
  auto processes = WSYNC_TRY(read_traces({"trainer", "trainer-rounds", sidecar_name(0)}));
  const std::string picture = output + "/timeline.svg";
  report_["picture"] = picture;
  WSYNC_TRY(write_training_picture(
      picture, processes,
      {.title = fmt::format("Two training steps as measured: {} of weights to {} after each, while "
                            "the next one is computed",
                            human_bytes(report_.at("bytes")), counted(options_.engines, "engine")),
       .subtitle = fmt::format("overlapped interleaved schedule, pp 2, vpp 2, dp 2, ep 2; loss "
                               "{:.2f} to {:.2f} in the run; all processes share {}",
                               first_loss(), last_loss(), machine_text())}));
  return write_trace(output, std::move(processes));
}

}  // namespace

std::unique_ptr<Scenario> make_train_scenario(const DemoContext& context) {
  return std::make_unique<TrainScenario>(context);
}

}  // namespace wsync::cli
