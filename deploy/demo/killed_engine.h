// The engine that `wsync demo` kills in the middle of a switch.
//
// An engine says a bucket on its output after it has taken it and before it acknowledges it, and it
// waits in its line while nobody reads. So it can be stopped (SIGSTOP) between two buckets, what it
// has said can be read to the end, and then it is killed (SIGKILL) without having run again: what
// is reported is what had happened.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shared/loop/child_process.h"

namespace wsync::cli {

struct KilledEngineReport {
  std::string version;      // of the switch
  std::uint64_t taken = 0;  // buckets 0 to taken - 1; all but the newest certainly acknowledged
  std::uint64_t buckets = 0;
};

// Outlives: `child`, which writes lines, and `children` outlive it; no line of the child comes
// after its destruction.
class KilledEngine {
 public:
  KilledEngine(ChildProcesses& children, Child& child);
  ~KilledEngine() { child_.on_line = {}; }
  KilledEngine(const KilledEngine&) = delete;
  KilledEngine& operator=(const KilledEngine&) = delete;

  // From here on it is stopped when it has taken a third of a version's buckets.
  void arm();
  // Waits until it is stopped, and kills it. kInternal when `too_late` holds before that, or when
  // it had not taken two buckets, or all of them.
  [[nodiscard]] Result<KilledEngineReport> kill(const std::function<bool()>& too_late);
  // Torn steps that it spoke of.
  [[nodiscard]] std::uint64_t torn() const noexcept { return torn_; }

 private:
  void on_line(const std::string& line);

  ChildProcesses& children_;
  Child& child_;
  bool armed_ = false;
  KilledEngineReport seen_;
  std::uint64_t torn_ = 0;
};

}  // namespace wsync::cli
