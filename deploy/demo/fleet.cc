#include "deploy/demo/fleet.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/round_deadlines.h"
#include "shared/config/units.h"
#include "shared/control/zmq/request.h"

namespace wsync::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStartDeadline{60'000};
constexpr milliseconds kReadyDeadline{120'000};
constexpr milliseconds kEndPatience{10'000};
constexpr milliseconds kLook{30};  // between two looks at the status

// `version`: that every engine holds; none: any.
std::string problem_of(const control::VerifyReply& reply, const Version& version,
                       std::size_t engines) {
  if (reply.ranks.size() != engines)
    return fmt::format("{} engines answered, expected {}", reply.ranks.size(), engines);
  for (const control::VerifyRank& rank : reply.ranks) {
    if (!rank.failure.empty())
      return fmt::format("replica {}: not verified: {}", rank.replica, rank.failure);
    if (!version.none() && rank.version != version)
      return fmt::format("replica {}: holds {}, expected {}", rank.replica,
                         rank.version.to_string(), version.to_string());
    if (!rank.mismatches.empty())
      return fmt::format("replica {}: {} tensors differ, the first is {}", rank.replica,
                         rank.mismatches.size(), rank.mismatches.front().tensor);
  }
  return {};
}

// The first event of this name among lines of JSON.
std::optional<nlohmann::json> event_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object() && event.value("event", "") == name) return event;
  }
  return std::nullopt;
}

}  // namespace

nlohmann::json engines_json(const std::vector<EngineResult>& engines) {
  nlohmann::json list = nlohmann::json::array();
  for (const EngineResult& engine : engines)
    list.push_back({{"replica", engine.replica},
                    {"steps", engine.steps},
                    {"torn", engine.torn},
                    {"versions", engine.steps_by_version}});
  return list;
}

Result<nlohmann::json> result_in(const std::string& line, const std::string& command) {
  const nlohmann::json said = nlohmann::json::parse(line, nullptr, false);
  if (said.is_object() && said.contains("result")) return said.at("result");
  return fail(ErrorCode::kInternal,
              fmt::format("`wsync {}` ended without a result: '{}'", command, line));
}

DemoFleet::DemoFleet(Children& children, FleetOptions options)
    : children_(children), options_(std::move(options)) {
  for (std::uint32_t i = 0; i < options_.engines; ++i)
    replicas_.push_back(
        fmt::format("{}-{}", sidecar_name(i % options_.sidecars), i / options_.sidecars));
}

DemoFleet::~DemoFleet() { end_all(); }

std::string DemoFleet::sidecar_name(std::uint32_t index) { return fmt::format("host{}", index); }

std::string DemoFleet::address() const {
  return fmt::format("ipc://{}/{}control", options_.run_dir,
                     options_.with_trainer ? "" : sidecar_name(0) + ".");
}

Result<> DemoFleet::start_sidecar(std::uint32_t index) {
  const std::string name = sidecar_name(index);
  const auto child = WSYNC_TRY(children_.start(
      {.name = "sidecar-" + name,
       .arguments = {"sidecar", "--set", "name=" + name, "--set", "devices.kind=separate", "--set",
                     fmt::format("devices.count={}", options_.devices), "--set",
                     "devices.buffer_bytes=" + config::format_size(options_.buffer_bytes), "--set",
                     fmt::format("trace_file={}/{}", options_.trace_dir, name)}}));
  sidecars_.push_back(child);
  return {};
}

Result<> DemoFleet::start() {
  for (std::uint32_t i = 0; i < options_.sidecars; ++i) WSYNC_TRY(start_sidecar(i));
  for (std::uint32_t i = 0; i < options_.engines; ++i) {
    const bool is_victim = options_.with_trainer && i + 1 == options_.engines;
    const auto engine =
        WSYNC_TRY(start_engine(i, is_victim ? ChildOutput::kLines : ChildOutput::kFile));
    engines_.push_back(engine);
  }
  victim_ = engines_.back();
  if (options_.with_trainer) WSYNC_TRY(start_trainer());
  return until_status("every engine", [this](const control::StatusReply& status) {
    std::size_t attached = 0;
    for (const control::SidecarReport& sidecar : status.sidecars)
      for (const control::ReplicaReport& replica : sidecar.replicas)
        attached += replica.ranks_attached;
    return attached == replicas_.size();
  });
}

