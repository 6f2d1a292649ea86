#include "bench/sync/measured_fleet.h"

#include <algorithm>
#include <fstream>

#include "bench/harness/process_usage.h"
#include "bench/harness/scrape.h"
#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr std::chrono::minutes kCommandDeadline{10};
constexpr std::chrono::minutes kFloorDeadline{2};
constexpr std::chrono::milliseconds kSettle{10};
constexpr const char* kSidecar = "bench";  // name of the sidecar

// Parses the output of a wsync command that ran with --json.
Result<json> answer_of(const std::string& name, const std::string& output) {
  json answer = json::parse(output, nullptr, false);
  if (!answer.is_object())
    return fail(ErrorCode::kInternal,
                fmt::format("{}: expected a JSON object, received: {}", name, output));
  if (answer.contains("error"))
    return fail(ErrorCode::kRefused,
                fmt::format("{}: {}", name, answer["error"].value("message", "no reason given")));
  return answer["result"];
}

// Settings and engines of the fleet, as `wsync` accepts them.
unsigned versions_held(const MeasuredFleetOptions& options) { return options.adopt ? 3 : 2; }

std::vector<std::string> sidecar_settings(const MeasuredFleetOptions& options) {
  std::vector<std::string> settings{fmt::format("versions_held={}", versions_held(options))};
  if (!options.gpus.empty()) {
    settings.emplace_back("devices.kind=cuda");
    settings.push_back(fmt::format("devices.gpus={}", fmt::join(options.gpus, ",")));
  }
  if (options.devices > 0) {
    settings.emplace_back("devices.kind=separate");
    settings.push_back(fmt::format("devices.count={}", options.devices));
  }
  if (options.buffer_bytes > 0)
    settings.push_back(fmt::format("devices.buffer_bytes={}B", options.buffer_bytes));
  if (options.tcp) settings.emplace_back("transport=tcp");
  // What is measured is the transfer and the load of all bytes, although the versions of a
  // benchmark may be alike.
  settings.emplace_back("patch.transfer=off");
  settings.emplace_back("patch.mode=off");
  settings.insert(settings.end(), options.sidecar_settings.begin(), options.sidecar_settings.end());
  return settings;
}

std::vector<std::string> engine_command(const MeasuredFleetOptions& options, std::size_t index) {
  std::vector<std::string> command{"bench", "engine", "--checkpoint", options.checkpoint};
  const auto add = [&](std::initializer_list<std::string> words) {
    command.insert(command.end(), words);
  };
  if (options.adopt) add({"--adopt"});
  if (!options.gpus.empty())
    add({"--gpu", std::to_string(options.gpus[index]), "--device-index", std::to_string(index)});
  if (options.devices > 0) add({"--device-index", std::to_string(index % options.devices)});
  if (options.watched == Watched::kAlways) add({"--keep-spans"});
  return command;
}

fleet::FleetOptions fleet_options(const MeasuredFleetOptions& options) {
  fleet::FleetOptions made{.executable = options.executable,
                           .prefix = options.name + "-",
                           .run_dir = options.directory + "/run",
                           .state_dir = options.directory + "/state",
                           .sidecars = {{.name = kSidecar, .settings = sidecar_settings(options)}},
                           .engines = {},
                           .trainer = {}};
  const std::size_t engines = options.gpus.empty() ? options.engines : options.gpus.size();
  for (std::size_t i = 0; i < engines; ++i)
    made.engines.push_back({.name = fmt::format("{}-engine{}", options.name, i),
                            .sidecar = kSidecar,
                            .replica = fmt::format("engine{}", i),
                            .command = engine_command(options, i),
                            .output = cli::ChildOutput::kLines,
                            .input = cli::ChildInput::kLines});
  if (options.has_trainer) {
    // One more than a sidecar holds, because the next snapshot is taken while all of those are
    // held.
    made.trainer = {fmt::format("arenas={}", versions_held(options) + 1)};
    if (options.tcp) made.trainer->emplace_back("transport=tcp");
  }
  if (options.watched == Watched::kNever)
    for (auto* settings :
         {&made.sidecars.front().settings, made.trainer ? &*made.trainer : nullptr})
      if (settings != nullptr)
        settings->insert(settings->end(), {"http.address=none", "trace_spans=0"});
  return made;
}

}  // namespace

