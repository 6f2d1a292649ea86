#include "tests/soak/torn_run.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/harness/children.h"
#include "bench/harness/scrape.h"
#include "deploy/fleet/fleet.h"
#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"
#include "tests/soak/alternating_trainer.h"

namespace wsync::soak {
namespace {

constexpr std::chrono::seconds kTornStartDeadline{60};
constexpr std::chrono::seconds kSwitchDeadline{120};
// Time limit without a single step. It is many times the longest switch.
constexpr std::chrono::seconds kStandstillDeadline{120};
constexpr std::chrono::seconds kEndDeadline{120};
constexpr std::chrono::milliseconds kLook{20};
constexpr unsigned kStatsMs = 100;
constexpr std::uint64_t kFreshStats = 2;  // the first report may already have been in transit
constexpr std::size_t kTornTold = 8;
// A rank that did not see the torn step itself reports this. The rank that saw it reports the
// details.
constexpr std::string_view kElsewhere = "in another rank";

// Extracts the port of "http://127.0.0.1:8000".
std::uint16_t port_of(const std::string& url) {
  std::uint16_t port = 0;
  const char* const end = url.data() + url.size();
  std::from_chars(url.data() + url.rfind(':') + 1, end, port);
  return port;
}

// What one rank of the replica has reported so far.
struct RankView {
  std::string name;
  std::optional<std::uint16_t> port;  // port on which it listens
  std::uint64_t steps = 0;            // latest reported number of steps
  std::uint64_t stats_told = 0;       // number of reports
  std::vector<std::string> torn;      // first few reported torn steps, one sentence each
  nlohmann::json outcome;             // its last line; null before
  std::optional<Error> failure;       // a line was not understood, or the rank could not continue

  void handle(const std::string& line) {
    try {
      const nlohmann::json told = nlohmann::json::parse(line);
      const std::string event = told.value("event", "");
      if (event == "listening") port = port_of(told.at("url"));
      if (event == "stats") {
        steps = told.at("steps");
        ++stats_told;
      }
      if (event == "torn" && told.at("why") != kElsewhere && torn.size() < kTornTold)
        torn.push_back(fmt::format("step {}, {}: {}", told.at("step").get<std::uint64_t>(), name,
                                   told.at("why").get<std::string>()));
      if (told.contains("error"))
        failure = Error(ErrorCode::kRefused, fmt::format("{} could not go on: {}", name, line));
      if (told.contains("result")) outcome = told.at("result");
    } catch (const nlohmann::json::exception& error) {
      if (!failure)
        failure =
            Error(ErrorCode::kInternal, fmt::format("{} said '{}': {}", name, line, error.what()));
    }
  }
};

class TornRun {
 public:
  TornRun(const TornOptions& options, const Interrupt& interrupt, const OnTornSteps& on_steps)
      : options_(options),
        interrupt_(interrupt),
        on_steps_(on_steps),
        recomputed_(torn_model(options.ranks),
                    [this](const Version& version) -> const training::ParameterSet& {
                      return trainer_->weights_of(version);
                    }) {
    result_.options = options;
  }
  TornRun(const TornRun&) = delete;
  TornRun& operator=(const TornRun&) = delete;
  // The clients use the ranks, and the ranks and the sidecar use the trainer. Destroy them in this
  // order.
  ~TornRun() {
    load_.reset();
    fleet_.reset();
    trainer_.reset();
  }

  Result<TornResult> run() {
    // bench_children() must run before any other thread starts, because threads inherit the signal
    // mask.
    children_ = WSYNC_TRY(bench::bench_children(options_.directory));
    const Result<> done = run_all();
    if (done) return std::move(result_);
    Error error = children_->explained(done.error());
    // An ended process is reported as kPeerLost instead of kInternal: the replica has lost a rank.
    if (error.code() == ErrorCode::kInternal && fleet_ && !is_ending_ && !fleet_->all_running())
      error = Error(ErrorCode::kPeerLost, error.message());
    return fail(std::move(error));
  }

