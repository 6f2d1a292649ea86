#include "bench/publishers/publishing_fleet.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/harness/process_usage.h"
#include "bench/harness/scrape.h"
#include "shared/base/format.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr std::chrono::minutes kAnswerDeadline{11};  // longer than the publisher's own waits
constexpr std::chrono::seconds kEndWaitLimit{10};
constexpr std::string_view kPatchLoads = "wsync_loads_total{kind=\"patch\"}";
constexpr std::string_view kPatchBytes = "wsync_update_bytes_total{stage=\"patch\"}";
constexpr std::string_view kReceivedBytes = R"(wsync_copied_bytes_total{stage="receive"})";
constexpr std::string_view kLoadSum = "wsync_update_stage_seconds_sum{stage=\"load\"}";

}  // namespace

Result<std::unique_ptr<PublishingFleet>> PublishingFleet::start(PublishingFleetOptions options,
                                                                const ModelSource& source,
                                                                cli::ChildProcesses& children) {
  std::unique_ptr<PublishingFleet> made(new PublishingFleet(std::move(options), children));
  made->fleet_ = WSYNC_TRY(MeasuredFleet::start(made->options_.fleet, children));
  WSYNC_TRY(made->start_publisher(source));
  return made;
}

PublishingFleet::~PublishingFleet() {
  if (publisher_ == nullptr) return;
  publisher_->on_line = {};
  if (publisher_->running()) children_.stop(*publisher_, kEndWaitLimit);
}

Result<> PublishingFleet::start_publisher(const ModelSource& source) {
  const MeasuredFleetOptions& fleet = options_.fleet;
  std::vector<std::string> settings{
      fmt::format("run_dir={}/run", fleet.directory),
      fmt::format("state_dir={}/state", fleet.directory),
      // As the trainer of MeasuredFleet: one more than the sidecar holds.
      fmt::format("arenas={}", fleet_->versions_held() + 1), "log.level=warning"};
  if (fleet.tcp) settings.emplace_back("transport=tcp");
  const json job = {{"settings", std::move(settings)},
                    {"tensors", source.list},
                    {"model", source.models.front()},
                    {"kinds", options_.kinds}};
  const std::string path = fleet.directory + "/job.json";
  WSYNC_TRY(trace::write_text_file(path, job.dump()));
  cli::ChildOptions command{.name = fleet.name + "-publisher",
                            .arguments = options_.command,
                            .executable = options_.executable,
                            .environment = {},
                            .input = cli::ChildInput::kLines,
                            .output = cli::ChildOutput::kLines,
                            .keep = {}};
  command.arguments.push_back(path);
  publisher_ = WSYNC_TRY(children_.start(command));
  publisher_->on_line = [this](const std::string& line) { lines_.push_back(line); };
  const auto ready = WSYNC_TRY(answer());
  private_bytes_ = resident_memory_of(publisher_->pid()).private_bytes;
  sidecar_private_bytes_ = resident_memory_of(fleet_->sidecar_process()).private_bytes;
  if (ready.value("event", "") == "ready") return {};
  return fail(ErrorCode::kInternal,
              "expected a publisher that is ready, received: " + ready.dump());
}

Result<json> PublishingFleet::answer() {
  WSYNC_TRY(children_.until("the answer of " + publisher_->name(), kAnswerDeadline,
                            [this] { return !lines_.empty(); }));
  const std::string line = std::move(lines_.front());
  lines_.pop_front();
  json said = json::parse(line, nullptr, false);
  if (!said.is_object())
    return fail(ErrorCode::kInternal,
                fmt::format("{}: expected a JSON object, received: {}", publisher_->name(), line));
  if (said.value("event", "") == "failed")
    return fail(ErrorCode::kRefused,
                fmt::format("{}: {}", publisher_->name(), said.value("why", "no reason given")));
  return said;
}

// Sum over all loads of all engines so far.
Result<double> PublishingFleet::load_seconds() const {
  const auto page = WSYNC_TRY(scrape(fleet_->page_sockets().back()));
  return metric_value(page, kLoadSum).value_or(0);  // missing before the first load
}