Result<> DemoFleet::start_trainer() {
  const auto child = WSYNC_TRY(children_.start(
      {.name = "trainer",
       .arguments = {"trainer", "--set", fmt::format("min_sidecars={}", options_.sidecars), "--set",
                     fmt::format("min_replicas={}", replicas_.size()), "--set", "arenas=4", "--set",
                     fmt::format("trace_file={}/trainer", options_.trace_dir)}}));
  trainer_ = child;
  return {};
}

Result<Child*> DemoFleet::start_engine(std::uint32_t index, ChildOutput output) {
  const std::string sidecar = sidecar_name(index % options_.sidecars);
  std::vector<std::string> arguments{
      "engine",         "--json",
      "--stats-ms",     "0",
      "--sidecar",      fmt::format("{}/{}.engines", options_.run_dir, sidecar),
      "--replica",      replicas_[index],
      "--device-index", fmt::format("{}", index / options_.sidecars % options_.devices)};
  if (options_.generates)
    arguments.insert(arguments.end(), {"--model", options_.checkpoint, "--port", "0"});
  else
    arguments.insert(arguments.end(), {"--checkpoint", options_.checkpoint});
  return children_.start(
      {.name = "engine-" + replicas_[index], .arguments = std::move(arguments), .output = output});
}

Result<> DemoFleet::restart_victim() {
  const auto engine =
      WSYNC_TRY(start_engine(static_cast<std::uint32_t>(engines_.size()) - 1, ChildOutput::kFile));
  engines_.back() = engine;
  return {};
}

// ---- questions ----

DemoFleet::Question::~Question() {
  if (!state_->done) fleet_.end_trainer();
}

std::unique_ptr<DemoFleet::Question> DemoFleet::begin(control::Message message) {
  auto question = std::make_unique<Question>(*this);
  question->thread_ = std::jthread([this, state = question->state_, message = std::move(message)] {
    Result<control::Decoded> decoded = control::request({.address = address()}, {}, message);
    children_.loop().post([this, state, decoded = std::move(decoded)]() mutable {
      state->decoded = std::move(decoded);
      state->done = true;
      children_.loop().stop();
    });
  });
  return question;
}

Result<> DemoFleet::wait_for(Question& question) {
  WSYNC_TRY(children_.until("the coordinator's answer", milliseconds(limits::kPublishDeadlineMs),
                            [&question] { return question.answered(); }));
  if (!question.state_->decoded) return fail(question.state_->decoded.error());
  return {};
}

Result<control::StatusReply> DemoFleet::status() {
  return ask<control::StatusReply>(control::Status{});
}

Result<> DemoFleet::until_status(const std::string& what,
                                 const std::function<bool(const control::StatusReply&)>& holds) {
  const TimePoint end = now() + kReadyDeadline;
  while (now() < end) {
    const Result<control::StatusReply> reply = status();
    if (!reply && reply.error().code() != ErrorCode::kPeerLost) return fail(reply.error());
    if (reply && holds(*reply)) return {};
    WSYNC_TRY(children_.pass_time(kLook));
  }
  return fail(ErrorCode::kDeadline,
              fmt::format("{} did not come within {} s", what, kReadyDeadline.count() / 1000));
}

Result<> DemoFleet::until_ready(const Version& version, const std::string& except) {
  return until_status(
      version.to_string() + " on every replica", [&](const control::StatusReply& reply) {
        std::size_t ready = 0;
        for (const control::SidecarReport& sidecar : reply.sidecars)
          for (const control::ReplicaReport& replica : sidecar.replicas)
            if (replica.replica != except && replica.ready && replica.version == version) ++ready;
        return ready == replicas_.size() - (except.empty() ? 0 : 1);
      });
}