 private:
  Result<> run_all() {
    result_.machine = bench::this_machine();
    result_.others_busy = WSYNC_TRY(bench::busy_with_others(interrupt_));
    WSYNC_TRY(start());
    WSYNC_TRY(publish_first());
    WSYNC_TRY(run_load());
    WSYNC_TRY(end_load());
    WSYNC_TRY(end_ranks());
    return check();
  }

  [[nodiscard]] std::string at(std::string_view name) const {
    return fmt::format("{}/{}", options_.directory, name);
  }

  // Waits a short time. Returns kCancelled on a signal, or the first error of a process or client.
  Result<> pass_time() {
    WSYNC_TRY(children_->pass_time(kLook));
    for (const RankView& view : views_)
      if (view.failure) return fail(view.failure->with_context(view.name));
    if (load_) WSYNC_TRY(load_->check());
    return {};
  }

  template <class Holds>
  Result<> until(std::string_view what, std::chrono::seconds deadline, const Holds& holds) {
    const TimePoint end = now() + deadline;
    while (!holds()) {
      WSYNC_TRY(pass_time());
      if (now() > end)
        return fail(ErrorCode::kDeadline,
                    fmt::format("{} did not come within {} s", what, deadline.count()));
    }
    return {};
  }

  Result<> start() {
    const std::string model = at("model");
    trainer_ = WSYNC_TRY(
        AlternatingTrainer::create(torn_model(options_.ranks), model, at("run"), at("state")));
    const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(model));
    result_.layers = checkpoint.manifest().layer_count();
    fleet::FleetOptions wanted{.executable = options_.executable,
                               .prefix = {},
                               .run_dir = at("run"),
                               .state_dir = at("state"),
                               .sidecars = {{.name = "soak", .settings = {}}},
                               .engines = {},
                               .trainer = {}};
    for (unsigned i = 0; i < options_.ranks; ++i) {
      views_.push_back({.name = fmt::format("rank {}", i), .outcome = {}});
      wanted.engines.push_back(
          {.name = fmt::format("rank{}", i),
           .sidecar = "soak",
           .replica = "r0",
           .command = {"engine", "--json", "--model", model, "--rank", fmt::format("{}", i),
                       "--world-size", fmt::format("{}", options_.ranks), "--port", "0",
                       "--max-sequences", fmt::format("{}", options_.requests), "--stats-ms",
                       fmt::format("{}", kStatsMs)},
           .output = cli::ChildOutput::kLines});
    }
    fleet_ = std::make_unique<fleet::Fleet>(*children_, std::move(wanted));
    WSYNC_TRY(fleet_->start(
        [this](std::size_t rank, const std::string& line) { views_[rank].handle(line); }));
    return until("the port of rank 0", kTornStartDeadline,
                 [&] { return views_.front().port.has_value(); });
  }

  // Waits for the active publish.
  Result<Published> published() {
    const TimePoint deadline = now() + kSwitchDeadline;
    for (;;) {
      const auto ended = WSYNC_TRY(trainer_->ended(kLook));
      if (ended) return *ended;
      WSYNC_TRY(pass_time());
      if (now() > deadline)
        return fail(ErrorCode::kDeadline,
                    fmt::format("a publish has not ended after {} s", kSwitchDeadline.count()));
    }
  }

  Result<> publish_first() {
    WSYNC_TRY(trainer_->begin());
    const auto first = WSYNC_TRY(published());
    newest_ = first.version;
    before_ = WSYNC_TRY(loads());
    return {};
  }

