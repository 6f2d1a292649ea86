// The processes of one case of `wsync bench sync`: a trainer, a sidecar and engines, all real, in a
// directory of their own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "bench/sync/floor.h"
#include "shared/base/error.h"

namespace wsync::bench {

// What a fleet tells of itself.
enum class Watched : std::uint8_t {
  kAsByDefault,  // spans are kept, pages served on Unix sockets
  kNever,        // no span is made, no page served
  kAlways,       // as by default, and engines keep spans as `wsync engine --trace` does
};

struct FleetOptions {
  std::string executable;  // wsync
  std::string directory;   // of mode 0700, empty; the owner removes it
  std::string checkpoint;  // names and shapes for the engines
  unsigned engines = 1;
  bool adopt = false;
  std::vector<std::uint32_t> gpus;  // of each engine, whose number rules then; empty: host devices
  // Separate host devices, engines on each in turn; 0: unified, where engines read the arena.
  unsigned devices = 0;
  std::uint64_t buffer_bytes =
      0;             // of each of a separate device's buffers; 0: as the sidecar has it
  bool tcp = false;  // versions are staged over TCP into an arena of the sidecar's own
  Watched watched = Watched::kAsByDefault;
  // False: the caller is the trainer, with `run` and `state` of the directory. Of the functions
  // below it may then call verify(), check_steps() and sidecar_memory().
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

class Fleet {
 public:
  // Starts everything and waits until the engines are attached.
  [[nodiscard]] static Result<std::unique_ptr<Fleet>> start(FleetOptions options,
                                                            const Interrupt& interrupt);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;
  ~Fleet();  // stops them in order, and kills what does not stop

  // Publishes a checkpoint directory. kDigestMismatch or kRefused unless every replica committed.
  // `trace`: a file that the push writes what the fleet has traced of it to (--trace); empty: none.
  [[nodiscard]] Result<Pushed> push(const std::string& checkpoint, const std::string& trace = "");
  // Maps, copies once with each way, and lets go; answers in the order of the ways.
  [[nodiscard]] Result<std::vector<FloorRun>> floor(const std::vector<FloorWay>& ways);
  // Reads back what the engines hold (`wsync verify`); kDigestMismatch unless all of it matches.
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
  struct Engine;
  Fleet(FleetOptions options, const Interrupt& interrupt);
  [[nodiscard]] Result<Child> start(const std::string& name, std::vector<std::string> arguments);
  struct Answer {
    nlohmann::json result;
    std::chrono::nanoseconds cpu{0};
  };
  [[nodiscard]] Result<Answer> run(const std::string& name, std::vector<std::string> arguments);
  [[nodiscard]] std::vector<std::string> sidecar_arguments() const;
  [[nodiscard]] std::vector<std::string> engine_arguments(std::size_t index) const;
  [[nodiscard]] std::vector<std::string> trainer_arguments() const;
  [[nodiscard]] Result<> settle(std::chrono::milliseconds time);
  [[nodiscard]] Result<> wait_for_socket(const std::string& path);
  [[nodiscard]] Result<nlohmann::json> event(Engine& engine, std::string_view name);

  const FleetOptions options_;
  const Interrupt& interrupt_;
  std::unique_ptr<Child> sidecar_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<Child> trainer_;
};

}  // namespace wsync::bench
