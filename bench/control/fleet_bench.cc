#include "bench/control/fleet_bench.h"

#include <algorithm>
#include <arpa/inet.h>
#include <filesystem>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <utility>

#include "bench/control/fleet_peers.h"
#include "bench/harness/catalogue.h"
#include "bench/harness/children.h"
#include "bench/harness/machine.h"
#include "bench/harness/process_usage.h"
#include "bench/harness/report.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/unique_fd.h"
#include "shared/control/keys/key_folder.h"
#include "shared/control/zmq/key_pair.h"
#include "shared/control/zmq/request.h"
#include "shared/weights/example/example_checkpoint.h"

namespace wsync::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::uint64_t kFleetModelBytes = 2 * limits::kMiB;
constexpr milliseconds kFleetDeadline{120'000};
constexpr milliseconds kLook{20};
constexpr milliseconds kStopLimit{5'000};
// What a fleet of this size should achieve.
constexpr unsigned kTargetSidecars = 1000;
constexpr double kDecideTarget = 1;
constexpr double kSwitchTarget = 3;
constexpr double kProcessorTarget = 1.5;
constexpr double kIdleTarget = 2;

struct FleetRound {
  double decide_s = 0;
  double switch_s = 0;
  double processor_s = 0;
  double message_us = 0;
};

struct FleetFigures {
  std::vector<FleetRound> rounds;
  double idle_percent = 0;
  double memory_mib = 0;
};

// A port that nobody listens on now.
Result<std::uint16_t> free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!fd.valid() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail_errno("find a free port", errno);
  return ntohs(address.sin_port);
}

class FleetRun {
 public:
  FleetRun(const FleetBenchOptions& options, unsigned sidecars, bool has_keys,
           std::string checkpoint, cli::ChildProcesses& children)
      : options_(options),
        sidecars_(sidecars),
        has_keys_(has_keys),
        checkpoint_(std::move(checkpoint)),
        directory_(fmt::format("{}/{}{}", options.directory, sidecars, has_keys ? "k" : "")),
        children_(children) {}
  FleetRun(const FleetRun&) = delete;
  FleetRun& operator=(const FleetRun&) = delete;
  ~FleetRun() {
    peers_.reset();
    if (trainer_ == nullptr || !trainer_->running()) return;
    trainer_->may_end();
    children_.stop(*trainer_, kStopLimit);
  }

  Result<> start() {
    for (const char* folder : {"", "/run", "/state"}) {
      const std::string path = directory_ + folder;
      std::error_code error;
      std::filesystem::create_directory(path, error);
      if (error) return fail_errno(fmt::format("create {}", path), error.value());
      std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    }
    if (has_keys_) WSYNC_TRY(make_keys());
    const auto replicas = std::uint64_t{sidecars_} * options_.replicas;
    cli::ChildOptions child{.name = fmt::format("trainer{}{}", sidecars_, has_keys_ ? "k" : ""),
                            .arguments = {"trainer"},
                            .executable = options_.executable,
                            .environment = {}};
    std::vector<std::string> settings = {
        "run_dir=" + directory_ + "/run", "state_dir=" + directory_ + "/state",
        std::string("http.address=none"), fmt::format("min_sidecars={}", sidecars_),
        fmt::format("min_replicas={}", replicas)};
    if (has_keys_) {
      settings.push_back("listen=" + address_);
      settings.push_back("keys=" + directory_ + "/keys");
    }
    for (const std::string& setting : settings) {
      child.arguments.emplace_back("--set");
      child.arguments.push_back(setting);
    }
    trainer_ = WSYNC_TRY(children_.start(child));
    peers_ = WSYNC_TRY(FleetPeers::start({.address = address_,
                                          .sidecars = sidecars_,
                                          .replicas = options_.replicas,
                                          .keys = keys_}));
    return until("the sidecars have joined", [this] { return peers_->joined() == sidecars_; });
  }

  Result<FleetRound> push() {
    peers_->begin();
    const auto cpu = WSYNC_TRY(cpu_time_of(trainer_->pid()));
    control::PushReply reply;
    TimePoint end;
    WSYNC_TRY(
        children_.in_thread("a push", kFleetDeadline, [&](const std::atomic<bool>&) -> Result<> {
          control::RequestOptions request{
              .address = address_, .name = "push", .deadline = kFleetDeadline};
          request.key = operator_key_;
          const auto decoded = WSYNC_TRY(
              control::request(request, {}, control::Push{.directory = checkpoint_, .step = 0}));
          end = now();
          const auto* answer = std::get_if<control::PushReply>(&decoded.message);
          if (answer == nullptr)
            return fail(ErrorCode::kInternal, "the coordinator sent a reply of another type");
          reply = *answer;
          return {};
        }));
    const auto used = WSYNC_TRY(cpu_time_of(trainer_->pid())) - cpu;
    WSYNC_TRY(peers_->check());
    const FleetTraffic traffic = peers_->traffic();
    if (!reply.ok || traffic.decides != sidecars_)
      return fail(ErrorCode::kInternal,
                  fmt::format("a push to {} ended with {} decisions sent: {}",
                              counted(sidecars_, "sidecar"), traffic.decides, reply.reason));
    return FleetRound{.decide_s = seconds(traffic.decided - traffic.announced),
                      .switch_s = seconds(end - traffic.announced),
                      .processor_s = seconds(used),
                      .message_us = seconds(used) * 1e6 / static_cast<double>(traffic.messages)};
  }

  // The share of one core that the coordinator uses while nothing is published. A push replaces
  // heartbeats, and sidecars follow the pace of two that they have received: this waits for both.
  Result<double> idle() {
    WSYNC_TRY(children_.pass_time(milliseconds(limits::kHeartbeatDeadlineMs)));
    const TimePoint begin = now();
    const auto cpu = WSYNC_TRY(cpu_time_of(trainer_->pid()));
    WSYNC_TRY(children_.pass_time(options_.idle));
    const auto used = WSYNC_TRY(cpu_time_of(trainer_->pid())) - cpu;
    WSYNC_TRY(peers_->check());
    return 100 * seconds(used) / seconds(now() - begin);
  }

  [[nodiscard]] double memory_mib() const {
    return static_cast<double>(peak_bytes_of(trainer_->pid())) / static_cast<double>(limits::kMiB);
  }

 private:
  // A key for each sidecar and for who pushes, and an address for which they are needed elsewhere.
  Result<> make_keys() {
    const std::filesystem::path path = directory_ + "/keys";
    const auto pair = WSYNC_TRY(control::make_key_pair());
    auto folder = WSYNC_TRY(control::KeyFolder::init(path, pair));
    keys_.emplace().server_key = pair.public_key;
    for (unsigned i = 0; i < sidecars_; ++i) {
      keys_->peers.push_back(WSYNC_TRY(control::make_key_pair()));
      (void)WSYNC_TRY(folder.add({.role = control::KeyRole::kSidecar, .name = peer_name(i)},
                                 keys_->peers.back()));
    }
    operator_key_ =
        control::KeyFile{.owner = {.role = control::KeyRole::kOperator, .name = "bench"},
                         .pair = WSYNC_TRY(control::make_key_pair()),
                         .server_key = pair.public_key};
    (void)WSYNC_TRY(folder.add(operator_key_->owner, operator_key_->pair));
    address_ = fmt::format("tcp://127.0.0.1:{}", WSYNC_TRY(free_port()));
    return {};
  }

  Result<> until(const std::string& what, const std::function<bool()>& holds) {
    const TimePoint deadline = now() + kFleetDeadline;
    while (!holds()) {
      WSYNC_TRY(children_.pass_time(kLook));
      WSYNC_TRY(peers_->check());
      if (now() >= deadline)
        return fail(ErrorCode::kDeadline,
                    fmt::format("{} of {} sidecars have joined after {} s while waiting until {}",
                                peers_->joined(), sidecars_, kFleetDeadline.count() / 1000, what));
    }
    return {};
  }

  const FleetBenchOptions& options_;
  const unsigned sidecars_;
  const bool has_keys_;
  const std::string checkpoint_;
  const std::string directory_;
  std::string address_ = "ipc://" + directory_ + "/run/control";
  std::optional<FleetKeys> keys_;
  std::optional<control::KeyFile> operator_key_;
  cli::ChildProcesses& children_;
  cli::Child* trainer_ = nullptr;
  std::unique_ptr<FleetPeers> peers_;
};

Result<> check_fleet(const FleetBenchOptions& options) {
  for (const unsigned sidecars : options.sidecars) {
    if (sidecars == 0 || sidecars > limits::kSidecarCount)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--sidecars contains {}, expected numbers from 1 to {}", sidecars,
                              limits::kSidecarCount));
    if (std::ranges::count(options.sidecars, sidecars) > 1)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--sidecars contains {} more than once", sidecars));
  }
  if (options.rounds == 0) return fail(ErrorCode::kInvalidInput, "--repeats is 0, expected 1");
  return {};
}

