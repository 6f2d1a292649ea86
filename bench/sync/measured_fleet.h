// MeasuredFleet: a real trainer, sidecar and engines of a benchmark in their own directory, and
// their measurements.
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

// How a fleet is observed.
enum class Watched : std::uint8_t {
  kAsByDefault,  // spans are recorded, pages are served on Unix sockets
  kNever,        // no spans are recorded, no pages are served
  kAlways,       // as by default, and engines record spans as with `wsync engine --trace`
};

struct MeasuredFleetOptions {
  std::string executable;  // wsync
  std::string directory;   // mode 0700, empty; the owner removes it
  // prefix of the names of its processes; different for each fleet of a run
  std::string name = "fleet";
  std::string checkpoint;  // names and shapes for the engines
  unsigned engines = 1;
  bool adopt = false;
  // one GPU per engine, which overrides `engines`; empty: host devices
  std::vector<std::uint32_t> gpus;
  // Number of separate host devices, with engines on each in turn. 0: unified memory, where engines
  // read the arena.
  unsigned devices = 0;
  std::uint64_t buffer_bytes =
      0;             // bytes of each buffer of a separate device; 0: the sidecar's default
  bool tcp = false;  // versions are staged over TCP into an arena of the sidecar
  Watched watched = Watched::kAsByDefault;
  std::vector<std::string> sidecar_settings = {};  // further ones: "key=value"
  // False: the caller starts the trainer or is it, with `run` and `state` of the directory. It may
  // then only call verify(), check_steps(), sidecar_memory(), and copied_bytes() if the trainer
  // serves its page at its default address.
  bool has_trainer = true;
};

// One push as the product reports it.
struct Pushed {
  std::uint64_t paused_ns = 0;  // maximum over replicas: last rank's PAUSED to RESUME
  std::uint64_t load_ns = 0;    // maximum over replicas
  // from the first engine that stops serving to the last one that is resumed
  std::uint64_t span_ns = 0;
  std::uint64_t staged_ns = 0;
  std::uint64_t checked_bytes = 0;  // loaded and equal to their staged checksums; all replicas
  std::chrono::nanoseconds command_cpu{0};  // processor time of `wsync push`
};

// Bytes copied since the fleet was started, as its processes count them when they copy.
struct CopiedBytes {
  std::uint64_t snapshot = 0;   // trainer: from its source into the arena
  std::uint64_t sent = 0;       // trainer: from the arena into TCP sockets, framing included
  std::uint64_t received = 0;   // sidecar: from TCP sockets into its own arena
  std::uint64_t h2d = 0;        // sidecar: from the arena into separate devices
  std::uint64_t broadcast = 0;  // sidecar: from device to device, all destinations
  std::uint64_t loaded = 0;     // engines: into their own memory, total of all engines
  // Bytes copied since `earlier`.
  [[nodiscard]] CopiedBytes operator-(const CopiedBytes& earlier) const;
};

struct FloorRun {
  std::uint64_t ns = 0;     // from the first start to the last end
  std::uint64_t bytes = 0;  // total of all engines
};

struct Memory {
  std::uint64_t pss_bytes = 0;  // shared pages divided by the number of processes that map them
  std::uint64_t rss_bytes = 0;  // shared pages counted fully
};

// Maximum resident memory of each process, including shared pages.
struct PeakMemory {
  std::uint64_t trainer_bytes = 0;
  std::uint64_t sidecar_bytes = 0;
  std::uint64_t engine_bytes = 0;  // maximum over engines
};

class MeasuredFleet {
 public:
  // Starts all processes and waits until the engines are attached.
  [[nodiscard]] static Result<std::unique_ptr<MeasuredFleet>> start(MeasuredFleetOptions options,
                                                                    cli::ChildProcesses& children);
  MeasuredFleet(const MeasuredFleet&) = delete;
  MeasuredFleet& operator=(const MeasuredFleet&) = delete;

  // Publishes a checkpoint directory. kDigestMismatch or kRefused unless every replica committed.
  // `trace`: a file for the trace of this push (--trace); empty: none.
  [[nodiscard]] Result<Pushed> push(const std::string& checkpoint, const std::string& trace = "");
  // How the first engine was loaded last, as the sidecar says.
  struct LastLoad {
    bool by_patch = false;
    std::uint64_t written_bytes = 0;
  };
  [[nodiscard]] Result<LastLoad> last_load();
  // Maps the arena, copies once in each way, and unmaps it. Results are in the order of the ways.
  [[nodiscard]] Result<std::vector<FloorRun>> floor(const std::vector<FloorWay>& ways);
  // Reads back the engines' weights as `wsync verify` does. kDigestMismatch unless all bytes match.
  [[nodiscard]] Result<> verify();
  // Writes the trace of the fleet's last update (`wsync trace get`). `coordinator`: its address, if
  // it is no process of this fleet; otherwise empty.
  [[nodiscard]] Result<> trace(const std::string& path, const std::string& coordinator = "");
  // kDigestMismatch if a step of an engine has ever read torn weights.
  [[nodiscard]] Result<> check_steps();
  [[nodiscard]] Result<Memory> sidecar_memory() const;
  // Processor time of trainer, sidecar and engines since they were started.
  [[nodiscard]] Result<std::chrono::nanoseconds> cpu_time() const;
  [[nodiscard]] PeakMemory peak_memory() const;
  [[nodiscard]] pid_t sidecar_process() const;
  [[nodiscard]] std::vector<pid_t> engine_processes() const;
  // Not available for a fleet with Watched::kNever, whose processes serve no pages.
  [[nodiscard]] Result<CopiedBytes> copied_bytes();
  // Sockets of the pages of trainer and sidecar, if they are served.
  [[nodiscard]] std::vector<std::string> page_sockets() const;
  // Number of versions that a sidecar of this fleet holds once it is warm.
  [[nodiscard]] unsigned versions_held() const noexcept;

 private:
  // An engine's unread lines, and the times since the last push began when it stopped serving and
  // when it was resumed.
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
  // Runs a wsync command that queries the coordinator; empty: the one of this fleet.
  [[nodiscard]] Result<Answer> run(const std::string& name, std::vector<std::string> arguments,
                                   const std::string& coordinator = "");
  [[nodiscard]] Result<nlohmann::json> event(std::size_t engine, std::string_view name);

  const MeasuredFleetOptions options_;
  cli::ChildProcesses& children_;
  std::vector<Engine> engines_;
  fleet::Fleet fleet_;  // its processes end first
};

}  // namespace wsync::bench