  // Loads of ranks that the sidecar has counted so far.
  struct Loads {
    std::uint64_t by_patch = 0;
    std::uint64_t in_full = 0;
    std::uint64_t failed = 0;
  };
  Result<Loads> loads() const {
    const auto page = WSYNC_TRY(bench::scrape(at("run/soak.http")));
    const auto value = [&page](std::string_view series) {
      return static_cast<std::uint64_t>(bench::metric_value(page, series).value_or(0));
    };
    return Loads{.by_patch = value("wsync_loads_total{kind=\"patch\"}"),
                 .in_full = value("wsync_loads_total{kind=\"full\"}"),
                 .failed = value("wsync_patch_fallbacks_total")};
  }
  Result<> count_loads() {
    const auto after = WSYNC_TRY(loads());
    result_.loads_by_patch = after.by_patch - before_.by_patch;
    result_.loads_in_full = after.in_full - before_.in_full;
    result_.patches_failed = after.failed - before_.failed;
    const std::uint64_t found = result_.loads_by_patch + result_.loads_in_full;
    if (found != result_.switches * options_.ranks)
      return fail(
          ErrorCode::kInternal,
          fmt::format("the sidecar has counted {} in {} switches, expected one of each of {}",
                      counted(found, "load"), result_.switches, counted(options_.ranks, "rank")));
    return {};
  }

  // Sends requests all the time and switches in every interval, until enough steps have run.
  Result<> run_load() {
    const RankView& leader = views_.front();
    load_.emplace(LoadOptions{.port = *leader.port,
                              .requests = options_.requests,
                              .vocabulary = torn_model(options_.ranks).vocabulary,
                              .oldest = newest_,
                              .recomputed = &recomputed_});
    CpuLoad cpu;
    const TimePoint begin = now();
    TimePoint next = begin + std::chrono::milliseconds(options_.switch_ms);
    TimePoint last_progress = begin;
    std::uint64_t steps = 0;
    while (steps < options_.steps) {
      WSYNC_TRY(pass_time());
      if (now() >= next) {
        next = now() + std::chrono::milliseconds(options_.switch_ms);
        WSYNC_TRY(switch_once());
      }
      const std::uint64_t told = leader.steps;
      if (told > steps) last_progress = now();
      steps = told;
      on_steps_(std::min(steps, options_.steps), options_.steps, result_.switches);
      if (now() - last_progress > kStandstillDeadline)
        return fail(ErrorCode::kDeadline,
                    fmt::format("the replica has stood still for {} s after {}",
                                kStandstillDeadline.count(), counted(steps, "step")));
    }
    result_.seconds = seconds(now() - begin);
    result_.stolen = cpu.since_last().stolen;
    return {};
  }

  Result<> switch_once() {
    WSYNC_TRY(trainer_->begin());
    const auto switched = published();
    if (!switched)
      return fail(switched.error().with_context(fmt::format("switch {}", result_.switches + 1)));
    if (switched->version <= newest_)
      return fail(ErrorCode::kInternal,
                  fmt::format("version {} was published after {}", switched->version.to_string(),
                              newest_.to_string()));
    newest_ = switched->version;
    load_->served(newest_);
    ++result_.switches;
    paused_ms_.push_back(1e-6 * static_cast<double>(switched->paused_ns));
    return {};
  }

  // Active requests run to their end. After that, no step is left that only some ranks have
  // counted.
  Result<> end_load() {
    load_->stop_asking();
    WSYNC_TRY(until("the last answer", kEndDeadline, [&] { return load_->ended(); }));
    WSYNC_TRY(load_->check());
    WSYNC_TRY(count_loads());
    result_.load = load_->figures();
    std::vector<std::uint64_t> told;
    for (const RankView& view : views_) told.push_back(view.stats_told);
    return until("the same number of steps on every rank", kEndDeadline, [&] {
      for (std::size_t i = 0; i < views_.size(); ++i)
        if (views_[i].stats_told < told[i] + kFreshStats || views_[i].steps != views_.front().steps)
          return false;
      return true;
    });
  }

  Result<> end_ranks() {
    is_ending_ = true;
    for (std::size_t i = 0; i < views_.size(); ++i) {
      cli::Child& rank = fleet_->engine(i);
      rank.may_end();
      rank.send(SIGTERM);
      WSYNC_TRY(
          until("the end of " + views_[i].name, kEndDeadline, [&rank] { return !rank.running(); }));
      if (views_[i].outcome.is_null())
        return fail(ErrorCode::kPeerLost, children_->failure_of(rank).message());
    }
    return {};
  }

