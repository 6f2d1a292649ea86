// The machine on which a figure was measured, for the record next to it.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

class Interrupt;

struct Machine {
  std::string cpu;                // model name as the kernel reports it
  std::uint32_t cores = 0;        // cores on which this process may run
  std::string layout;             // "2 cores, 1 thread each, 1 package, one L3 of 480 MiB for all"
  std::uint64_t cache_bytes = 0;  // of all last-level caches of those cores; 0: unknown
  bool virtual_machine = false;   // the host's layout may then differ from the visible one
  std::uint64_t memory_bytes = 0;
  std::string kernel;
  std::string huge_pages;         // for private memory: always, madvise or never
  std::string shared_huge_pages;  // for shared memory: always, within_size, advise, never, ...
  std::string copy_kind;          // kind of the streaming copy: avx512, avx2 or portable
};

// Fields that cannot be read stay empty.
[[nodiscard]] Machine this_machine();

// The share of all cores' time that all processes used since the last call (0 to 1), and the share
// that the host of a virtual machine withheld. The first call counts from construction.
class CpuLoad {
 public:
  CpuLoad();
  struct Shares {
    double busy = 0;
    double stolen = 0;
  };
  [[nodiscard]] Shares since_last();

 private:
  struct Ticks {
    std::uint64_t all = 0;
    std::uint64_t busy = 0;
    std::uint64_t stolen = 0;
  };
  static Ticks read();
  Ticks last_;
};

// The share of the cores' time that is in use before a benchmark begins and thus belongs to other
// processes. Takes 0.3 s. kCancelled on a signal.
[[nodiscard]] Result<double> busy_with_others(const Interrupt& interrupt);

}  // namespace wsync::bench
