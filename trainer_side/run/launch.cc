#include "trainer_side/run/launch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/unix_socket.h"
#include "shared/command/outcome.h"
#include "shared/loop/child_process.h"
#include "shared/loop/timer.h"
#include "shared/observe/trace/progress.h"
#include "shared/process_group/memory/host_segment.h"
#include "trainer_side/run/events.h"
#include "trainer_side/run/membership.h"
#include "trainer_side/training/recovery.h"

namespace wsync::cli {
namespace {

using collective::memory::HostSegment;
using collective::memory::RankPhase;

static_assert(config::kTrainRanks <= collective::memory::kHostRankCount);

// A run has no time limit; its ranks have deadlines for each exchange.
constexpr std::chrono::hours kNoDeadline{24 * 365};
// Time for ranks to end after they were asked to, in addition to the heartbeat's deadline.
constexpr std::chrono::seconds kToldWaitLimit{5};
// A rank that has broken the group because of its own error ends within this time.
constexpr std::chrono::seconds kBrokenWaitLimit{1};
// Limit for a running rank to join the newest group. It is long because rank 0 may be writing a
// state.
constexpr std::chrono::minutes kAwayWaitLimit{40};
// Maximum interval between two checks of the ranks.
constexpr std::chrono::milliseconds kRanksLook{1000};

// The process that currently is a rank.
struct Seat {
  Child* child = nullptr;
  UniqueFd control;              // the launcher's end of the socket pair
  std::uint32_t generation = 0;  // the generation for which it was started
  bool is_lost = false;          // lost without a replacement, because the run was over
  std::uint32_t losses = 0;      // losses of the rank in a row since the end of a step
};

// The group of one generation of ranks.
struct Generation {
  std::uint32_t number = 0;
  HostSegment segment;
  TimePoint begun = now();
  bool is_broken_here = false;  // the launcher itself broke the group
};

class Launch {
 public:
  Launch(const config::TrainConfig& config, const std::vector<std::string>& arguments,
         std::unique_ptr<ChildProcesses> children, bool prints_events)
      : config_(config),
        arguments_(arguments),
        report_(prints_events),
        children_(std::move(children)),
        seats_(config.parallel.pp * config.parallel.dp) {}

  [[nodiscard]] Result<Outcome> run() {
    std::vector<std::uint32_t> all;
    for (std::uint32_t rank = 0; rank < seats_.size(); ++rank) all.push_back(rank);
    WSYNC_TRY(begin_generation(all));
    Timer watch(children_->loop(), [this] {
      look_for_silence();
      look_for_break();
      pass_stop_on();
    });
    watch.start_repeating(
        std::min({config_.heartbeat.interval, kRanksLook, config_.heartbeat.deadline / 4}));
    const Result<> ended = children_->until("the end", kNoDeadline, [this] { return is_over(); });
    if (!ended) {
      if (ended.error().code() != ErrorCode::kCancelled) return fail(ended.error());
      log_info("stopping after this step; a second interrupt ends all ranks at once");
      is_stopping_ = true;
      pass_stop_on();
      WSYNC_TRY(children_->shutdown("the end", kNoDeadline, [this] { return is_over(); }));
    }
    if (!failure_) return report_.outcome();
    // The group is broken, so the ranks notice the failure and end by themselves.
    const auto wait_limit = config_.heartbeat.deadline + kToldWaitLimit;
    (void)children_->shutdown("the end", wait_limit, [this] { return all_ended(); });
    for (const Seat& seat : seats_)
      if (seat.child != nullptr) seat.child->send(SIGKILL);
    (void)children_->shutdown("the end", wait_limit, [this] { return all_ended(); });
    return fail(*failure_);
  }

 private:
  // Makes a group for all ranks, and starts a process for each of `ranks`.
  [[nodiscard]] Result<> begin_generation(const std::vector<std::uint32_t>& ranks) {
    auto segment =
        WSYNC_TRY(HostSegment::create({.size = static_cast<std::uint32_t>(seats_.size())}));
    const std::uint32_t number = generations_.empty() ? 0 : generations_.back().number + 1;
    generations_.push_back({.number = number, .segment = std::move(segment)});
    broken_since_.reset();
    for (const std::uint32_t rank : ranks) WSYNC_TRY(start(rank));
    // The remaining ranks read the new segment after they have noticed that their group is broken.
    const std::array fds{newest().descriptor()};
    const std::array sign{kSegmentSign};
    for (const Seat& seat : seats_)
      if (seat.generation != number && seat.control.valid()) send(seat, sign, fds);
    nlohmann::json pids = nlohmann::json::array();
    for (const Seat& seat : seats_) pids.push_back(seat.child->pid());
    report_.take({{"event", "ranks"}, {"generation", number}, {"pids", pids}});
    return {};
  }

