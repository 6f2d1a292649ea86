#include "deploy/fleet/fleet.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/round_deadlines.h"
#include "shared/control/zmq/request.h"

namespace wsync::fleet {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStartDeadline{60'000};
constexpr milliseconds kReadyDeadline{120'000};
constexpr milliseconds kEndWaitLimit{10'000};
constexpr milliseconds kSocketInterval{5};   // poll interval for a socket file
constexpr milliseconds kStatusInterval{30};  // poll interval for the status

// Returns why a Verify reply is not as expected; std::nullopt if it is. `version`: what every
// engine must hold; none: any version.
std::optional<std::string> difference_of(const control::VerifyReply& reply, const Version& version,
                                         std::size_t engines) {
  if (reply.ranks.size() != engines)
    return fmt::format("{} engines answered, expected {}", reply.ranks.size(), engines);
  for (const control::VerifyRank& rank : reply.ranks) {
    if (!rank.failure.empty())
      return fmt::format("replica {}: not verified: {}", rank.replica, rank.failure);
    if (!version.none() && rank.version != version)
      return fmt::format("replica {}: serves {}, expected {}", rank.replica,
                         rank.version.to_string(), version.to_string());
    if (!rank.mismatches.empty())
      return fmt::format("replica {}: {} tensors differ; the first one is {}", rank.replica,
                         rank.mismatches.size(), rank.mismatches.front().tensor);
  }
  return std::nullopt;
}

// Returns the first event with this name from a file of JSON lines.
std::optional<nlohmann::json> event_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object() && event.value("event", "") == name) return event;
  }
  return std::nullopt;
}

std::vector<std::string> with_settings(std::string command,
                                       const std::vector<std::string>& settings) {
  std::vector<std::string> arguments{std::move(command)};
  for (const std::string& setting : settings) {
    arguments.emplace_back("--set");
    arguments.push_back(setting);
  }
  return arguments;
}

}  // namespace

Result<nlohmann::json> result_in(const std::string& line, const std::string& command) {
  const nlohmann::json said = nlohmann::json::parse(line, nullptr, false);
  if (said.is_object() && said.contains("result")) return said.at("result");
  return fail(ErrorCode::kInternal,
              fmt::format("`wsync {}` ended without a result: '{}'", command, line));
}

std::string last_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) last = line;
  return last;
}

Fleet::Fleet(ChildProcesses& children, FleetOptions options)
    : children_(children), options_(std::move(options)) {}

Fleet::~Fleet() { shutdown(); }

std::string Fleet::address() const {
  return fmt::format("ipc://{}/{}control", options_.run_dir,
                     options_.trainer ? "" : options_.sidecars.front().name + ".");
}

ChildOptions Fleet::command(std::string name, std::vector<std::string> arguments) const {
  return {.name = std::move(name),
          .arguments = std::move(arguments),
          .executable = options_.executable,
          .environment = {"WSYNC_RUN_DIR=" + options_.run_dir,
                          "WSYNC_STATE_DIR=" + options_.state_dir}};
}

Result<> Fleet::start(const OnLine& on_line) {
  for (const SidecarSpec& sidecar : options_.sidecars) {
    std::vector<std::string> arguments = with_settings("sidecar", sidecar.settings);
    arguments.insert(arguments.end(), {"--set", "name=" + sidecar.name});
    sidecars_.push_back(WSYNC_TRY(children_.start(
        command(options_.prefix + "sidecar-" + sidecar.name, std::move(arguments)))));
  }
  // An engine that finds no socket waits before it retries. Starting engines after the sockets
  // exist avoids this delay.
  for (const SidecarSpec& sidecar : options_.sidecars)
    WSYNC_TRY(until_socket(fmt::format("{}/{}.engines", options_.run_dir, sidecar.name)));
  for (const EngineSpec& engine : options_.engines) {
    Child* const child = WSYNC_TRY(start_engine(engine, engine.output));
    if (on_line && engine.output == ChildOutput::kLines)
      child->on_line = [on_line, index = engines_.size()](const std::string& line) {
        on_line(index, line);
      };
    engines_.push_back(child);
  }
  if (options_.trainer)
    trainer_ = WSYNC_TRY(children_.start(
        command(options_.prefix + "trainer", with_settings("trainer", *options_.trainer))));
  return until_status("all engines attached", [this](const control::StatusReply& status) {
    std::size_t attached = 0;
    for (const control::SidecarReport& sidecar : status.sidecars)
      for (const control::ReplicaReport& replica : sidecar.replicas)
        attached += replica.ranks_attached;
    return attached == engines_.size();
  });
}

Result<> Fleet::until_socket(const std::string& path) {
  const TimePoint end = now() + kStartDeadline;
  while (!std::filesystem::exists(path)) {
    WSYNC_TRY(children_.pass_time(kSocketInterval));
    if (now() > end)
      return fail(ErrorCode::kDeadline, fmt::format("{} did not appear within {} s", path,
                                                    kStartDeadline.count() / 1000));
  }
  return {};
}

Result<Child*> Fleet::start_engine(const EngineSpec& engine, ChildOutput output) {
  std::vector<std::string> arguments = engine.command;
  arguments.insert(arguments.end(),
                   {"--sidecar", fmt::format("{}/{}.engines", options_.run_dir, engine.sidecar),
                    "--replica", engine.replica});
  ChildOptions options = command(engine.name, std::move(arguments));
  options.output = output;
  options.input = engine.input;
  return children_.start(options);
}

