// `wsync bench sync` compares the pause of engines during an update with the floor of the same
// copy. How to read the table, and limits: deploy/guides/benchmark.md.
//
// Trainer, sidecar and engine processes are real. Versions are published with `wsync push`, and the
// pause is the one that the product reports. A round is one floor and one update, in an order that
// changes with each round. Before a floor one engine reads the arena, as the sidecar does before an
// update, so that the caches are in the same state. Three updates before the rounds warm up every
// arena and every buffer.
//
//   floor (floor.h): the same engine processes copy the same bytes from their mapped arena to the
//     same memory, with only the best streaming copy. All start together. The time runs from the
//     first start to the last end. The best kind of vector copy and number of threads are selected
//     before the rounds; each is timed five times. On separate devices engines do not see the
//     arena. The floor is then one streaming copy of as many bytes on all cores, the best of five
//     before the rounds.
//   predicted: bytes divided by the rate of one streaming copy on all cores (best of five), plus
//     0.5 ms for the messages. Computed before the engines are measured.
//   span: from the first engine that stops serving to the last one that is resumed.
//   checked copy: the floor with a checksum of the copied bytes in the same pass.
//   copies: how often a byte is copied from the trainer's source to one engine's memory, as counted
//     by the processes that copy (wsync_update_bytes_total of stage snapshot,
//     wsync_wire_bytes_total, wsync_copied_bytes_total, and the engines' own count). Framing and
//     padding make it slightly more than an integer. Copies inside the kernel's sockets are not
//     included.
//   CPU: processor time of trainer, sidecar and engines from before an update until all serve, per
//     10^9 bytes that engines loaded. `wsync push` is not included.
//   memory: VmHWM of each process, including shared pages, and the sidecar's PSS (smaps_rollup),
//     the maximum of all rounds. The limit of the PSS is the bytes of the versions that the sidecar
//     holds + 64 MiB.
//
// A version is committed only if the sums that the engines computed during their copies make up
// those of the version. At the end `wsync verify` reads back the weights of every engine.
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

// floor / paused, for engines that copy
inline constexpr double kRatioTarget = 0.95;
inline constexpr std::uint64_t kAdoptTargetNs = 1'000'000;  // paused, for engines that map
// in addition to the versions that it holds
inline constexpr std::uint64_t kSidecarOwnBytes = 64ULL << 20U;

struct SyncBenchOptions {
  std::string executable;                     // wsync
  std::string directory;                      // for all created files; the owner removes it
  std::vector<std::string> checkpoints;       // two, with equal layouts and different bytes
  std::uint64_t bytes = 0;                    // bytes of one checkpoint
  std::vector<unsigned> engines = {1, 2, 4};  // one case each
  unsigned rounds = 15;
  bool adopt = false;  // engines map the version instead of copying it
  // Number of separate host devices (see MeasuredFleetOptions), and one case for each size of their
  // buffers. No sizes: the sidecar's default.
  unsigned devices = 0;
  std::vector<std::uint64_t> buffers;
  bool tcp = false;   // versions are staged over TCP instead of mapped (MeasuredFleetOptions)
  std::string trace;  // Chrome trace of the last case's last update; empty: none
};

// Bytes copied in an update, divided by the bytes of one model. Broadcast and loaded: per device
// and per engine.
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
  FloorRun floor;     // not for engines that map, and not on separate devices
  FloorRun verified;  // the same copy with checksums
  // processor time of trainer, sidecar and engines for the update
  std::chrono::nanoseconds cpu{0};
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
  std::uint64_t buffer_bytes = 0;  // 0: the sidecar's default
  FloorWay floor_way;              // the fastest of `ways`
  std::vector<WayTime> ways;       // timed before the rounds
  double predicted_ns = 0;         // predicted pause, from before the measurements of this case
  std::vector<Round> rounds;
  Spread floor_ns, verified_ns, paused_ns, load_ns, span_ns, staged_ns, ratio;
  Spread cpu_per_gigabyte;  // seconds of processor time per 10^9 bytes that engines loaded
  CopiesPerByte copies;     // medians
  PeakMemory peak;
  std::uint64_t checked_bytes = 0;   // per round, total of all engines; equal in every round
  std::uint64_t expected_bytes = 0;  // the required value of checked_bytes
  std::uint64_t pss_bytes = 0;       // maximum over all rounds
  std::uint64_t rss_bytes = 0;
  std::uint64_t pss_limit_bytes = 0;
  double others_busy = 0;  // share of the cores' time that other processes used before the case
  double stolen = 0;       // share that the host withheld during the case
  // Only engines that copy out of the arena have a floor.
  [[nodiscard]] bool has_floor() const { return !adopt && devices == 0; }
  [[nodiscard]] bool speed_met() const;  // true if there is no target, as on separate devices
  [[nodiscard]] bool memory_met() const { return pss_bytes <= pss_limit_bytes; }
  [[nodiscard]] bool checked() const { return checked_bytes == expected_bytes; }
};

struct SyncBenchResult {
  Machine machine;
  std::uint64_t bytes = 0;
  // bytes per second of a streaming copy on every core; input of predictions
  double copy_rate = 0;
  std::vector<SyncCase> cases;
};

// Called with a label and the numbers of finished and of all steps.
using OnProgress = std::function<void(std::string_view label, unsigned done, unsigned total)>;

// kResourceExhausted, with the needed amount, if there is too little memory for updates of a model
// of `bytes` bytes. kInvalidInput if options contradict each other. Neither check reads the
// checkpoints.
[[nodiscard]] Result<> check_sync_bench(const SyncBenchOptions& options, std::uint64_t bytes);

// Takes minutes for a GiB. Ends early, leaving no process, with kCancelled on a signal or with the
// first error of a process.
[[nodiscard]] Result<SyncBenchResult> run_sync_bench(const SyncBenchOptions& options,
                                                     const Interrupt& interrupt,
                                                     const OnProgress& on_progress);

}  // namespace wsync::bench