  Result<> check() {
    const auto number = [](const RankView& view, const char* name) {
      return view.outcome.at(name).get<std::uint64_t>();
    };
    const RankView& leader = views_.front();
    result_.steps = number(leader, "steps");
    result_.torn = number(leader, "torn");
    result_.aborted = number(leader, "aborted");
    result_.versions = leader.outcome.at("versions").size();
    result_.paused_ms = spread_of(paused_ms_);
    result_.pauses_ms = paused_ms_;
    if (const std::uint64_t broken = number(leader, "broken"); broken != 0)
      return fail(ErrorCode::kPeerLost, fmt::format("the ranks lost each other {} times", broken));
    for (const RankView& view : views_) {
      const std::uint64_t compared = number(view, "layers_compared");
      result_.layers_compared += compared;
      std::ranges::copy(view.torn, std::back_inserter(result_.torn_told));
      if (number(view, "steps") != result_.steps)
        return fail(ErrorCode::kInternal,
                    fmt::format("{} has counted {} steps, rank 0 {}", view.name,
                                number(view, "steps"), result_.steps));
      if (compared != result_.steps * result_.layers)
        return fail(ErrorCode::kInternal,
                    fmt::format("{} has compared {} layers in {} steps, expected {} in each",
                                view.name, compared, result_.steps, result_.layers));
    }
    if (newest_ < result_.load.newest)
      return fail(ErrorCode::kInternal,
                  fmt::format("an answer names version {}; the newest that was published is {}",
                              result_.load.newest.to_string(), newest_.to_string()));
    if (result_.passed() && (result_.load.met == 0 || result_.versions <= result_.switches))
      return fail(ErrorCode::kRefused,
                  fmt::format("{} in {:.1f} s met {} of {}, and steps were run with {}: nothing is "
                              "shown; ask for more steps, or for a shorter --switch-ms",
                              result_.switches, result_.seconds, result_.load.met,
                              counted(result_.load.answers, "answer"),
                              counted(result_.versions, "version")));
    return {};
  }

  const TornOptions& options_;
  const Interrupt& interrupt_;
  const OnTornSteps& on_steps_;
  TornResult result_;
  Version newest_;
  Loads before_;  // before the first switch under load
  std::vector<double> paused_ms_;
  std::unique_ptr<cli::ChildProcesses> children_;
  std::vector<RankView> views_;  // by rank
  std::unique_ptr<fleet::Fleet> fleet_;
  bool is_ending_ = false;  // the ranks have been asked to end
  std::unique_ptr<AlternatingTrainer> trainer_;
  Recomputed recomputed_;  // reads the trainer's weights
  std::optional<Load> load_;
};

Result<> check_torn_options(const TornOptions& options) {
  if (options.ranks == 0 || options.ranks > kTornRanksMax || options.requests == 0 ||
      options.requests > kTornRequestsMax || options.steps == 0 || options.switch_ms == 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} of {} ranks with {} at once and a switch every {} ms; expected "
                            "steps and milliseconds above 0, 1 to {} ranks and 1 to {} requests",
                            counted(options.steps, "step"), options.ranks,
                            counted(options.requests, "request"), options.switch_ms, kTornRanksMax,
                            kTornRequestsMax));
  return moe::check_spec(torn_model(options.ranks));
}

}  // namespace

moe::ModelSpec torn_model(unsigned ranks) {
  return {.vocabulary = 32 * ranks,
          .hidden = 16,
          .layers = 2,
          .heads = ranks,
          .key_value_heads = ranks,
          .head_dim = 8,
          .experts = 2,
          .experts_per_token = 2,  // all experts: see recomputed.h
          .expert_hidden = 8 * ranks,
          .max_positions = 512};
}

Result<TornResult> run_torn(const TornOptions& options, const Interrupt& interrupt,
                            const OnTornSteps& on_steps) {
  WSYNC_TRY(check_torn_options(options));
  try {
    return TornRun(options, interrupt, on_steps).run();
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("the outcome of a rank has another form: {}", error.what()));
  }
}

}  // namespace wsync::soak
