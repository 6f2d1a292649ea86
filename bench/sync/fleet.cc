#include "bench/sync/fleet.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <poll.h>

#include "bench/sync/scrape.h"
#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kStartDeadline{60};
constexpr std::chrono::minutes kPushDeadline{10};
constexpr std::chrono::minutes kVerifyDeadline{5};
constexpr std::chrono::minutes kFloorDeadline{2};
constexpr std::chrono::seconds kStopPatience{5};
constexpr std::chrono::milliseconds kSocketPoll{5};
constexpr std::chrono::milliseconds kSettle{10};
constexpr std::string_view kSidecar = "bench";  // its name

json parsed(const std::string& line) { return json::parse(line, nullptr, false); }

// The answer of a command of wsync that was run with --json.
Result<json> answer_of(const std::string& name, const std::string& output) {
  json answer = parsed(output);
  if (!answer.is_object())
    return fail(ErrorCode::kInternal, fmt::format("{} printed no object: {}", name, output));
  if (answer.contains("error"))
    return fail(ErrorCode::kRefused,
                fmt::format("{}: {}", name, answer["error"].value("message", "no reason given")));
  return answer["result"];
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

struct Fleet::Engine {
  Child child;
  // When it left off serving and when it was told to go on, since the last push began.
  std::int64_t paused_ns = 0;
  std::int64_t resumed_ns = 0;
};

Fleet::Fleet(FleetOptions options, const Interrupt& interrupt)
    : options_(std::move(options)), interrupt_(interrupt) {}

Fleet::~Fleet() {
  if (trainer_) trainer_->stop(kStopPatience);
  for (const auto& engine : engines_) engine->child.stop(kStopPatience);
  if (sidecar_) sidecar_->stop(kStopPatience);
}

unsigned Fleet::versions_held() const noexcept { return options_.adopt ? 3 : 2; }

Result<Child> Fleet::start(const std::string& name, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), options_.executable);
  return Child::start({.command = std::move(arguments),
                       .environment = {{"WSYNC_RUN_DIR", options_.directory + "/run"},
                                       {"WSYNC_STATE_DIR", options_.directory + "/state"}},
                       .log_file = fmt::format("{}/{}.log", options_.directory, name)});
}

std::vector<std::string> Fleet::sidecar_arguments() const {
  std::vector<std::string> arguments = {"sidecar"};
  const auto set = [&](std::string setting) {
    arguments.insert(arguments.end(), {"--set", std::move(setting)});
  };
  set("name=" + std::string(kSidecar));
  set(fmt::format("versions_held={}", versions_held()));
  if (!options_.gpus.empty()) {
    set("devices.kind=cuda");
    set(fmt::format("devices.gpus={}", fmt::join(options_.gpus, ",")));
  }
  if (options_.devices > 0) {
    set("devices.kind=separate");
    set(fmt::format("devices.count={}", options_.devices));
  }
  if (options_.buffer_bytes > 0)
    set(fmt::format("devices.buffer_bytes={}B", options_.buffer_bytes));
  if (options_.tcp) set("transport=tcp");
  if (options_.watched == Watched::kNever) {
    set("http.address=none");
    set("trace_spans=0");
  }
  return arguments;
}

std::vector<std::string> Fleet::engine_arguments(std::size_t index) const {
  std::vector<std::string> arguments = {
      "bench",        "engine",
      "--sidecar",    fmt::format("{}/run/{}.engines", options_.directory, kSidecar),
      "--replica",    fmt::format("engine{}", index),
      "--checkpoint", options_.checkpoint};
  if (options_.adopt) arguments.emplace_back("--adopt");
  if (!options_.gpus.empty())
    arguments.insert(arguments.end(), {"--gpu", std::to_string(options_.gpus[index]),
                                       "--device-index", std::to_string(index)});
  if (options_.devices > 0)
    arguments.insert(arguments.end(), {"--device-index", std::to_string(index % options_.devices)});
  if (options_.watched == Watched::kAlways) arguments.emplace_back("--keep-spans");
  return arguments;
}

std::vector<std::string> Fleet::trainer_arguments() const {
  // One more than a sidecar holds: the next version is snapshotted while all of those are held.
  std::vector<std::string> arguments = {"trainer", "--set",
                                        fmt::format("arenas={}", versions_held() + 1)};
  if (options_.tcp) arguments.insert(arguments.end(), {"--set", "transport=tcp"});
  if (options_.watched == Watched::kNever)
    arguments.insert(arguments.end(), {"--set", "http.address=none", "--set", "trace_spans=0"});
  return arguments;
}

