// The scenario of `wsync demo`: publish three versions, refuse one, kill an engine in the
// middle of a switch, repair it, roll back, and verify every engine after each of these.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/demo/fleet.h"
#include "deploy/demo/floor.h"
#include "shared/base/clock.h"
#include "shared/base/digest.h"
#include "shared/loop/child_process.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::cli {

struct DemoOptions {
  std::string checkpoint;  // empty: one is made up
  std::uint64_t size = 0;  // of the made-up one, bytes
  std::uint32_t engines = 4;
  std::uint32_t devices = 4;
  std::string run_dir;    // sockets; short
  std::string work_dir;   // checkpoints
  std::string trace_dir;  // what the sidecars trace
};

// One version as it came to the engines.
struct DemoUpdate {
  Version version;
  Digest digest;
  std::uint64_t bytes = 0;         // of one model
  std::uint64_t loaded_bytes = 0;  // into all engines
  std::uint64_t snapshot_ns = 0;
  std::uint64_t staged_ns = 0;
  std::uint64_t paused_ns = 0;       // of the replica that was paused longest
  std::uint64_t verified_bytes = 0;  // compared afterwards, over all engines
  TimePoint begin{};
  TimePoint end{};
};

struct DemoReport {
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;
  std::uint64_t buffer_bytes = 0;
  bool same_bytes = false;  // the given checkpoint was published unchanged, for lack of disk
  std::vector<DemoUpdate> updates;
  struct {
    std::string tensor;
    std::string reason;
  } refusal;
  struct {
    std::string replica;
    std::string version;
    pid_t pid = 0;
    std::uint64_t taken = 0;  // buckets 0 to taken - 1 had been taken, all but the newest certainly
                              // acknowledged
    std::uint64_t buckets = 0;
    std::uint64_t torn = 0;  // steps that the killed process spoke of
    std::string state;       // of the replica afterwards
    std::string reason;
    std::uint64_t repaired_ns = 0;  // from its new start to its being ready
  } kill;
  struct {
    Version from;
    Version to;
    std::uint64_t paused_ns = 0;
  } rollback;
  std::vector<EngineResult> engines;
  CopyFloor floor;
  std::string picture;  // paths
  std::string trace;
  double elapsed_s = 0;

  [[nodiscard]] std::uint64_t torn() const;
};

// `say` gets one line for each thing that happened; `output` says, at the end, where picture and
// trace go. Every process is ended when this returns, with
// an error as well. Errors: as ChildProcesses::until(); kDigestMismatch when an engine holds other
// bytes than it should; kInternal when something went otherwise than the scenario expects.
[[nodiscard]] Result<DemoReport> run_demo_scenario(
    ChildProcesses& children, const DemoOptions& options,
    const std::function<Result<std::string>()>& output,
    const std::function<void(const std::string&)>& say);

// The report's table, figures and proofs, for people and for --json.
[[nodiscard]] std::string demo_text(const DemoReport& report, const DemoOptions& options);
[[nodiscard]] nlohmann::json demo_json(const DemoReport& report, const DemoOptions& options);

}  // namespace wsync::cli
