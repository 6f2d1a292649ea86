// MeasuredFleet: a trainer, a sidecar and engines of a benchmark, all real, in a directory of their
// own, and what is measured of them.
//
// Thread: that of the ChildProcesses, which outlive the fleet.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/children.h"
#include "bench/sync/floor.h"
#include "deploy/fleet/fleet.h"
#include "shared/base/error.h"

namespace wsync::bench {

// What a fleet tells of itself.
enum class Watched : std::uint8_t {
  kAsByDefault,  // spans are kept, pages served on Unix sockets
  kNever,        // no span is made, no page served
  kAlways,       // as by default, and engines keep spans as `wsync engine --trace` does
};

struct MeasuredFleetOptions {
  std::string executable;      // wsync
  std::string directory;       // of mode 0700, empty; the owner removes it
  std::string name = "fleet";  // before the names of its processes; fleets of one run must differ
  std::string checkpoint;      // names and shapes for the engines
  unsigned engines = 1;
  bool adopt = false;
  std::vector<std::uint32_t> gpus;  // of each engine, whose number rules then; empty: host devices
  // Separate host devices, engines on each in turn; 0: unified, where engines read the arena.
  unsigned devices = 0;
  std::uint64_t buffer_bytes =
      0;             // of each of a separate device's buffers; 0: as the sidecar has it
  bool tcp = false;  // versions are staged over TCP into an arena of the sidecar's own
  Watched watched = Watched::kAsByDefault;
  // False: the caller is the trainer, with `run` and `state` of the directory. It may then call
  // verify(), check_steps() and sidecar_memory() only.
  bool has_trainer = true;
};

// One push as the product reports it.
struct Pushed {
  std::uint64_t paused_ns = 0;  // longest of the replicas: last rank's PAUSED to RESUME
  std::uint64_t load_ns = 0;    // longest
  std::uint64_t span_ns = 0;    // first engine to leave off serving, to the last told to resume
  std::uint64_t staged_ns = 0;
  std::uint64_t checked_bytes = 0;  // loaded and equal to their staged checksums, of all replicas
  std::chrono::nanoseconds command_cpu{0};  // processor time of `wsync push` itself
};

// Bytes that were copied since the fleet was started, as its processes count them where they copy.
struct CopiedBytes {
  std::uint64_t snapshot = 0;   // trainer: from its source into the arena
  std::uint64_t sent = 0;       // trainer: from the arena into TCP sockets, framing included
  std::uint64_t received = 0;   // sidecar: from TCP sockets into its own arena
  std::uint64_t h2d = 0;        // sidecar: from the arena into separate devices
  std::uint64_t broadcast = 0;  // sidecar: from device to device, all destinations
  std::uint64_t loaded = 0;     // engines: into their own memory, all of them
  // Since then.
  [[nodiscard]] CopiedBytes operator-(const CopiedBytes& earlier) const;
};

struct FloorRun {
  std::uint64_t ns = 0;     // from the start to the last process's end
  std::uint64_t bytes = 0;  // of all engines together
};

struct Memory {
  std::uint64_t pss_bytes = 0;  // shared pages in equal parts among those who map them
  std::uint64_t rss_bytes = 0;  // all of them
};

// The most memory that each process had resident at once, pages that it shares included.
struct PeakMemory {
  std::uint64_t trainer_bytes = 0;
  std::uint64_t sidecar_bytes = 0;
  std::uint64_t engine_bytes = 0;  // of the engine that had most
};

class MeasuredFleet {
 public:
  // Starts everything and waits until the engines are attached.
  [[nodiscard]] static Result<std::unique_ptr<MeasuredFleet>> start(MeasuredFleetOptions options,
                                                                    cli::ChildProcesses& children);
  MeasuredFleet(const MeasuredFleet&) = delete;
  MeasuredFleet& operator=(const MeasuredFleet&) = delete;

  // Publishes a checkpoint directory. kDigestMismatch or kRefused unless every replica committed.
  // `trace`: a file that the push writes what the fleet has traced of it to (--trace); empty: none.
  [[nodiscard]] Result<Pushed> push(const std::string& checkpoint, const std::string& trace = "");
  // Maps, copies once with each way, and lets go; answers in the order of the ways.
  [[nodiscard]] Result<std::vector<FloorRun>> floor(const std::vector<FloorWay>& ways);
  // Reads back what the engines hold, as `wsync verify` does; kDigestMismatch unless all of it
  // matches.
  [[nodiscard]] Result<> verify();
  // Writes what the fleet has traced of its last update (`wsync trace get`).
  [[nodiscard]] Result<> trace(const std::string& path);
  // kDigestMismatch when a step of an engine ever read torn weights.
  [[nodiscard]] Result<> check_steps();
  [[nodiscard]] Result<Memory> sidecar_memory() const;
  // Processor time that trainer, sidecar and engines have used since they were started.
  [[nodiscard]] Result<std::chrono::nanoseconds> cpu_time() const;
  [[nodiscard]] PeakMemory peak_memory() const;
  // Not of a fleet that is never watched, whose processes serve no pages.
  [[nodiscard]] Result<CopiedBytes> copied_bytes();
  // Where the pages of trainer and sidecar are served, if they are.
  [[nodiscard]] std::vector<std::string> page_sockets() const;
  // Versions that a sidecar of this fleet holds once it is warm.
  [[nodiscard]] unsigned versions_held() const noexcept;

 private:
  // An engine's lines that nobody has asked for yet. When it left off serving and when it was told
  // to go on, since the last push began.
  struct Engine {
    std::deque<std::string> lines;
    std::int64_t paused_ns = 0;
    std::int64_t resumed_ns = 0;
  };
  struct Answer {
    nlohmann::json result;
    std::chrono::nanoseconds cpu{0};
  };
  MeasuredFleet(MeasuredFleetOptions options, cli::ChildProcesses& children);
  [[nodiscard]] Result<> ask_engine(std::size_t index, const std::string& command) {
    return fleet_.engine(index).write_line(command);
  }
  // A command of wsync that asks the coordinator.
  [[nodiscard]] Result<Answer> run(const std::string& name, std::vector<std::string> arguments);
  [[nodiscard]] Result<nlohmann::json> event(std::size_t engine, std::string_view name);

  const MeasuredFleetOptions options_;
  cli::ChildProcesses& children_;
  std::vector<Engine> engines_;
  fleet::Fleet fleet_;  // its processes end first
};

}  // namespace wsync::bench