Result<std::unique_ptr<Fleet>> Fleet::start(FleetOptions options, const Interrupt& interrupt) {
  std::unique_ptr<Fleet> fleet(new Fleet(std::move(options), interrupt));
  const FleetOptions& made = fleet->options_;
  auto sidecar = WSYNC_TRY(fleet->start("sidecar", fleet->sidecar_arguments()));
  fleet->sidecar_ = std::make_unique<Child>(std::move(sidecar));
  WSYNC_TRY(fleet->wait_for_socket(fmt::format("{}/run/{}.engines", made.directory, kSidecar)));
  const std::size_t engines = made.gpus.empty() ? made.engines : made.gpus.size();
  for (std::size_t i = 0; i < engines; ++i) {
    auto child = WSYNC_TRY(fleet->start(fmt::format("engine{}", i), fleet->engine_arguments(i)));
    fleet->engines_.push_back(std::make_unique<Engine>(Engine{.child = std::move(child)}));
  }
  for (const auto& engine : fleet->engines_) WSYNC_TRY(fleet->event(*engine, "attached"));
  if (!made.has_trainer) return fleet;
  auto trainer = WSYNC_TRY(fleet->start("trainer", fleet->trainer_arguments()));
  fleet->trainer_ = std::make_unique<Child>(std::move(trainer));
  WSYNC_TRY(fleet->wait_for_socket(made.directory + "/run/control"));
  return fleet;
}

// Lets time pass; kCancelled on a signal.
Result<> Fleet::settle(std::chrono::milliseconds time) {
  pollfd fd{.fd = interrupt_.fd(), .events = POLLIN, .revents = 0};
  if (::poll(&fd, 1, static_cast<int>(time.count())) > 0)
    return fail(ErrorCode::kCancelled, "interrupted");
  return {};
}

Result<> Fleet::wait_for_socket(const std::string& path) {
  const TimePoint deadline = now() + kStartDeadline;
  while (!std::filesystem::exists(path)) {
    WSYNC_TRY(settle(kSocketPoll));
    if (now() > deadline)
      return fail(ErrorCode::kDeadline,
                  fmt::format("{} did not appear within {} s", path, kStartDeadline.count()));
  }
  return {};
}

// The next event of that name. Of those before it, the times of a pause are kept.
Result<json> Fleet::event(Engine& engine, std::string_view name) {
  const TimePoint deadline = now() + kFloorDeadline;
  for (;;) {
    const auto line = WSYNC_TRY(engine.child.line(interrupt_, deadline));
    json found = parsed(line);
    if (!found.is_object())
      return fail(ErrorCode::kInternal, "an engine said what is no object: " + line);
    const std::string event = found.value("event", "");
    if (event == "paused") engine.paused_ns = found.at("at_ns");
    if (event == "resumed") engine.resumed_ns = found.at("at_ns");
    if (event == name) return found;
    if (event == "failed" || found.contains("error"))
      return fail(ErrorCode::kRefused, "an engine could not do it: " + line);
  }
}

Result<Fleet::Answer> Fleet::run(const std::string& name, std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  arguments.emplace_back("--coordinator");
  arguments.push_back(fmt::format("ipc://{}/run/control", options_.directory));
  auto child = WSYNC_TRY(start(name, std::move(arguments)));
  const auto end =
      WSYNC_TRY(child.wait(interrupt_, now() + (name == "push" ? kPushDeadline : kVerifyDeadline)));
  auto result = WSYNC_TRY(answer_of(name, end.output));
  return Answer{.result = std::move(result), .cpu = end.cpu};
}

Result<Pushed> Fleet::push(const std::string& checkpoint, const std::string& trace) {
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
  for (const auto& engine : engines_) {
    WSYNC_TRY(event(*engine, "resumed"));
    // An engine that had nothing to serve before the first version was never paused.
    first = std::min(first, engine->paused_ns == 0 ? engine->resumed_ns : engine->paused_ns);
    last = std::max(last, engine->resumed_ns);
  }
  pushed.span_ns = static_cast<std::uint64_t>(last - first);
  return pushed;
}