bool Fleet::all_running() const noexcept {
  const auto runs = [](const Child* child) { return child->running(); };
  return std::all_of(sidecars_.begin(), sidecars_.end(), runs) &&
         std::all_of(engines_.begin(), engines_.end(), runs) &&
         (trainer_ == nullptr || trainer_->running());
}

Result<> Fleet::restart_engine(std::size_t index) {
  engines_[index] = WSYNC_TRY(start_engine(options_.engines[index], ChildOutput::kFile));
  return {};
}

// ---- requests ----

Fleet::Question::~Question() {
  // The request's thread is joined after this. It waits for the reply of the coordinator, and only
  // the end of the trainer ends this wait early.
  if (!state_->done) fleet_.end_trainer();
}

std::unique_ptr<Fleet::Question> Fleet::begin(control::Message message) {
  auto question = std::make_unique<Question>(*this);
  question->thread_ = std::jthread([this, state = question->state_, message = std::move(message)] {
    Result<control::Decoded> decoded =
        control::request({.address = address(), .peer_is_starting = true}, {}, message);
    children_.loop().post([this, state, decoded = std::move(decoded)]() mutable {
      state->decoded = std::move(decoded);
      state->done = true;
      children_.loop().stop();
    });
  });
  return question;
}

Result<> Fleet::wait_for(Question& question) {
  WSYNC_TRY(children_.until("the coordinator's answer", milliseconds(limits::kPublishDeadlineMs),
                            [&question] { return question.answered(); }));
  if (!question.state_->decoded) return fail(question.state_->decoded.error());
  return {};
}

Result<> Fleet::until_status(const std::string& what,
                             const std::function<bool(const control::StatusReply&)>& holds) {
  const TimePoint end = now() + kReadyDeadline;
  while (now() < end) {
    const auto reply = ask<control::StatusReply>(control::Status{});
    // kPeerLost is expected while the process that is asked is still starting.
    if (!reply && reply.error().code() != ErrorCode::kPeerLost) return fail(reply.error());
    if (reply && holds(*reply)) return {};
    WSYNC_TRY(children_.pass_time(kStatusInterval));
  }
  return fail(ErrorCode::kDeadline,
              fmt::format("{}: not reached within {} s", what, kReadyDeadline.count() / 1000));
}

Result<> Fleet::until_ready(const Version& version, const std::string& except) {
  return until_status(
      version.to_string() + " on every replica", [&](const control::StatusReply& reply) {
        std::size_t ready = 0;
        for (const control::SidecarReport& sidecar : reply.sidecars)
          for (const control::ReplicaReport& replica : sidecar.replicas)
            if (replica.replica != except && replica.ready && replica.version == version) ++ready;
        return ready == engines_.size() - (except.empty() ? 0 : 1);
      });
}

Result<control::ReplicaReport> Fleet::until_replica(
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

Result<std::vector<control::VerifyRank>> Fleet::verify(const Version& version,
                                                       std::size_t engines) {
  auto reply = WSYNC_TRY(ask<control::VerifyReply>(control::Verify{}));
  // An engine that loads the next version just now has none to read back.
  const TimePoint end = now() + kStartDeadline;
  while (version.none() && now() < end &&
         std::ranges::any_of(reply.ranks, [](const auto& rank) { return !rank.failure.empty(); })) {
    WSYNC_TRY(children_.pass_time(kStatusInterval));
    reply = WSYNC_TRY(ask<control::VerifyReply>(control::Verify{}));
  }
  if (const auto difference = difference_of(reply, version, engines))
    return fail(ErrorCode::kDigestMismatch, *difference);
  return std::move(reply.ranks);
}

Result<std::vector<std::string>> Fleet::addresses() {
  std::vector<std::string> urls;
  const TimePoint end = now() + kStartDeadline;
  while (urls.size() < engines_.size()) {
    const Child& engine = *engines_[urls.size()];
    if (const auto event = event_in(children_.output_path(engine.name()), "listening"); event) {
      urls.push_back(event->value("url", ""));
      continue;
    }
    if (now() > end)
      return fail(ErrorCode::kDeadline, fmt::format("{} did not listen within {} ms", engine.name(),
                                                    kStartDeadline.count()));
    WSYNC_TRY(children_.pass_time(kStatusInterval));
  }
  return urls;
}

// ---- shutdown ----

void Fleet::end_trainer() {
  if (trainer_ != nullptr && trainer_->running()) children_.stop(*trainer_, kEndWaitLimit);
}

void Fleet::shutdown() {
  end_trainer();
  for (const auto* processes : {&engines_, &sidecars_})
    for (Child* child : *processes)
      if (child->running()) children_.stop(*child, kEndWaitLimit);
}

Result<std::vector<EngineResult>> Fleet::stop() {
  shutdown();
  std::vector<EngineResult> results;
  for (std::size_t i = 0; i < engines_.size(); ++i) results.push_back(WSYNC_TRY(result_of(i)));
  return results;
}

// Reads the result of an engine from the last line of its output.
Result<EngineResult> Fleet::result_of(std::size_t index) const {
  const std::string& replica = options_.engines[index].replica;
  const auto result =
      result_in(last_line_of(children_.output_path(engines_[index]->name())), "engine");
  if (!result)
    return fail(ErrorCode::kInternal, fmt::format("engine {} ended without a result", replica));
  EngineResult read{.replica = replica,
                    .steps = result->value("steps", std::uint64_t{0}),
                    .torn = result->value("torn", std::uint64_t{0}),
                    .steps_by_version = {}};
  for (const auto& [version, steps] : result->at("versions").items())
    read.steps_by_version[version] = steps.get<std::uint64_t>();
  return read;
}

}  // namespace wsync::fleet