  [[nodiscard]] const HostSegment& newest() const { return generations_.back().segment; }

  static void send(const Seat& seat, std::span<const std::byte> sign, std::span<const int> fds) {
    if (!seat.control.valid()) return;
    const auto sent = send_some(seat.control.get(), sign, fds);
    // If the process has just ended, it is detected as lost elsewhere.
    if (sent ? *sent > 0 : sent.error().code() == ErrorCode::kPeerLost) return;
    log_warning("process {} cannot be informed how the run continues: {}", seat.child->pid(),
                sent ? "it does not read its messages" : sent.error().message());
  }

  [[nodiscard]] Result<> start(std::uint32_t rank) {
    Seat seat{.child = nullptr,
              .control = {},
              .generation = generations_.back().number,
              .losses = seats_[rank].losses};
    std::vector<int> keep{newest().descriptor()};
    std::vector<std::string> all{"train"};
    all.insert(all.end(), arguments_.begin(), arguments_.end());
    const auto add = [&](const char* name, std::uint64_t value) {
      all.insert(all.end(), {name, std::to_string(value)});
    };
    add("--rank", rank);
    add("--segment", static_cast<std::uint64_t>(newest().descriptor()));
    UniqueFd of_rank;
    if (config_.recovery.enabled) {
      auto ends = WSYNC_TRY(unix_socket_pair());
      seat.control = std::move(ends.first);
      of_rank = std::move(ends.second);
      keep.push_back(of_rank.get());
      add("--control", static_cast<std::uint64_t>(of_rank.get()));
      add("--generation", seat.generation);
      add("--told", report_.last_step());
    }
    const auto child =
        WSYNC_TRY(children_->start({.name = fmt::format("rank {}", rank),
                                    .arguments = std::move(all),
                                    .output = rank == 0 ? ChildOutput::kLines : ChildOutput::kLog,
                                    .errors = ChildErrors::kInherit,
                                    .keep = std::move(keep)}));
    child->may_end();
    if (rank == 0) {
      child->on_line = [this](const std::string& line) { take(line); };
      is_told_ = false;
    }
    seat.child = child;
    seats_[rank] = std::move(seat);
    return {};
  }

  // Sends the stop request to rank 0, which forwards it to the other ranks. Waits until rank 0 has
  // joined: before it has installed its signal handler, the signal would kill it.
  void pass_stop_on() {
    if (!is_stopping_ || is_told_ || last_sign(0).phase == RankPhase::kAway) return;
    seats_.front().child->send(SIGTERM);
    is_told_ = true;
  }

  void take(const std::string& line) {
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object()) return;
    // A step that is run again is not progress.
    const std::uint64_t step = event.value("event", "") == "step" ? event.value("step", 0ULL) : 0;
    if (step > highest_step_) {
      highest_step_ = step;
      breaks_ = 0;
      for (Seat& seat : seats_) seat.losses = 0;
    }
    report_.take(event);
  }

  [[nodiscard]] bool all_ended() const {
    const auto runs = [](const Child* child) { return child != nullptr && child->running(); };
    return std::none_of(seats_.begin(), seats_.end(),
                        [&](const Seat& seat) { return runs(seat.child); });
  }

  // Returns the newest heartbeat of the current process of the rank. The process may not have
  // joined the newest group yet.
  [[nodiscard]] collective::memory::RankSign last_sign(std::uint32_t rank) const {
    collective::memory::RankSign found;
    for (const Generation& generation : generations_) {
      if (generation.number < seats_[rank].generation) continue;
      const auto sign = generation.segment.ranks()[rank];
      if (sign.phase == RankPhase::kAway) continue;
      const auto beat = std::max(found.last_beat, sign.last_beat);
      found = sign;
      found.last_beat = beat;
    }
    return found;
  }