CopiedBytes CopiedBytes::operator-(const CopiedBytes& earlier) const {
  return {.snapshot = snapshot - earlier.snapshot,
          .sent = sent - earlier.sent,
          .received = received - earlier.received,
          .h2d = h2d - earlier.h2d,
          .broadcast = broadcast - earlier.broadcast,
          .loaded = loaded - earlier.loaded};
}

MeasuredFleet::MeasuredFleet(MeasuredFleetOptions options, cli::ChildProcesses& children)
    : options_(std::move(options)), children_(children), fleet_(children, fleet_options(options_)) {
  engines_.resize(fleet_.options().engines.size());
}

unsigned MeasuredFleet::versions_held() const noexcept { return bench::versions_held(options_); }

Result<std::unique_ptr<MeasuredFleet>> MeasuredFleet::start(MeasuredFleetOptions options,
                                                            cli::ChildProcesses& children) {
  std::unique_ptr<MeasuredFleet> made(new MeasuredFleet(std::move(options), children));
  WSYNC_TRY(made->fleet_.start([fleet = made.get()](std::size_t engine, const std::string& line) {
    fleet->engines_[engine].lines.push_back(line);
  }));
  return made;
}

// Returns the next event with that name. Stores the times of pauses from earlier events.
Result<json> MeasuredFleet::event(std::size_t engine, std::string_view name) {
  Engine& said = engines_[engine];
  for (;;) {
    WSYNC_TRY(children_.until(fmt::format("'{}' of {}", name, fleet_.engine(engine).name()),
                              kFloorDeadline, [&] { return !said.lines.empty(); }));
    const std::string line = std::move(said.lines.front());
    said.lines.pop_front();
    json found = json::parse(line, nullptr, false);
    if (!found.is_object())
      return fail(ErrorCode::kInternal, "expected a JSON object from an engine, received: " + line);
    const std::string event = found.value("event", "");
    if (event == "paused") said.paused_ns = found.at("at_ns");
    if (event == "resumed") said.resumed_ns = found.at("at_ns");
    if (event == name) return found;
    if (event == "failed" || found.contains("error"))
      return fail(ErrorCode::kRefused, "an engine could not execute a command: " + line);
  }
}

Result<MeasuredFleet::Answer> MeasuredFleet::run(const std::string& name,
                                                 std::vector<std::string> arguments,
                                                 const std::string& coordinator) {
  arguments.insert(arguments.end(), {"--json", "--coordinator",
                                     coordinator.empty() ? fleet_.address() : coordinator});
  cli::ChildOptions command = fleet_.command(options_.name + "-" + name, std::move(arguments));
  command.output = cli::ChildOutput::kLines;
  cli::Child* const child = WSYNC_TRY(children_.start(command));
  std::string line;
  child->may_end();
  child->on_line = [&line](const std::string& last) { line = last; };
  const Result<> ended = children_.until(name, kCommandDeadline, [&] { return !child->running(); });
  child->on_line = {};
  WSYNC_TRY(ended);
  auto result = WSYNC_TRY(answer_of(name, line));
  return Answer{.result = std::move(result), .cpu = child->ended_cpu()};
}

