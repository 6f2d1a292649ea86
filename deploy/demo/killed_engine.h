// The engine that `wsync demo` kills in the middle of a switch.
//
// An engine writes a line for each bucket, after it has copied the bucket out and before it
// acknowledges the bucket. It blocks while nobody reads its output. It can therefore be stopped
// (SIGSTOP) between two buckets. All its lines are then read, and it is killed (SIGKILL) without
// having run again. The report therefore describes exactly what happened.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shared/loop/child_process.h"

namespace wsync::cli {

struct KilledEngineReport {
  std::string version;      // version of the switch
  std::uint64_t taken = 0;  // buckets 0 to taken - 1; all except the last are acknowledged
  std::uint64_t buckets = 0;
};

// Outlives: `child`, which writes lines, and `children` outlive it. After its destruction, lines of
// the child are no longer handled.
class KilledEngine {
 public:
  KilledEngine(ChildProcesses& children, Child& child);
  ~KilledEngine() { child_.on_line = {}; }
  KilledEngine(const KilledEngine&) = delete;
  KilledEngine& operator=(const KilledEngine&) = delete;

  // From now on, the engine is stopped when it has copied a third of a version's buckets.
  void arm();
  // Waits until the engine is stopped, and kills it. kInternal if `too_late` becomes true first, or
  // if the engine had copied fewer than two buckets or all of them.
  [[nodiscard]] Result<KilledEngineReport> kill(const std::function<bool()>& too_late);
  // Number of torn steps that the engine reported.
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