  // Called after every event.
  [[nodiscard]] bool is_over() {
    if (config_.recovery.enabled && !is_done_ && any_succeeded()) end_all_others();
    for (std::uint32_t rank = 0; rank < seats_.size() && !failure_; ++rank) {
      const Child& child = *seats_[rank].child;
      if (child.running() || child.succeeded() || seats_[rank].is_lost) continue;
      if (child.killed()) {
        lose(rank, child.ending());
      } else {
        fail_all(own_reason().value_or(
            Error(ErrorCode::kPeerLost,
                  fmt::format("rank {} (pid {}) {}", rank, child.pid(), child.ending()))));
      }
    }
    return failure_ || all_ended();
  }

  // Removes old generations after all ranks have joined the newest one.
  void forget_old_generations() {
    const auto signs = newest().ranks();
    const bool all = std::none_of(signs.begin(), signs.end(),
                                  [](const auto& sign) { return sign.phase == RankPhase::kAway; });
    while (all && generations_.size() > 1) generations_.pop_front();
  }

  void look_for_silence() {
    forget_old_generations();
    // If this process did not run either, missing heartbeats prove nothing.
    const bool was_away = now() - std::exchange(looked_, now()) > config_.heartbeat.deadline / 2;
    if (was_away) return;
    for (std::uint32_t rank = 0; rank < seats_.size() && !failure_; ++rank) {
      const auto sign = last_sign(rank);
      const Seat& seat = seats_[rank];
      if (!seat.child->running() || seat.is_lost) continue;
      if (const auto away = now() - away_since(rank); is_away(rank) && away > kAwayWaitLimit) {
        lose(rank, fmt::format("has not reached the other ranks for {}: it hangs",
                               trace::format_duration(away)));
        continue;
      }
      if (sign.phase != RankPhase::kThere) continue;
      const auto silence = now() - sign.last_beat;
      if (silence < config_.heartbeat.deadline) continue;
      lose(rank, fmt::format("has sent no heartbeat for {}, heartbeat.deadline is {}: it is "
                             "stopped, or this host is overloaded",
                             trace::format_duration(silence),
                             trace::format_duration(config_.heartbeat.deadline)));
      children_->loop().stop();
    }
  }

  // Returns whether the rank has not joined the newest group yet.
  [[nodiscard]] bool is_away(std::uint32_t rank) const {
    return newest().ranks()[rank].phase == RankPhase::kAway;
  }

  // Returns the start of the oldest group that the rank has not joined.
  [[nodiscard]] TimePoint away_since(std::uint32_t rank) const {
    TimePoint since = generations_.back().begun;
    for (auto one = generations_.rbegin(); one != generations_.rend(); ++one) {
      if (one->segment.ranks()[rank].phase != RankPhase::kAway) break;
      since = one->begun;
    }
    return since;
  }

  // Returns the newest reason for which a rank itself broke a group.
  [[nodiscard]] std::optional<Error> own_reason() const {
    for (auto one = generations_.rbegin(); one != generations_.rend(); ++one)
      if (const Result<> health = one->segment.health(); !health && !one->is_broken_here)
        return health.error();
    return {};
  }

  // One rank has passed the last barrier, so all work of all ranks is done. Other ranks may still
  // be in that barrier.
  void end_all_others() {
    is_done_ = true;
    break_newest(Error(ErrorCode::kCancelled, "the run is over"));
    const std::array sign{kOverSign};
    for (std::uint32_t rank = 0; rank < seats_.size(); ++rank) {
      Seat& seat = seats_[rank];
      if (!seat.child->running()) continue;
      // A process without a tag replaced a rank that was lost in the last barrier. It has no work.
      const bool is_new = training::tag_of_word(last_sign(rank).word) == training::Tag{};
      if (is_new) {
        seat.is_lost = true;
        seat.child->send(SIGKILL);
      } else {
        send(seat, sign, {});
      }
    }
  }

  // Handles a group that was broken by a rank that is not lost: that rank ends, or all ranks
  // continue in another group.
  void look_for_break() {
    if (failure_ || is_done_ || !config_.recovery.enabled) return;
    const Result<> health = newest().health();
    if (health) return broken_since_.reset();
    if (!broken_since_) broken_since_ = now();
    if (now() - *broken_since_ < kBrokenWaitLimit) return;
    log_warning("the ranks are connected again: {}", health.error().message());
    resume_without({}, health.error());
  }

