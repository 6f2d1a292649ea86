// The engine that `wsync demo` kills in the middle of a switch.
//
// An engine writes a line for a bucket after it has taken the bucket and before it acknowledges it,
// and it waits while nobody reads its lines. So it can be stopped (SIGSTOP) between two buckets,
// its lines can be read to the end, and then it is killed (SIGKILL) without having run again: what
// is reported is exactly what had happened.
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
  // Torn steps that it told of.
  [[nodiscard]] std::uint64_t torn() const noexcept { return torn_; }

 private:
  void handle_line(const std::string& line);

  ChildProcesses& children_;
  Child& child_;
  bool armed_ = false;
  KilledEngineReport seen_;
  std::uint64_t torn_ = 0;
};

}  // namespace wsync::cli