Result<control::ReplicaReport> DemoFleet::until_replica(
    const std::string& replica, const std::string& what,
    const std::function<bool(const control::ReplicaReport&)>& wanted) {
  std::optional<control::ReplicaReport> found;
  WSYNC_TRY(until_status(what, [&](const control::StatusReply& reply) {
    for (const control::SidecarReport& sidecar : reply.sidecars)
      for (const control::ReplicaReport& report : sidecar.replicas)
        if (report.replica == replica && wanted(report)) found = report;
    return found.has_value();
  }));
  return *found;
}

Result<std::uint64_t> DemoFleet::verify(const Version& version, std::size_t engines) {
  const auto reply = WSYNC_TRY(ask<control::VerifyReply>(control::Verify{}));
  const std::string problem = problem_of(reply, version, engines);
  if (!problem.empty()) return fail(ErrorCode::kDigestMismatch, problem);
  std::uint64_t bytes = 0;
  for (const control::VerifyRank& rank : reply.ranks) bytes += rank.bytes;
  return bytes;
}

Result<std::vector<control::VerifyRank>> DemoFleet::verify_whatever(std::size_t engines) {
  auto reply = WSYNC_TRY(ask<control::VerifyReply>(control::Verify{}));
  const std::string problem = problem_of(reply, Version{}, engines);
  if (!problem.empty()) return fail(ErrorCode::kDigestMismatch, problem);
  return std::move(reply.ranks);
}

Result<std::vector<std::string>> DemoFleet::addresses() {
  std::vector<std::string> urls;
  const TimePoint end = now() + kStartDeadline;
  while (urls.size() < engines_.size()) {
    const Child& engine = *engines_[urls.size()];
    if (const auto event = event_in(children_.output_path(engine.name()), "listening"); event) {
      urls.push_back(event->value("url", ""));
      continue;
    }
    if (now() > end)
      return fail(ErrorCode::kDeadline, fmt::format("{} does not listen after {} ms", engine.name(),
                                                    kStartDeadline.count()));
    WSYNC_TRY(children_.pass_time(kLook));
  }
  return urls;
}

// ---- the end ----

void DemoFleet::end_trainer() {
  if (trainer_ != nullptr && trainer_->running()) children_.stop(*trainer_, kEndPatience);
}

void DemoFleet::end_all() {
  end_trainer();
  for (Child* engine : engines_)
    if (engine->running()) children_.stop(*engine, kEndPatience);
  for (Child* sidecar : sidecars_)
    if (sidecar->running()) children_.stop(*sidecar, kEndPatience);
}

Result<std::vector<EngineResult>> DemoFleet::stop() {
  end_all();
  std::vector<EngineResult> results;
  for (std::uint32_t i = 0; i < engines_.size(); ++i) {
    auto result = WSYNC_TRY(result_of(i));
    results.push_back(std::move(result));
  }
  return results;
}

// The last line of an engine is its result.
Result<EngineResult> DemoFleet::result_of(std::uint32_t index) const {
  std::ifstream file(children_.output_path(engines_[index]->name()));
  std::string last;
  for (std::string line; std::getline(file, line);) last = line;
  const nlohmann::json said = nlohmann::json::parse(last, nullptr, false);
  const auto result = said.is_object() ? said.find("result") : said.end();
  if (!said.is_object() || result == said.end())
    return fail(ErrorCode::kInternal,
                fmt::format("engine {} ended without saying what it served", replicas_[index]));
  EngineResult read{.replica = replicas_[index],
                    .steps = result->value("steps", std::uint64_t{0}),
                    .torn = result->value("torn", std::uint64_t{0}),
                    .steps_by_version = {}};
  for (const auto& [version, steps] : (*result)["versions"].items())
    read.steps_by_version[version] = steps.get<std::uint64_t>();
  return read;
}

}  // namespace wsync::cli