Result<std::vector<FloorRun>> Fleet::floor(const std::vector<FloorWay>& ways) {
  std::vector<FloorRun> runs;
  std::uint64_t bytes = 0;
  const auto ask_all = [&](const std::string& command) -> Result<> {
    for (const auto& engine : engines_) WSYNC_TRY(engine->child.say(command));
    return {};
  };
  WSYNC_TRY(ask_all("map"));
  for (const auto& engine : engines_) {
    const auto mapped = WSYNC_TRY(event(*engine, "mapped"));
    bytes += mapped.at("bytes").get<std::uint64_t>();
  }
  for (const FloorWay& way : ways) {
    // What precedes an update: the sidecar has read the version, and everybody waits for messages.
    WSYNC_TRY(engines_.front()->child.say("read"));
    WSYNC_TRY(event(*engines_.front(), "read"));
    WSYNC_TRY(settle(kSettle));
    WSYNC_TRY(ask_all(fmt::format("copy {} {} {}", static_cast<int>(way.kind), way.threads,
                                  way.verified ? 1 : 0)));
    std::int64_t begin = INT64_MAX;
    std::int64_t end = 0;
    for (const auto& engine : engines_) {
      const auto copied = WSYNC_TRY(event(*engine, "copied"));
      begin = std::min(begin, copied.at("begin_ns").get<std::int64_t>());
      end = std::max(end, copied.at("end_ns").get<std::int64_t>());
    }
    runs.push_back({.ns = static_cast<std::uint64_t>(end - begin), .bytes = bytes});
  }
  WSYNC_TRY(ask_all("unmap"));
  for (const auto& engine : engines_) WSYNC_TRY(event(*engine, "unmapped"));
  return runs;
}

Result<> Fleet::verify() {
  const auto reply = WSYNC_TRY(run("verify", {"verify"}));
  if (!reply.result.value("match", false))
    return fail(ErrorCode::kDigestMismatch,
                "verify: what an engine holds differs: " + reply.result.dump());
  return {};
}

Result<> Fleet::trace(const std::string& path) {
  WSYNC_TRY(run("trace", {"trace", "get", "--output", path}));
  return {};
}

Result<> Fleet::check_steps() {
  for (const auto& engine : engines_) {
    WSYNC_TRY(engine->child.say("stats"));
    const auto stats = WSYNC_TRY(event(*engine, "stats"));
    if (stats.at("torn") != 0)
      return fail(ErrorCode::kDigestMismatch, "a step read torn weights: " + stats.dump());
  }
  return {};
}

Result<Memory> Fleet::sidecar_memory() const {
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", sidecar_->pid()));
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

Result<std::chrono::nanoseconds> Fleet::cpu_time() const {
  std::chrono::nanoseconds all{0};
  std::vector<const Child*> children = {trainer_.get(), sidecar_.get()};
  for (const auto& engine : engines_) children.push_back(&engine->child);
  for (const Child* child : children) {
    const auto time = WSYNC_TRY(child->cpu_time());
    all += time;
  }
  return all;
}

std::vector<std::string> Fleet::page_sockets() const {
  if (options_.watched == Watched::kNever) return {};
  return {options_.directory + "/run/control.http",
          fmt::format("{}/run/{}.http", options_.directory, kSidecar)};
}

Result<CopiedBytes> Fleet::copied_bytes() {
  std::vector<std::string> pages;
  for (const std::string& socket : page_sockets()) {
    auto page = WSYNC_TRY(scrape(socket));
    pages.push_back(std::move(page));
  }
  if (pages.size() != 2)
    return fail(ErrorCode::kInternal, "no pages are served that say what was copied");
  CopiedBytes copied;
  const auto read = [&](std::size_t page, std::string_view series,
                        std::uint64_t& bytes) -> Result<> {
    const auto value = metric_value(pages[page], series);
    if (!value || *value < 0)
      return fail(ErrorCode::kInternal, fmt::format("{} is not on the page", series));
    bytes = static_cast<std::uint64_t>(*value);
    return {};
  };
  WSYNC_TRY(read(0, "wsync_update_bytes_total{stage=\"snapshot\"}", copied.snapshot));
  WSYNC_TRY(read(0, "wsync_wire_bytes_total", copied.sent));
  WSYNC_TRY(read(1, "wsync_copied_bytes_total{stage=\"receive\"}", copied.received));
  WSYNC_TRY(read(1, "wsync_copied_bytes_total{stage=\"h2d\"}", copied.h2d));
  WSYNC_TRY(read(1, "wsync_copied_bytes_total{stage=\"broadcast\"}", copied.broadcast));
  for (const auto& engine : engines_) {
    WSYNC_TRY(engine->child.say("stats"));
    const auto stats = WSYNC_TRY(event(*engine, "stats"));
    copied.loaded += stats.at("copied_bytes").get<std::uint64_t>();
  }
  return copied;
}

PeakMemory Fleet::peak_memory() const {
  PeakMemory memory{.trainer_bytes = trainer_->peak_bytes(),
                    .sidecar_bytes = sidecar_->peak_bytes()};
  for (const auto& engine : engines_)
    memory.engine_bytes = std::max(memory.engine_bytes, engine->child.peak_bytes());
  return memory;
}

}  // namespace wsync::bench
