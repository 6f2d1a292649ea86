#include "inference_side/reference_engine/serving.h"

#include <algorithm>
#include <array>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "inference_side/reference_engine/step_limits.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"

namespace wsync::engine::reference {
namespace {

// Sleep time of an idle thread. New work wakes it earlier.
constexpr std::chrono::seconds kIdle{1};
// Upper limit of the rest: a step may seem long only because its process was suspended inside it.
constexpr std::chrono::milliseconds kRestMax{250};

}  // namespace

// A follower's callbacks: the gate decides, the work runs, and the outcome is counted.
class Serving::Follower final : public FollowerRole {
 public:
  explicit Follower(Serving& serving) : serving_(&serving) {}

  Result<> enter(std::uint64_t step, const Version& version) override {
    const auto began = serving_->gate_->enter(version);
    if (!began) {
      const std::lock_guard lock(serving_->mutex_);
      ++serving_->stats_.aborted;
      return fail(began.error());
    }
    step_ = step;
    version_ = version;
    if (*began) serving_->events_.running(step);
    return {};
  }
  Version holds() override { return serving_->gate_->view().version; }
  Result<Reading> read(const collective::Team& team) override {
    return serving_->read(version_, step_, team);
  }
  void finish(std::uint64_t step, const Reading& total) override {
    serving_->gate_->leave();
    serving_->count(step, version_, total);
    if (planted("follower_begins_step")) (void)serving_->gate_->enter(version_);
  }
  void abort(std::uint64_t /*step*/) override { serving_->gate_->leave(); }
  void stop(std::uint64_t step) override {
    if (serving_->gate_->stop()) serving_->events_.paused(step, "");
  }

 private:
  Serving* serving_;
  std::uint64_t step_ = 0;
  Version version_;
};

Serving::Serving(ServingOptions options, StepWork& work, StepGate& gate, ServingEvents events)
    : options_(std::move(options)), work_(&work), gate_(&gate), events_(std::move(events)) {}

Result<std::unique_ptr<Serving>> Serving::create(ServingOptions options, StepWork& work,
                                                 StepGate& gate, ServingEvents events) {
  std::unique_ptr<Serving> serving(new Serving(std::move(options), work, gate, std::move(events)));
  serving->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!serving->wake_.valid()) return fail_errno("eventfd", errno);
  if (serving->options_.group.rank == 0) {
    auto leader = WSYNC_TRY(GroupLeader::create(serving->options_.group));
    serving->leader_.emplace(std::move(leader));
  }
  return serving;
}

Serving::~Serving() { stop(); }

void Serving::start() {
  WSYNC_CHECK(!thread_.joinable(), "serving is started once");
  thread_ = std::thread([this] {
    if (leader_)
      run_leader();
    else
      run_follower();
  });
}

void Serving::stop() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void Serving::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Serving::drain_wake() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
}

void Serving::pause(PauseMode mode) {
  WSYNC_CHECK(leader_.has_value(), "the leader is asked to pause");
  {
    const std::lock_guard lock(mutex_);
    wish_ = Wish::kPause;
    pause_mode_ = mode;
  }
  wake();
}

Result<> Serving::resume() {
  WSYNC_CHECK(leader_.has_value(), "the leader is asked to resume");
  std::unique_lock lock(mutex_);
  wish_ = Wish::kResume;
  resume_answer_.reset();
  wake();
  const auto wait_limit = std::chrono::milliseconds(limits::kGroupWholeDeadlineMs);
  if (answered_.wait_for(lock, wait_limit, [&] { return resume_answer_.has_value(); }))
    return std::move(*resume_answer_);
  wish_ = Wish::kNone;
  return fail(ErrorCode::kBusy,
              fmt::format("{} of the replica's {} ranks have connected after {} ms", joined_,
                          options_.group.world_size, wait_limit.count()));
}

ServingStats Serving::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// ---- leader ----

