// The machine that a figure was measured on, for the record that stands beside it.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"

namespace wsync::bench {

class Interrupt;

struct Machine {
  std::string cpu;                // model name, as the kernel gives it
  std::uint32_t cores = 0;        // that this process may run on
  std::string layout;             // "2 cores, 1 thread each, 1 package, one L3 of 480 MiB for all"
  std::uint64_t cache_bytes = 0;  // of all last-level caches that those cores have; 0: not known
  bool virtual_machine = false;   // then the host's layout may differ from what is seen here
  std::uint64_t memory_bytes = 0;
  std::string kernel;
  std::string huge_pages;         // of private memory: always, madvise or never
  std::string shared_huge_pages;  // of shared memory: always, within_size, advise, never, ...
  std::string copy_kind;          // of the streaming copy: avx512, avx2 or portable
};

// What cannot be read stays empty.
[[nodiscard]] Machine this_machine();

// The share of all cores' time that was used since the last call, by anybody (0 to 1), and the
// share that the host of a virtual machine withheld. The first call counts from construction.
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

// The share of the cores' time that is used now, before a benchmark begins: what is busy belongs to
// others. Takes 0.3 s; kCancelled on a signal.
[[nodiscard]] Result<double> busy_with_others(const Interrupt& interrupt);

}  // namespace wsync::bench
