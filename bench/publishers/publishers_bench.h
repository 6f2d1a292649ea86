// `wsync bench sync --python` compares a publish from Python with the same publish from C. How to
// read the table: deploy/guides/benchmark.md.
//
// Two fleets run at the same time, each with a sidecar and engines of its own. The trainer of one
// is a process that uses the C functions of the trainer library (c_publisher.h): it has described
// its tensors once, and calls wsync_trainer_publish. The trainer of the other one is an interpreter
// of Python with the wheel (bench/publish.py): it calls wsync.Publisher.publish with a dict of
// arrays of NumPy, or of tensors of torch over the same bytes. Both have read the same model into
// their memory. Before each publish the first bytes of every tensor change, in the same way in
// both.
//
// A round is one publish of each kind, and the order is reversed with each round. The publishes
// before the rounds touch every snapshot, so that no publish of a round allocates one.
//
//   snapshot: until publish returned, as the publisher's process measures it. The ratio to the C
//     path of the same round is what has a target.
//   staged, whole: until the wait for "staged" or "committed" returned.
//   CPU: processor time of the publisher's process until publish returned, and for the whole.
//   copies: bytes that the library copied in the publisher's process
//     (wsync_update_bytes_total of stage snapshot, wsync_wire_bytes_total), divided by the bytes of
//     the model.
//   growth: peak resident memory of the publisher's process (VmHWM, reset before each publish),
//     without the snapshots (RssShmem) and without what it had before its first publish. A copy
//     that the library does not count shows here, also if its memory is kept for the next publish.
//
// Every round fails unless all kinds publish the same content digest. At the end the weights of all
// engines are read back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/machine.h"
#include "bench/harness/spread.h"
#include "bench/publishers/interpreter.h"
#include "bench/publishers/publishing_fleet.h"
#include "bench/sync/sync_bench.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Time of a publish from Python / time of the same publish from C, as a maximum.
inline constexpr double kPythonRatioTarget = 1.05;

struct PublishersBenchOptions {
  std::string executable;  // wsync
  std::string directory;   // for all created files; the owner removes it
  std::string checkpoint;
  std::uint64_t bytes = 0;  // of the checkpoint
  Interpreter interpreter;
  unsigned engines = 1;
  unsigned rounds = 15;
  bool adopt = false;  // engines map the version instead of copying it
  bool tcp = false;    // versions are staged over TCP instead of mapped
};

// A figure of all rounds.
using FigureOf = double (*)(const PublishSample&);

struct PublisherRow {
  std::string kind;  // "c", "numpy", "torch"
  std::vector<PublishSample> rounds;
  [[nodiscard]] std::vector<double> column(FigureOf of) const;
  [[nodiscard]] Spread spread(FigureOf of) const;
};

struct PublishersBenchResult {
  Machine machine;
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
  std::uint64_t largest_tensor_bytes = 0;
  unsigned engines = 1;
  bool adopt = false;
  bool tcp = false;
  Interpreter interpreter;
  std::vector<PublisherRow> rows;  // C first
  double others_busy = 0;          // share of the cores' time that other processes used before
  double stolen = 0;               // share that the host withheld
  // This kind / C, round by round; 0 in rounds in which C took no measurable time.
  [[nodiscard]] Spread ratio(const PublisherRow& row, FigureOf of) const;
  [[nodiscard]] bool met(const PublisherRow& row) const;
};

// kResourceExhausted, with the needed amount, if there is too little memory for a model of `bytes`
// bytes.
[[nodiscard]] Result<> check_publishers_bench(const PublishersBenchOptions& options,
                                              std::uint64_t bytes);

// Errors, after which no process is left: kCancelled on a signal, kDigestMismatch if two kinds did
// not publish the same bytes, and the first error of a process.
[[nodiscard]] Result<PublishersBenchResult> run_publishers_bench(
    const PublishersBenchOptions& options, const Interrupt& interrupt,
    const OnProgress& on_progress);

}  // namespace wsync::bench