Result<FleetFigures> measure(FleetRun& fleet, const FleetBenchOptions& options) {
  FleetFigures figures;
  WSYNC_TRY(fleet.start());
  (void)WSYNC_TRY(fleet.push());
  for (unsigned i = 0; i < options.rounds; ++i) {
    const auto round = WSYNC_TRY(fleet.push());
    figures.rounds.push_back(round);
  }
  figures.idle_percent = WSYNC_TRY(fleet.idle());
  figures.memory_mib = fleet.memory_mib();
  return figures;
}

// The samples of each figure of a fleet, by its name.
using Baselines = std::map<std::string, std::vector<double>>;

// `without_keys`: set by a fleet without keys, and the baseline of the same fleet with keys.
void add_cases(SuiteResult& suite, unsigned sidecars, bool has_keys, const FleetFigures& figures,
               Baselines& without_keys) {
  const std::string variant = counted(sidecars, "sidecar");
  const auto add = [&](const std::string& what, const std::vector<double>& samples, double target) {
    const std::string name = (has_keys ? "fleet with keys, " : "fleet, ") + what;
    CaseResult one = case_of("control", name, variant, samples);
    if (target > 0 && sidecars == kTargetSidecars)
      one.target = Target{.of = Target::Of::kMedian, .value = target};
    if (has_keys)
      set_baseline_of("control", name, one, without_keys.at(what));
    else
      without_keys[what] = samples;
    suite.cases.push_back(std::move(one));
  };
  const auto all = [&](double FleetRound::* field) {
    std::vector<double> samples;
    for (const FleetRound& round : figures.rounds) samples.push_back(round.*field);
    return samples;
  };
  add("announce to decide", all(&FleetRound::decide_s), kDecideTarget);
  add("announce to switched", all(&FleetRound::switch_s), kSwitchTarget);
  add("processor time", all(&FleetRound::processor_s), kProcessorTarget);
  add("processor time of each message", all(&FleetRound::message_us), 0);
  add("idle", {figures.idle_percent}, kIdleTarget);
  add("memory", {figures.memory_mib}, 0);
}

}  // namespace