Result<Pushed> MeasuredFleet::push(const std::string& checkpoint, const std::string& trace) {
  std::vector<std::string> arguments = {"push", checkpoint};
  if (!trace.empty()) arguments.insert(arguments.end(), {"--trace", trace});
  const auto answer = WSYNC_TRY(run("push", std::move(arguments)));
  const json& reply = answer.result;
  if (!reply.value("ok", false))
    return fail(ErrorCode::kRefused, "push: " + reply.value("reason", ""));
  Pushed pushed{.staged_ns = reply.at("staged_ns"), .command_cpu = answer.cpu};
  for (const json& replica : reply.at("replicas")) {
    if (replica.at("outcome") != "committed")
      return fail(ErrorCode::kRefused,
                  fmt::format("{}: {} ({})", replica.value("replica", ""),
                              replica.value("outcome", ""), replica.value("reason", "")));
    pushed.paused_ns = std::max(pushed.paused_ns, replica.at("paused_ns").get<std::uint64_t>());
    pushed.load_ns = std::max(pushed.load_ns, replica.at("load_ns").get<std::uint64_t>());
    pushed.checked_bytes += replica.at("bytes").get<std::uint64_t>();
  }
  if (reply.at("replicas").size() != engines_.size())
    return fail(ErrorCode::kInternal, fmt::format("{} of {} replicas answered the push",
                                                  reply.at("replicas").size(), engines_.size()));
  std::int64_t first = INT64_MAX;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    (void)WSYNC_TRY(event(i, "resumed"));
    const Engine& engine = engines_[i];
    // Before the first version an engine has nothing to serve, so it was not paused.
    first = std::min(first, engine.paused_ns == 0 ? engine.resumed_ns : engine.paused_ns);
    last = std::max(last, engine.resumed_ns);
  }
  pushed.span_ns = static_cast<std::uint64_t>(last - first);
  return pushed;
}

Result<MeasuredFleet::LastLoad> MeasuredFleet::last_load() {
  // A coordinator hears of it with the next heartbeat.
  const auto answer = WSYNC_TRY(run(
      "status", {"status"}, fmt::format("ipc://{}/run/{}.control", options_.directory, kSidecar)));
  for (const json& sidecar : answer.result.at("sidecars"))
    for (const json& replica : sidecar.at("replicas"))
      if (replica.at("replica") == fleet_.options().engines.front().replica)
        return LastLoad{.by_patch = replica.at("last_load").at("kind") == "patch",
                        .written_bytes = replica.at("last_load").at("written_bytes")};
  return fail(ErrorCode::kNotFound, "the sidecar does not know the first engine");
}

Result<std::vector<FloorRun>> MeasuredFleet::floor(const std::vector<FloorWay>& ways) {
  std::vector<FloorRun> runs;
  std::uint64_t bytes = 0;
  const auto ask_all = [&](const std::string& command) -> Result<> {
    for (std::size_t i = 0; i < engines_.size(); ++i) WSYNC_TRY(ask_engine(i, command));
    return {};
  };
  WSYNC_TRY(ask_all("map"));
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    const auto mapped = WSYNC_TRY(event(i, "mapped"));
    bytes += mapped.at("bytes").get<std::uint64_t>();
  }
  for (const FloorWay& way : ways) {
    // The state before an update: the sidecar has read the version, and all processes wait for
    // messages.
    WSYNC_TRY(ask_engine(0, "read"));
    (void)WSYNC_TRY(event(0, "read"));
    WSYNC_TRY(children_.pass_time(kSettle));
    WSYNC_TRY(ask_all(
        fmt::format("copy {} {} {}", copy_kind_name(way.kind), way.threads, way.verified ? 1 : 0)));
    std::int64_t begin = INT64_MAX;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      const auto copied = WSYNC_TRY(event(i, "copied"));
      begin = std::min(begin, copied.at("begin_ns").get<std::int64_t>());
      end = std::max(end, copied.at("end_ns").get<std::int64_t>());
    }
    runs.push_back({.ns = static_cast<std::uint64_t>(end - begin), .bytes = bytes});
  }
  WSYNC_TRY(ask_all("unmap"));
  for (std::size_t i = 0; i < engines_.size(); ++i) (void)WSYNC_TRY(event(i, "unmapped"));
  return runs;
}

Result<> MeasuredFleet::verify() {
  const auto ranks = fleet_.verify(Version{}, engines_.size());
  if (!ranks) return fail(ranks.error().with_context("verify"));
  return {};
}

Result<> MeasuredFleet::trace(const std::string& path, const std::string& coordinator) {
  (void)WSYNC_TRY(run("trace", {"trace", "get", "--output", path}, coordinator));
  return {};
}

