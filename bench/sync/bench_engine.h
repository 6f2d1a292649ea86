// The engine process of `wsync bench sync`: the reference engine, which receives versions from a
// real sidecar as any engine does, and a reader of the benchmark's commands on standard input. Only
// the process that started it can send commands.
//
// Commands, one per line, and the answer to each (a JSON line on standard output):
//
//   map: {"event": "mapped", "version", "bytes"}. Maps the arena of the version that it serves.
//   read: {"event": "read"}. Reads the arena once.
//   copy K T V: {"event": "copied", "begin_ns", "end_ns"}. Copies the floor on T threads. K is the
//     name of a CopyKind. V is 1 with checksums, otherwise 0.
//   unmap: {"event": "unmapped"}.
//   stats: {"event": "stats", "torn", "copied_bytes"}. Totals since the process started.
//
// If a command fails, the answer is "failed" with "why". Without a command it sends "attached",
// "paused" and "resumed" with "at_ns" (monotonic clock) as they happen. The process ends when its
// input ends.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "inference_side/reference_engine/reference_engine.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct BenchEngineOptions {
  std::string sidecar_socket;
  std::string checkpoint;
  std::string replica;
  bool adopt = false;
  std::optional<std::uint32_t> gpu;  // GPU of its weights; no floor can be measured then
  std::uint32_t device = 0;          // index of the sidecar's device
  // Called for every event of the engine, like the sink of `wsync engine --trace`. May be empty.
  engine::reference::EventSink on_event = {};
};

// Runs until the end of standard input.
[[nodiscard]] Result<> run_bench_engine(const BenchEngineOptions& options);

}  // namespace wsync::bench
