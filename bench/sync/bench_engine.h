// The engine process of `wsync bench sync`: the reference engine, which takes versions from a real
// sidecar as any engine does, and beside it a reader of commands from the benchmark on standard
// input. Nobody but the process that started it can give them.
//
// Commands, one a line, and the line that answers each (JSON, on standard output):
//
//   map            {"event": "mapped", "version", "bytes"}   the arena of the version it serves
//   read           {"event": "read"}                         that arena, once through
//   copy K T V     {"event": "copied", "begin_ns", "end_ns"} floor of CopyKind K on T threads; V is
//   1
//                                                            with checksums, else 0
//   unmap          {"event": "unmapped"}
//   stats          {"event": "stats", "torn", "copied_bytes"}   since it was started
//
// "failed" with "why" answers a command that could not be done. Unasked: "attached", "paused" and
// "resumed" with "at_ns" (monotonic clock), as they happen. It ends when its input does.
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
  std::optional<std::uint32_t> gpu;  // its weights are on this GPU; no floor can be measured then
  std::uint32_t device = 0;          // index of the sidecar's device
  // Told of every event of the engine, as the sink of `wsync engine --trace` is; may be empty.
  engine::reference::EventSink on_event = {};
};

// Runs until the end of standard input.
[[nodiscard]] Result<> run_bench_engine(const BenchEngineOptions& options);

}  // namespace wsync::bench