Result<> MeasuredFleet::check_steps() {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    WSYNC_TRY(ask_engine(i, "stats"));
    const auto stats = WSYNC_TRY(event(i, "stats"));
    if (stats.at("torn") != 0)
      return fail(ErrorCode::kDigestMismatch, "a step read torn weights: " + stats.dump());
  }
  return {};
}

Result<Memory> MeasuredFleet::sidecar_memory() const {
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", fleet_.sidecar(0).pid()));
  Memory memory;
  for (std::string line; std::getline(file, line);) {
    const auto kib = [&line] {
      return std::stoull(line.substr(line.find(':') + 1)) * limits::kKiB;
    };
    if (line.starts_with("Pss:")) memory.pss_bytes = kib();
    if (line.starts_with("Rss:")) memory.rss_bytes = kib();
  }
  if (memory.pss_bytes == 0)
    return fail(ErrorCode::kIo, "the sidecar's /proc/PID/smaps_rollup cannot be read");
  return memory;
}

Result<std::chrono::nanoseconds> MeasuredFleet::cpu_time() const {
  std::chrono::nanoseconds all = WSYNC_TRY(cpu_time_of(fleet_.trainer()->pid()));
  all += WSYNC_TRY(cpu_time_of(fleet_.sidecar(0).pid()));
  for (std::size_t i = 0; i < engines_.size(); ++i)
    all += WSYNC_TRY(cpu_time_of(fleet_.engine(i).pid()));
  return all;
}

std::vector<std::string> MeasuredFleet::page_sockets() const {
  if (options_.watched == Watched::kNever) return {};
  return {options_.directory + "/run/control.http",
          fmt::format("{}/run/{}.http", options_.directory, kSidecar)};
}

Result<CopiedBytes> MeasuredFleet::copied_bytes() {
  std::vector<std::string> pages;
  for (const std::string& socket : page_sockets()) {
    auto page = WSYNC_TRY(scrape(socket));
    pages.push_back(std::move(page));
  }
  if (pages.size() != 2)
    return fail(ErrorCode::kInternal,
                "copied bytes cannot be counted, because this fleet serves no metrics pages");
  CopiedBytes copied;
  const auto read = [&](std::size_t page, std::string_view series,
                        std::uint64_t& bytes) -> Result<> {
    const auto value = metric_value(pages[page], series);
    if (!value || *value < 0)
      return fail(ErrorCode::kInternal,
                  fmt::format("the metric {} is missing on the metrics page", series));
    bytes = static_cast<std::uint64_t>(*value);
    return {};
  };
  WSYNC_TRY(read(0, "wsync_update_bytes_total{stage=\"snapshot\"}", copied.snapshot));
  WSYNC_TRY(read(0, "wsync_wire_bytes_total", copied.sent));
  WSYNC_TRY(read(1, "wsync_copied_bytes_total{stage=\"receive\"}", copied.received));
  WSYNC_TRY(read(1, "wsync_copied_bytes_total{stage=\"h2d\"}", copied.h2d));
  WSYNC_TRY(read(1, "wsync_copied_bytes_total{stage=\"broadcast\"}", copied.broadcast));
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    WSYNC_TRY(ask_engine(i, "stats"));
    const auto stats = WSYNC_TRY(event(i, "stats"));
    copied.loaded += stats.at("copied_bytes").get<std::uint64_t>();
  }
  return copied;
}

PeakMemory MeasuredFleet::peak_memory() const {
  PeakMemory memory{.trainer_bytes = peak_bytes_of(fleet_.trainer()->pid()),
                    .sidecar_bytes = peak_bytes_of(fleet_.sidecar(0).pid())};
  for (std::size_t i = 0; i < engines_.size(); ++i)
    memory.engine_bytes = std::max(memory.engine_bytes, peak_bytes_of(fleet_.engine(i).pid()));
  return memory;
}

pid_t MeasuredFleet::sidecar_process() const { return fleet_.sidecar(0).pid(); }

std::vector<pid_t> MeasuredFleet::engine_processes() const {
  std::vector<pid_t> pids;
  for (std::size_t i = 0; i < engines_.size(); ++i) pids.push_back(fleet_.engine(i).pid());
  return pids;
}

}  // namespace wsync::bench
