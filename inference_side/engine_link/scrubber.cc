#include "inference_side/engine_link/scrubber.h"

#include <algorithm>
#include <ctime>
#include <pthread.h>
#include <sched.h>
#include <system_error>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/planted.h"

namespace wsync::engine {
namespace {

// 1 MiB between two looks at the clock: some 100 us, and some 100 waits in a second at 1 %.
constexpr int kBlocksInBurst = 4;
constexpr std::uint64_t kMillion = 1'000'000;

std::chrono::nanoseconds thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

TimePoint next_burst(TimePoint begin, std::chrono::nanoseconds cpu, std::uint32_t share_ppm) {
  const auto used = static_cast<std::uint64_t>(std::max<std::int64_t>(0, cpu.count()));
  // Rounded up, so that the share is never more than allowed.
  const std::uint64_t share = std::clamp<std::uint64_t>(share_ppm, 1, kMillion);
  return begin + std::chrono::nanoseconds((used * kMillion + share - 1) / share);
}

Scrubber::~Scrubber() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<> Scrubber::begin(ScrubPass pass, std::uint32_t share_ppm) {
  {
    Lock lock(mutex_);
    wait_until_idle(lock);
    pass_.emplace(std::move(pass));
    failure_.reset();
    reported_.reset();
    cpu_ = {};
    share_ppm_ = share_ppm;
    ++passes_;
  }
  changed_.notify_all();
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    drop();
    return fail(ErrorCode::kResourceExhausted,
                std::string("no thread can be started for a scrub: ") + error.what());
  }
  return {};
}

void Scrubber::end(std::uint64_t pass, std::string why) {
  drop();
  {
    const std::lock_guard lock(mutex_);
    failure_ = control::Scrubbed{.pass = pass, .failure = std::move(why)};
  }
  on_report_();
}

void Scrubber::end(std::string why) {
  std::optional<std::uint64_t> pass;
  {
    const std::lock_guard lock(mutex_);
    if (pass_) pass = pass_->number();
  }
  if (pass) end(*pass, std::move(why));
}

void Scrubber::drop() {
  Lock lock(mutex_);
  wait_until_idle(lock);
  pass_.reset();
  failure_.reset();
}

void Scrubber::set_serving(bool serving) {
  {
    const std::lock_guard lock(mutex_);
    if (serving_ == serving && (!serving || !held_)) return;
    serving_ = serving;
    if (serving) held_ = false;
  }
  changed_.notify_all();
}

void Scrubber::hold() {
  Lock lock(mutex_);
  held_ = true;
  serving_ = false;
  wait_until_idle(lock);
}

void Scrubber::wait_until_idle(Lock& lock) {
  ++waiters_;
  idle_.wait(lock, [this] { return !reading_; });
  --waiters_;
  changed_.notify_all();
}

std::vector<std::uint64_t> Scrubber::read_blocks() const {
  const std::lock_guard lock(mutex_);
  return pass_ ? pass_->read_blocks() : std::vector<std::uint64_t>();
}

void Scrubber::change(std::span<const SplitSum> before, std::span<const SplitSum> after) {
  const std::lock_guard lock(mutex_);
  if (pass_) pass_->change(before, after, now());
}

void Scrubber::set_version(const Version& version) {
  const std::lock_guard lock(mutex_);
  if (pass_ && !planted("scrub_named_after_another_version")) pass_->set_version(version);
}

std::optional<control::Scrubbed> Scrubber::take_report() {
  const std::lock_guard lock(mutex_);
  if (failure_) return std::exchange(failure_, std::nullopt);
  // A block may be read while the pass is not complete, and only then.
  if (reading_ || !serving_ || held_ || !pass_ || !pass_->complete()) return std::nullopt;
  if (reported_ == pass_->version()) return std::nullopt;
  reported_ = pass_->version();
  return scrubbed_by(*pass_, cpu_, now());
}

bool Scrubber::may_read() const {
  return serving_ && !held_ && waiters_ == 0 && !stopping_ && pass_ && !pass_->complete();
}

void Scrubber::run() {
  (void)::pthread_setname_np(::pthread_self(), "wsync-scrub");
  // It should not take the processor from a thread of the engine when it wakes up.
  sched_param param{};
  (void)::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &param);
  std::chrono::nanoseconds counted = thread_time();
  Lock lock(mutex_);
  while (!stopping_) {
    if (may_read())
      counted = read_burst(lock, counted);
    else
      changed_.wait(lock);
  }
}

std::chrono::nanoseconds Scrubber::read_burst(Lock& lock, std::chrono::nanoseconds counted) {
  const TimePoint begin = now();
  for (int block = 0; block < kBlocksInBurst && may_read(); ++block) {
    reading_ = true;
    lock.unlock();
    pass_->read_block();
    lock.lock();
    reading_ = false;
    idle_.notify_all();
  }
  // With what the wait before the burst has cost.
  const std::chrono::nanoseconds spent = thread_time();
  const std::chrono::nanoseconds used = spent - counted;
  cpu_ += used;
  if (pass_ && pass_->complete()) {
    lock.unlock();
    on_report_();
    lock.lock();
    return spent;
  }
  changed_.wait_until(lock, steady_time(next_burst(begin, used, share_ppm_)),
                      [this, pass = passes_] { return stopping_ || passes_ != pass; });
  return spent;
}

}  // namespace wsync::engine
