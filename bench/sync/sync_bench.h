// `wsync bench sync`: how long engines stand still for an update, against the floor of the same
// copy. How to read the table, and limits: deploy/guides/benchmark.md.
//
// A real trainer, sidecar and engine processes; versions are published with `wsync push`, and the
// pause is the product's own report. A round is one floor and one update, and which comes first
// changes with each round. Before a floor one engine reads the arena through, as the sidecar does
// before an update, so that both find the caches alike. Three updates before the rounds warm every
// arena and every buffer.
//
//   floor (floor.h): the same engine processes copy the same bytes, from the arena that they
//     have mapped, to the same memory, with the best streaming copy and nothing else. All start
//     together; from the first one's start to the last one's end. Which vector copy on how many
//     threads is the best one is timed five times each before the rounds. On separate devices
//     engines do not see the arena: there it is one streaming copy of as many bytes on all
//     cores, the best of five before the rounds.
//   predicted: bytes by the rate of one streaming copy on all cores (best of five), and 0.5 ms
//     for the messages; computed before the engines are measured.
//   span: from the first engine that leaves off serving to the last one that is told to go on.
//   checked copy: the floor with the checksum of what is copied in the same pass.
//   copies: how often a byte is copied on its way from the trainer's source to one engine's own
//     memory, as the processes count it where they copy (wsync_update_bytes_total of stage
//     snapshot, wsync_wire_bytes_total, wsync_copied_bytes_total, and the engines' own count).
//     Framing and padding make it a little more than whole; what the kernel does behind a socket
//     is not in it.
//   CPU: processor time of trainer, sidecar and engines from before an update until all serve,
//     by 10^9 bytes that engines loaded; `wsync push` is not in it.
//   memory: VmHWM of each process, shared pages included; the sidecar's PSS (smaps_rollup), the
//     most of all rounds, with the bytes of the versions that it holds + 64 MiB as its limit.
//
// An engine reports a byte as loaded only when the checksum of its piece, computed while it was
// copied, equals the one computed while it was staged. At the end `wsync verify` reads back what
// every engine holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/harness/spread.h"
#include "bench/sync/floor.h"
#include "bench/sync/measured_fleet.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr double kRatioTarget = 0.95;                     // floor / paused, copying engines
inline constexpr std::uint64_t kAdoptTargetNs = 1'000'000;       // paused, engines that map
inline constexpr std::uint64_t kSidecarOwnBytes = 64ULL << 20U;  // over the versions it holds

struct SyncBenchOptions {
  std::string executable;                     // wsync
  std::string directory;                      // for everything that is made; the owner removes it
  std::vector<std::string> checkpoints;       // two, of equal layouts and different bytes
  std::uint64_t bytes = 0;                    // of one of them
  std::vector<unsigned> engines = {1, 2, 4};  // one case each
  unsigned rounds = 15;
  bool adopt = false;  // engines that map the version instead of copying it
  // Separate host devices (see MeasuredFleetOptions), and one case for each size of their buffers;
  // none: the sidecar's own choice.
  unsigned devices = 0;
  std::vector<std::uint64_t> buffers;
  bool tcp = false;   // versions are staged over TCP, not mapped (MeasuredFleetOptions)
  std::string trace;  // the last case's last update, as a Chrome trace; empty: none
};

// Bytes copied in an update, by those of one model; broadcast and loaded: into each device and
// engine.
struct CopiesPerByte {
  double snapshot = 0;
  double sent = 0;
  double received = 0;
  double h2d = 0;
  double broadcast = 0;
  double loaded = 0;
  // How often a byte is copied on its way from the trainer's source to one engine's memory.
  [[nodiscard]] double all() const { return snapshot + sent + received + h2d + broadcast + loaded; }
};

struct Round {
  bool floor_first = true;
  FloorRun floor;                   // none of adopting engines, nor on separate devices
  FloorRun verified;                // the same copy with checksums
  std::chrono::nanoseconds cpu{0};  // of trainer, sidecar and engines, for the update
  CopiesPerByte copies;
  Pushed pushed;
  Memory sidecar;
  [[nodiscard]] double ratio() const {
    return static_cast<double>(floor.ns) / static_cast<double>(pushed.paused_ns);
  }
};

struct WayTime {
  FloorWay way;
  double median_ns = 0;
};

struct SyncCase {
  unsigned engines = 1;
  bool adopt = false;
  unsigned devices = 0;
  bool tcp = false;
  std::uint64_t buffer_bytes = 0;  // 0: the sidecar's own choice
  FloorWay floor_way;              // the fastest of `ways`
  std::vector<WayTime> ways;       // timed before the rounds
  double predicted_ns = 0;         // paused, before anything was measured with these engines
  std::vector<Round> rounds;
  Spread floor_ns, verified_ns, paused_ns, load_ns, span_ns, staged_ns, ratio;
  Spread cpu_per_gigabyte;  // seconds of processor time for 10^9 bytes that engines loaded
  CopiesPerByte copies;     // medians
  PeakMemory peak;
  std::uint64_t checked_bytes = 0;   // in one round, all engines together; equal in every round
  std::uint64_t expected_bytes = 0;  // what it must be
  std::uint64_t pss_bytes = 0;       // the most of all rounds
  std::uint64_t rss_bytes = 0;
  std::uint64_t pss_limit_bytes = 0;
  double others_busy = 0;  // share of the cores' time that was used before the case began
  double stolen = 0;       // share that the host withheld during the case
  // Engines that copy out of the arena themselves; others have no floor.
  [[nodiscard]] bool has_floor() const { return !adopt && devices == 0; }
  [[nodiscard]] bool speed_met() const;  // true where there is no target: on separate devices
  [[nodiscard]] bool memory_met() const { return pss_bytes <= pss_limit_bytes; }
  [[nodiscard]] bool checked() const { return checked_bytes == expected_bytes; }
};

struct SyncBenchResult {
  Machine machine;
  std::uint64_t bytes = 0;
  double copy_rate = 0;  // bytes a second, one streaming copy on every core; what predictions use
  std::vector<SyncCase> cases;
};

// Told what goes on: a label, and how many of how many steps are done.
using OnProgress = std::function<void(std::string_view label, unsigned done, unsigned total)>;

// kResourceExhausted, with how much is needed, where the memory for updates of a model of so many
// bytes is not there. kInvalidInput for options that contradict each other. Both without looking at
// the checkpoints.
[[nodiscard]] Result<> check_sync_bench(const SyncBenchOptions& options, std::uint64_t bytes);

// Takes minutes for a GiB. Ends early, leaving no process, with kCancelled on a signal, or with the
// first error of a process.
[[nodiscard]] Result<SyncBenchResult> run_sync_bench(const SyncBenchOptions& options,
                                                     const Interrupt& interrupt,
                                                     const OnProgress& on_progress);

}  // namespace wsync::bench