void Serving::run_leader() {
  TimePoint next_step{};
  while (!stopping_) {
    drain_wake();
    Wish wish = Wish::kNone;
    PauseMode mode{};
    {
      const std::lock_guard lock(mutex_);
      joined_ = leader_->joined();
      wish = wish_;
      mode = pause_mode_;
    }
    // If a rank is missing, pause at once: no further step could bring the end of the work nearer.
    if (wish == Wish::kPause && (work_->may_stop(mode) || !leader_->whole())) stop_all("");
    if (wish == Wish::kResume && leader_->whole()) grant_resume();
    const bool due = step_is_due();
    if (due && now() >= next_step) {
      next_step = now() + options_.step_interval;
      lead_one_step();
      next_step = std::max(next_step, now() + std::min<std::chrono::nanoseconds>(
                                                  options_.rest * step_time_, kRestMax));
    }
    const auto tended = leader_->tend(due ? next_step : now() + kIdle, wake_.get());
    if (!tended) broke(tended.error());
    if (leader_->whole() != together_told_.exchange(leader_->whole()) && together_told_) {
      work_->together();
      events_.together(options_.group.world_size);
    }
  }
}

// The first step after a resume always runs, because it notifies the followers that they serve.
bool Serving::step_is_due() {
  return leader_->whole() && gate_->view().phase == GatePhase::kServing && !stopping_ &&
         (!running_told_ || work_->due());
}

void Serving::grant_resume() {
  const std::lock_guard lock(mutex_);
  if (wish_ != Wish::kResume) return;  // its caller has given up waiting
  wish_ = Wish::kNone;
  resume_answer_ = gate_->resume();
  if (*resume_answer_) work_->resumed();
  answered_.notify_all();
}

void Serving::lead_one_step() {
  const TimePoint begin = now();
  const Version version = gate_->view().version;
  if (const auto entered = gate_->enter(version); !entered)
    return stop_all(entered.error().message());
  const std::uint64_t step = leader_->step() + 1;
  if (!std::exchange(running_told_, true)) events_.running(step);
  const auto end = leader_->go(version, [&] { return read(version, step, leader_->team()); });
  gate_->leave();
  const bool done = end && !end->refusal;
  work_->ended(done, version, done ? end->total : Reading{});
  if (!end) return broke(end.error());
  if (end->refusal) {
    {
      const std::lock_guard lock(mutex_);
      ++stats_.aborted;
    }
    // No further attempt before a resume. The ranks that were ready stop too.
    return stop_all(fmt::format("rank {} holds version {} and refused a step of version {}",
                                end->refusal->rank, end->refusal->holds.to_string(),
                                version.to_string()));
  }
  count(step, version, end->total);
  step_time_ = now() - begin;
}

void Serving::stop_all(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (wish_ == Wish::kPause) wish_ = Wish::kNone;
  }
  if (planted("pause_not_honoured")) return events_.paused(leader_->step(), why);
  if (leader_->whole())
    if (const auto stopped = leader_->stop(); !stopped) return broke(stopped.error());
  running_told_ = false;
  if (gate_->stop()) events_.paused(leader_->step(), why);
}

void Serving::broke(const Error& why) {
  const bool whole = gate_->stop();
  running_told_ = false;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.broken;
  }
  log_warning("{}", why.message());
  if (whole) events_.paused(leader_ ? leader_->step() : stats().last_step, why.message());
}

// ---- follower ----

void Serving::run_follower() {
  Follower role(*this);
  GroupFollower group(options_.group, role);
  while (!stopping_) {
    drain_wake();
    const auto tended = group.tend(now() + kIdle, wake_.get());
    if (!tended) broke(tended.error());
  }
}

// ---- both ----

Result<Reading> Serving::read(const Version& version, std::uint64_t step,
                              const collective::Team& team) {
  saw_.clear();
  auto reading = work_->run(step, version, team,
                            now() + std::chrono::milliseconds(limits::kForwardDeadlineMs), saw_);
  layers_ = reading ? reading->layers : 0;
  return reading;
}

void Serving::count(std::uint64_t step, const Version& version, const Reading& total) {
  {
    const std::lock_guard lock(mutex_);
    ++stats_.steps;
    ++stats_.by_version[version];
    stats_.layers_compared += layers_;
    stats_.last_step = step;
    stats_.last_total = total.value;
    if (total.torn) ++stats_.torn;
  }
  if (!total.torn) return;
  log_error("step {} of version {} read torn weights{}{}", step, version.to_string(),
            saw_.empty() ? " in another rank" : ": ", saw_);
  events_.torn(step, saw_);
}

}  // namespace wsync::engine::reference
