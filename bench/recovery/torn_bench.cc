#include "bench/recovery/torn_bench.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <poll.h>

#include "bench/recovery/alternating_trainer.h"
#include "bench/recovery/rank_process.h"
#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::bench {
namespace {

constexpr std::chrono::seconds kTornStartDeadline{60};
constexpr std::chrono::seconds kSwitchDeadline{120};
// Without a single step: many times the longest switch.
constexpr std::chrono::seconds kStandstillDeadline{120};
constexpr std::chrono::seconds kEndDeadline{120};
constexpr std::chrono::seconds kSidecarPatience{5};
constexpr std::chrono::milliseconds kExplanation{500};
constexpr std::chrono::milliseconds kLook{20};
constexpr unsigned kStatsMs = 100;
constexpr std::uint64_t kFreshStats = 2;  // one may have been on its way

class TornRun {
 public:
  TornRun(const TornBenchOptions& options, const Interrupt& interrupt, const OnTornSteps& on_steps)
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
  ~TornRun() {
    load_.reset();
    ranks_.clear();
    trainer_.reset();
    if (sidecar_) sidecar_->stop(kSidecarPatience);
  }

  Result<TornBenchResult> run() {
    result_.machine = this_machine();
    const auto busy = WSYNC_TRY(busy_with_others(interrupt_));
    result_.others_busy = busy;
    WSYNC_TRY(start());
    WSYNC_TRY(publish_first());
    WSYNC_TRY(run_load());
    WSYNC_TRY(end_load());
    WSYNC_TRY(end_ranks());
    WSYNC_TRY(check());
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::string at(std::string_view name) const {
    return fmt::format("{}/{}", options_.directory, name);
  }

  [[nodiscard]] ChildOptions child(const std::string& name,
                                   std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), options_.executable);
    return {.command = std::move(arguments),
            .environment = {{"WSYNC_RUN_DIR", at("run")}, {"WSYNC_STATE_DIR", at("state")}},
            .log_file = at(name + ".log")};
  }