Result<SuiteResult> run_fleet_bench(const FleetBenchOptions& options, const Interrupt& interrupt,
                                    const OnTurn& on_turn) {
  WSYNC_TRY(check_fleet(options));
  const auto busy = WSYNC_TRY(busy_with_others(interrupt));
  CpuLoad load;
  std::string checkpoint = options.checkpoint;
  if (checkpoint.empty()) {
    checkpoint = options.directory + "/checkpoint";
    (void)WSYNC_TRY(cli::make_demo_checkpoint(
        {.directory = checkpoint, .bytes = kFleetModelBytes, .shards = 1}));
  }
  const auto children = WSYNC_TRY(bench_children(options.directory));
  SuiteResult suite{.suite = "control"};
  std::vector<double> least;
  for (std::size_t i = 0; i < options.sidecars.size(); ++i) {
    const unsigned sidecars = options.sidecars[i];
    on_turn(counted(sidecars, "sidecar"), static_cast<unsigned>(i),
            static_cast<unsigned>(options.sidecars.size()));
    Baselines without_keys;
    for (const bool has_keys : {false, true}) {
      if (has_keys && !options.with_keys) continue;
      FleetRun fleet(options, sidecars, has_keys, checkpoint, *children);
      const auto figures = measure(fleet, options);
      if (!figures) return fail(children->explained(figures.error()));
      add_cases(suite, sidecars, has_keys, *figures, without_keys);
    }
    for (CaseResult& one : suite.cases)
      if (one.name ==
          fmt::format("fleet, processor time of each message, {}", counted(sidecars, "sidecar"))) {
        if (i == 0)
          least = one.samples;
        else
          set_baseline_of("control", "fleet, processor time of each message", one, least);
      }
  }
  suite.parameters["sidecars"] = options.sidecars;
  suite.parameters["replicas"] = options.replicas;
  suite.notes = load_sentences(busy, load.since_last().stolen);
  return suite;
}

}  // namespace wsync::bench
