#include "shared/loop/lag.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/loop/loop_state.h"

namespace wsync {
namespace {

using std::chrono::nanoseconds;

// A reading costs a system call, so a reading of up to this age is reused. The measured time is
// then too short by at most this age.
constexpr std::chrono::milliseconds kReadingAge{5};
// Callbacks shorter than this are not worth a second reading.
constexpr std::chrono::milliseconds kWorthReading{10};

// Returns text such as "agent::SidecarAgent::connect (sidecar_agent.cc:147)".
std::string text_of(const std::source_location& place) {
  std::string_view function = place.function_name();
  function = function.substr(0, function.find('('));
  function.remove_prefix(function.rfind(' ') + 1);
  std::string_view file = place.file_name();
  file.remove_prefix(file.rfind('/') + 1);
  return fmt::format("{} ({}:{})", function, file, place.line());
}

double milliseconds_of(nanoseconds duration) { return seconds(duration) * 1e3; }

}  // namespace

// The kernel counts both times of each thread in its schedstat file, in nanoseconds. Kernels
// without that file give 0, so that all time counts as blocking.
void RunQueue::open() {
  fd_.reset(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  read_at_ = TimePoint{};
}

ThreadTime RunQueue::read(TimePoint at) {
  if (at - read_at_ < kReadingAge) return time_;
  read_at_ = at;
  std::array<char, 96> text{};
  const ssize_t n = fd_.valid() ? ::pread(fd_.get(), text.data(), text.size(), 0) : -1;
  if (n <= 0) return time_;
  const char* const end = text.data() + n;
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  const auto first = std::from_chars(text.data(), end, ran);
  if (first.ec != std::errc{} || first.ptr == end) return time_;
  if (std::from_chars(first.ptr + 1, end, waited).ec == std::errc{})
    time_ = {.ran = nanoseconds(ran), .waited = nanoseconds(waited)};
  return time_;
}

CallbackTime::CallbackTime(Loop& loop, CallbackName name)
    : loop_(loop),
      name_(name),
      begin_(now()),
      before_(loop.state().run_queue.read(begin_)),
      reported_before_(loop.state().reported) {}

CallbackTime::~CallbackTime() {
  Loop::State& state = loop_.state();
  const TimePoint end = now();
  const nanoseconds took = end - begin_;
  const ThreadTime after = took >= kWorthReading ? state.run_queue.read(end) : before_;
  const nanoseconds waited = after.waited - before_.waited;
  const nanoseconds kept =
      std::max(took - waited - (state.reported - reported_before_), nanoseconds(0));
  if (kept.count() > state.longest_ns.load(std::memory_order_relaxed))
    state.longest_ns.store(kept.count(), std::memory_order_relaxed);
  if (kept < kSlowCallback) return;
  state.slow_callbacks.fetch_add(1, std::memory_order_relaxed);
  state.reported += kept;
  // Little processor time means that something else has held the thread: a lock, a file system, or
  // a virtual machine that did not run.
  log_warning(
      "the loop was blocked for {:.0f} ms by a {}{}{} of {} ({:.0f} ms of processor time), and "
      "waited another {:.0f} ms for a processor: heartbeats and deadlines were late",
      milliseconds_of(kept), name_.kind, name_.what.empty() ? "" : " ", name_.what,
      text_of(name_.made), milliseconds_of(after.ran - before_.ran), milliseconds_of(waited));
}

}  // namespace wsync