  // Lets some time pass. kCancelled on a signal, and the first error of a process or client.
  Result<> pass_time() const {
    pollfd fd{.fd = interrupt_.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&fd, 1, static_cast<int>(kLook.count())) > 0)
      return fail(ErrorCode::kCancelled, "interrupted");
    WSYNC_TRY(check_ranks());
    if (const Result<> load = load_ ? load_->check() : Result<>(); !load)
      return fail(explained(load.error()));
    return {};
  }

  Result<> check_ranks() const {
    for (const auto& rank : ranks_)
      if (const RankView view = rank->view(); view.failure)
        return fail(view.failure->with_context(rank->name()));
    return {};
  }

  // The error itself, or that a rank has failed: others may have noticed that first.
  Error explained(Error error) const {
    for (const TimePoint end = now() + kExplanation; now() < end;) {
      if (const Result<> ranks = check_ranks(); !ranks) return ranks.error();
      pollfd fd{.fd = interrupt_.fd(), .events = POLLIN, .revents = 0};
      if (::poll(&fd, 1, static_cast<int>(kLook.count())) > 0) break;
    }
    return error;
  }

  template <class Holds>
  Result<> until(std::string_view what, std::chrono::seconds deadline, const Holds& holds) const {
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
    auto sidecar = WSYNC_TRY(Child::start(child("sidecar", {"sidecar", "--set", "name=bench"})));
    sidecar_.emplace(std::move(sidecar));
    const std::string socket = at("run/bench.engines");
    WSYNC_TRY(until("the sidecar's socket", kTornStartDeadline,
                    [&] { return std::filesystem::exists(socket); }));
    for (unsigned i = 0; i < options_.ranks; ++i) {
      const std::string name = fmt::format("rank {}", i);
      auto rank = WSYNC_TRY(RankProcess::start(
          child(fmt::format("rank{}", i),
                {"engine", "--json", "--model", model, "--sidecar", socket, "--replica", "r0",
                 "--rank", fmt::format("{}", i), "--world-size", fmt::format("{}", options_.ranks),
                 "--port", "0", "--max-sequences", fmt::format("{}", options_.requests),
                 "--stats-ms", fmt::format("{}", kStatsMs)}),
          name, interrupt_));
      ranks_.push_back(std::move(rank));
    }
    return until("the ranks' attachment to their sidecar", kTornStartDeadline, [&] {
      return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->view().attached; }) &&
             ranks_.front()->view().port.has_value();
    });
  }

  // Waits for the publish that runs.
  Result<Published> published() const {
    const TimePoint deadline = now() + kSwitchDeadline;
    for (;;) {
      auto ended = trainer_->ended(kLook);
      if (!ended) return fail(explained(ended.error()));
      if (*ended) return **ended;
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
    return {};
  }

  // Requests all the time, and a switch in every interval, until there were steps enough.
  Result<> run_load() {
    const RankProcess& leader = *ranks_.front();
    load_.emplace(LoadOptions{.port = *leader.view().port,
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
      const std::uint64_t told = leader.view().steps;
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

  // What runs goes on to its end; then no step is left that only some ranks have counted.
  Result<> end_load() {
    load_->stop_asking();
    WSYNC_TRY(until("the last answer", kEndDeadline, [&] { return load_->ended(); }));
    WSYNC_TRY(load_->check());
    result_.load = load_->figures();
    std::vector<std::uint64_t> told;
    for (const auto& rank : ranks_) told.push_back(rank->view().stats_told);
    return until("the same number of steps on every rank", kEndDeadline, [&] {
      const std::uint64_t steps = ranks_.front()->view().steps;
      for (std::size_t i = 0; i < ranks_.size(); ++i)
        if (const RankView view = ranks_[i]->view();
            view.stats_told < told[i] + kFreshStats || view.steps != steps)
          return false;
      return true;
    });
  }

  Result<> end_ranks() {
    for (const auto& rank : ranks_) {
      rank->ask_to_end();
      WSYNC_TRY(until(fmt::format("the end of {}", rank->name()), kEndDeadline,
                      [&] { return rank->view().ended; }));
    }
    return {};
  }

  Result<> check() {
    const auto number = [](const RankView& view, const char* name) {
      return view.outcome.at(name).get<std::uint64_t>();
    };
    const RankView leader = ranks_.front()->view();
    result_.steps = number(leader, "steps");
    result_.torn = number(leader, "torn");
    result_.aborted = number(leader, "aborted");
    result_.versions = leader.outcome.at("versions").size();
    result_.paused_ms = spread_of(paused_ms_);
    result_.pauses_ms = paused_ms_;
    if (const std::uint64_t broken = number(leader, "broken"); broken != 0)
      return fail(ErrorCode::kPeerLost, fmt::format("the ranks lost each other {} times", broken));
    for (const auto& rank : ranks_) {
      const RankView view = rank->view();
      const std::uint64_t compared = number(view, "layers_compared");
      result_.layers_compared += compared;
      std::ranges::copy(view.torn, std::back_inserter(result_.torn_told));
      if (number(view, "steps") != result_.steps)
        return fail(ErrorCode::kInternal,
                    fmt::format("{} has counted {} steps, rank 0 {}", rank->name(),
                                number(view, "steps"), result_.steps));
      if (compared != result_.steps * result_.layers)
        return fail(ErrorCode::kInternal,
                    fmt::format("{} has compared {} layers in {} steps, expected {} in each",
                                rank->name(), compared, result_.steps, result_.layers));
    }
    if (newest_ < result_.load.newest)
      return fail(ErrorCode::kInternal,
                  fmt::format("an answer names version {}; the newest that was published is {}",
                              result_.load.newest.to_string(), newest_.to_string()));
    if (result_.passed() && (result_.load.met == 0 || result_.versions <= result_.switches))
      return fail(ErrorCode::kRefused,
                  fmt::format("{} in {:.1f} s met {} of {}, and steps were run with {}: nothing is "
                              "shown; ask for more steps, or for a shorter --switch-ms",
                              counted(result_.switches, "switch"), result_.seconds,
                              result_.load.met, counted(result_.load.answers, "answer"),
                              counted(result_.versions, "version")));
    return {};
  }

  const TornBenchOptions& options_;
  const Interrupt& interrupt_;
  const OnTornSteps& on_steps_;
  TornBenchResult result_;
  Version newest_;
  std::vector<double> paused_ms_;
  std::optional<Child> sidecar_;
  std::unique_ptr<AlternatingTrainer> trainer_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  Recomputed recomputed_;  // of what the trainer has
  std::optional<Load> load_;
};

Result<> check_torn_options(const TornBenchOptions& options) {
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
          .experts_per_token = 2,  // all: see recomputed.h
          .expert_hidden = 8 * ranks,
          .max_positions = 512};
}

Result<TornBenchResult> run_torn_bench(const TornBenchOptions& options, const Interrupt& interrupt,
                                       const OnTornSteps& on_steps) {
  WSYNC_TRY(check_torn_options(options));
  try {
    return TornRun(options, interrupt, on_steps).run();
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("the outcome of a rank has another form: {}", error.what()));
  }
}

}  // namespace wsync::bench
