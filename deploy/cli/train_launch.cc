#include "deploy/cli/train_launch.h"

#include <chrono>
#include <memory>
#include <optional>
#include <unistd.h>
#include <utility>

#include "deploy/cli/processes.h"
#include "deploy/cli/train_events.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/collective/memory/host_segment.h"
#include "shared/loop/timer.h"
#include "shared/trace/progress.h"

namespace wsync::cli {
namespace {

using collective::memory::HostSegment;
using collective::memory::RankPhase;

static_assert(config::kTrainRanks <= collective::memory::kHostRankCount);

// A run has no end by the clock; its ranks have deadlines for each exchange.
constexpr std::chrono::hours kNoDeadline{24 * 365};
// Beside the heartbeat's deadline: for ranks that were told to end.
constexpr std::chrono::seconds kToldPatience{5};

class Launch {
 public:
  Launch(const config::TrainConfig& config, HostSegment segment, std::unique_ptr<Children> children,
         bool prints_events)
      : config_(config),
        segment_(std::move(segment)),
        report_(prints_events),
        children_(std::move(children)) {}

  [[nodiscard]] Result<Outcome> run(const std::vector<std::string>& arguments) {
    for (std::uint32_t rank = 0; rank < segment_.size(); ++rank) WSYNC_TRY(start(rank, arguments));
    Timer watch(children_->loop(), [this] {
      look_for_silence();
      pass_stop_on();
    });
    watch.start_repeating(config_.heartbeat.interval);
    const Result<> ended = children_->until("the end", kNoDeadline, [this] { return is_over(); });
    if (!ended) {
      if (ended.error().code() != ErrorCode::kCancelled) return fail(ended.error());
      log_info("stopping after this step; a second interrupt ends all ranks at once");
      is_stopping_ = true;
      pass_stop_on();
      WSYNC_TRY(children_->wind_up("the end", kNoDeadline, [this] { return is_over(); }));
    }
    if (!failure_) return report_.outcome();
    // They have been told, and wake up.
    const auto patience = config_.heartbeat.deadline + kToldPatience;
    (void)children_->wind_up("the end", patience, [this] { return all_ended(); });
    for (Child* child : ranks_) child->send(SIGKILL);
    (void)children_->wind_up("the end", patience, [this] { return all_ended(); });
    return fail(*failure_);
  }

 private:
  [[nodiscard]] Result<> start(std::uint32_t rank, const std::vector<std::string>& arguments) {
    std::vector<std::string> all{"trainer"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    for (const auto& [name, value] :
         {std::pair{"--rank", static_cast<int>(rank)}, {"--segment", segment_.descriptor()}}) {
      all.emplace_back(name);
      all.push_back(std::to_string(value));
    }
    const auto child =
        children_->start({.name = fmt::format("rank {}", rank),
                          .arguments = std::move(all),
                          .output = rank == 0 ? ChildOutput::kLines : ChildOutput::kLog,
                          .errors = ChildErrors::kInherit,
                          .keep = segment_.descriptor()});
    if (!child) return fail(child.error());
    (*child)->may_end();
    if (rank == 0) (*child)->on_line = [this](const std::string& line) { take(line); };
    ranks_.push_back(*child);
    return {};
  }

  // To rank 0, which tells the others. Before it is there a signal would be the end of it.
  void pass_stop_on() {
    if (!is_stopping_ || is_told_ || segment_.ranks().front().phase == RankPhase::kAway) return;
    ranks_.front()->send(SIGTERM);
    is_told_ = true;
  }

  void take(const std::string& line) {
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object()) report_.take(event);
  }

  [[nodiscard]] bool all_ended() const {
    for (const Child* child : ranks_)
      if (child->running()) return false;
    return true;
  }

  // Asked after every event.
  [[nodiscard]] bool is_over() {
    if (failure_) return true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Child& child = *ranks_[rank];
      if (child.running() || child.succeeded()) continue;
      // Its own reason, if it had time to tell one.
      const Result<> told = segment_.health();
      fail_all(told ? Error(ErrorCode::kPeerLost,
                            fmt::format("rank {} (pid {}) {}", rank, child.pid(), child.ending()))
                    : told.error());
      return true;
    }
    return all_ended();
  }

  void look_for_silence() {
    const auto signs = segment_.ranks();
    for (std::size_t rank = 0; rank < signs.size() && !failure_; ++rank) {
      if (signs[rank].phase != RankPhase::kThere || !ranks_[rank]->running()) continue;
      const auto silence = now() - signs[rank].last_beat;
      if (silence < config_.heartbeat.deadline) continue;
      fail_all(Error(
          ErrorCode::kPeerLost,
          fmt::format("rank {} (pid {}) has given no sign of life for {}, heartbeat.deadline is "
                      "{}: it is stopped, or this host has no time for it",
                      rank, signs[rank].pid, trace::format_duration(silence),
                      trace::format_duration(config_.heartbeat.deadline))));
      ranks_[rank]->send(SIGKILL);
      children_->loop().stop();
    }
  }

  void fail_all(Error why) {
    segment_.abort(why);
    failure_ = std::move(why);
  }

  const config::TrainConfig& config_;
  const HostSegment segment_;
  TrainReport report_;
  std::optional<Error> failure_;
  bool is_stopping_ = false;
  bool is_told_ = false;
  std::unique_ptr<Children> children_;  // its processes end before the segment
  std::vector<Child*> ranks_;
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
  auto segment = HostSegment::create({.size = config.parallel.pp * config.parallel.dp});
  if (!segment) return fail(std::move(segment).error());
  auto children = Children::create("", own_environment(), [] {});
  if (!children) return fail(std::move(children).error());
  Launch launch(config, std::move(*segment), std::move(*children), prints_events);
  return launch.run(arguments);
}

}  // namespace wsync::cli