  [[nodiscard]] bool any_succeeded() const {
    return std::any_of(seats_.begin(), seats_.end(),
                       [](const Seat& seat) { return seat.child->succeeded(); });
  }

  void lose(std::uint32_t rank, const std::string& why) {
    const training::Tag tag = training::tag_of_word(last_sign(rank).word);
    Seat& seat = seats_[rank];
    if (rank == 0) {
      // Keep the events that the lost process has sent, and ignore later ones if it is not killed.
      if (seat.child->running()) seat.child->drain_lines();
      seat.child->on_line = {};
    }
    const Error error(
        ErrorCode::kPeerLost,
        fmt::format("rank {} (pid {}) {} ({})", rank, seat.child->pid(), why,
                    tag == training::Tag{} ? "before its first step" : "at " + to_string(tag)));
    report_.take({{"event", "lost"},
                  {"rank", rank},
                  {"pid", seat.child->pid()},
                  {"step", tag.step},
                  {"phase", training::phase_name(tag.phase)},
                  {"why", why}});
    if (!config_.recovery.enabled) {
      seat.child->send(SIGKILL);
      return fail_all(Error(error.code(), error.message() + "; recovery.enabled is false"));
    }
    const bool is_kept = seat.child->running() && config_.recovery.keep_silent;
    if (is_kept) {
      const std::array sign{kReplacedSign};
      send(seat, sign, {});
    } else {
      seat.child->send(SIGKILL);
    }
    resume_without({rank}, error, is_kept);
  }

  void resume_without(const std::vector<std::uint32_t>& lost, const Error& why,
                      bool is_kept = false) {
    if (is_done_) {
      for (const std::uint32_t rank : lost) {
        seats_[rank].is_lost = true;
        seats_[rank].child->send(SIGKILL);
      }
      return log_warning("{}; the run had already ended", why.message());
    }
    // A break does not count as an attempt while a rank is absent from the newest group: it may be
    // busy for a long time, and the other ranks time out while they wait for it.
    bool waits = false;
    for (std::uint32_t rank = 0; rank < seats_.size(); ++rank) waits = waits || is_away(rank);
    std::uint32_t max = !lost.empty() ? 0 : waits ? breaks_ : ++breaks_;
    for (const std::uint32_t rank : lost) max = std::max(max, ++seats_[rank].losses);
    if (max > config_.recovery.attempts)
      return fail_all(
          Error(why.code(), fmt::format("{}; this happened {} times in a row, and no step ended in "
                                        "between (recovery.attempts is {})",
                                        why.message(), max, config_.recovery.attempts)));
    if (!lost.empty())
      log_warning("{}; {}a new process takes its place", why.message(),
                  is_kept ? "the lost process is kept as it is, but disconnected; " : "");
    break_newest(why);
    if (const Result<> begun = begin_generation(lost); !begun) fail_all(begun.error());
  }

  void break_newest(const Error& why) {
    if (newest().health()) generations_.back().is_broken_here = true;
    newest().abort(why);
  }

  void fail_all(Error why) {
    break_newest(why);
    for (Seat& seat : seats_) seat.control.reset();
    failure_ = std::move(why);
  }

  const config::TrainConfig& config_;
  const std::vector<std::string>& arguments_;
  TrainReport report_;
  std::optional<Error> failure_;
  std::optional<TimePoint> broken_since_;  // since when the newest group is broken
  std::uint32_t breaks_ = 0;               // breaks without a loss since the end of a step
  std::uint64_t highest_step_ = 0;         // highest step that has ended
  TimePoint looked_ = now();               // time of the last heartbeat check
  bool is_done_ = false;                   // a rank has ended normally
  bool is_stopping_ = false;
  bool is_told_ = false;
  std::deque<Generation> generations_;
  // Destroyed before generations_: the processes must end before their segments.
  std::unique_ptr<ChildProcesses> children_;
  std::vector<Seat> seats_;
};

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

}  // namespace

Result<Outcome> launch_training(const config::TrainConfig& config,
                                const std::vector<std::string>& arguments, bool prints_events) {
  auto children = WSYNC_TRY(ChildProcesses::create("", own_environment(), [] {}));
  Launch launch(config, arguments, std::move(children), prints_events);
  return launch.run();
}

}  // namespace wsync::cli