Result<PublishSample> PublishingFleet::publish(const std::string& kind, std::uint64_t stamp) {
  const auto loaded_before = WSYNC_TRY(load_seconds());
  const auto copied_before = WSYNC_TRY(fleet_->copied_bytes());
  WSYNC_TRY(reset_peak_of(publisher_->pid()));
  WSYNC_TRY(publisher_->write_line(fmt::format("publish {} {}", kind, stamp)));
  const auto said = WSYNC_TRY(answer());
  const std::uint64_t peak = peak_bytes_of(publisher_->pid());
  const std::uint64_t known = private_bytes_ + resident_memory_of(publisher_->pid()).shared_bytes;
  const auto copied = WSYNC_TRY(fleet_->copied_bytes()) - copied_before;
  const auto loaded = WSYNC_TRY(load_seconds()) - loaded_before;
  const unsigned engines = options_.fleet.engines;
  if (said.at("replicas") != engines)
    return fail(ErrorCode::kRefused,
                fmt::format("{}: {} of {} engines have committed the publish", publisher_->name(),
                            said.at("replicas").dump(), engines));
  return PublishSample{.snapshot_ns = said.at("snapshot_ns"),
                       .staged_ns = said.at("staged_ns"),
                       .whole_ns = said.at("whole_ns"),
                       .paused_ns = said.at("paused_ns"),
                       .load_ns = static_cast<std::uint64_t>(1e9 * loaded / engines),
                       .snapshot_cpu_ns = said.at("snapshot_cpu_ns"),
                       .cpu_ns = said.at("cpu_ns"),
                       .copied_bytes = copied.snapshot,
                       .sent_bytes = copied.sent,
                       .growth_bytes = peak > known ? peak - known : 0,
                       .digest = said.at("digest")};
}

Result<std::uint64_t> PublishingFleet::change(const std::string& how, double share,
                                              std::uint64_t seed) {
  WSYNC_TRY(publisher_->write_line(fmt::format("change {} {} {}", how, share, seed)));
  const auto said = WSYNC_TRY(answer());
  return said.at("bytes").get<std::uint64_t>();
}

Result<std::uint64_t> PublishingFleet::load(const std::string& model) {
  WSYNC_TRY(publisher_->write_line("load " + model));
  const auto said = WSYNC_TRY(answer());
  return said.at("elements").get<std::uint64_t>();
}

Result<PublishingFleet::PatchCounts> PublishingFleet::patch_counts() const {
  const auto page = WSYNC_TRY(scrape(fleet_->page_sockets().back()));
  const auto value = [&](std::string_view series) {
    return static_cast<std::uint64_t>(metric_value(page, series).value_or(0));
  };
  return PatchCounts{.loads = value(kPatchLoads),
                     .bytes = value(kPatchBytes),
                     .travelled_bytes = value(kReceivedBytes)};
}

Result<std::uint64_t> PublishingFleet::version_bytes() const {
  const pid_t publisher = publisher_->pid();
  const pid_t sidecar = fleet_->sidecar_process();
  std::vector<pid_t> pids = fleet_->engine_processes();
  pids.push_back(publisher);
  pids.push_back(sidecar);
  const auto more = [](pid_t pid, std::uint64_t before) {
    const std::uint64_t now = resident_memory_of(pid).private_bytes;
    return now - std::min(now, before);
  };
  return WSYNC_TRY(memfd_bytes_of(pids)) + more(publisher, private_bytes_) +
         more(sidecar, sidecar_private_bytes_);
}

Result<std::uint64_t> PublishingFleet::snapshot_floor(const FloorWay& way) {
  WSYNC_TRY(
      publisher_->write_line(fmt::format("floor {} {}", copy_kind_name(way.kind), way.threads)));
  const auto said = WSYNC_TRY(answer());
  return said.at("ns").get<std::uint64_t>();
}

Result<json> PublishingFleet::trace() {
  const std::string path = options_.fleet.directory + "/trace.json";
  WSYNC_TRY(fleet_->trace(path, fmt::format("ipc://{}/run/control", options_.fleet.directory)));
  std::ifstream file(path);
  json trace = json::parse(file, nullptr, false);
  if (trace.is_object()) return trace;
  return fail(ErrorCode::kInternal, path + ": expected a JSON object");
}

Result<> PublishingFleet::verify() {
  WSYNC_TRY(fleet_->verify());
  return fleet_->check_steps();
}

}  // namespace wsync::bench
