// `wsync bench peers`: a trainer has a model in its memory, and N engines need it in theirs with
// every byte verified. The job is done by wsync (wsync_side.h) and by other common tools
// (peer_list.h, scripts/). How to read the table, and limits: deploy/guides/benchmark.md.
//
// Times are measured by the benchmark's clock, from the start message, which trainer and engines
// get at the same time, until the last process has reported that it holds the verified bytes. The
// time of wsync runs from the call of publish until every engine has committed the version.
//
// Trainer and engines of every peer compute XXH3-128 of all tensors in their own memory, in a
// thread that runs in parallel to the transfer. The benchmark compares it with the model's digest,
// which it has computed itself. Two models take turns, so that bytes of the previous model are a
// mismatch. wsync's engines sum what they copy, and the sums are compared with those of the
// version. The version's content digest is compared with the benchmark's, and
// `wsync verify` reads back after each turn, outside of the measured time.
//
// The floor (copier.h): one process per engine copies the model once from a shared mapping into its
// own memory, all processes at once, with the best streaming copy. The figure is the minimum over
// as many copies of each kind as a turn has transfers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/peers/peer_environment.h"

namespace wsync::bench {

inline constexpr std::string_view kPeersTmpfs = "/dev/shm";

struct PeersBenchOptions {
  std::string executable;                        // wsync
  std::string directory;                         // for all created files; the owner removes it
  std::string tmpfs = std::string(kPeersTmpfs);  // location of peers' files on tmpfs
  std::vector<std::string> checkpoints;          // two, with equal layouts and different bytes
  std::vector<FoundPeer> peers;
  unsigned engines = 2;
  unsigned rounds = 9;
  unsigned warm_ups = 3;  // transfers before the measured one in each turn
};

// A contender, including one that could not run.
struct PeerRow {
  const Peer* peer = nullptr;
  std::string versions;
  std::string skipped;  // reason if it never began
  // reason and round if it was dropped; `seconds` then has the rounds before
  std::string failed;
  std::vector<double> seconds;  // one per round
};

struct PeersBenchResult {
  Machine machine;
  std::uint64_t bytes = 0;  // bytes of the model
  std::uint64_t tensors = 0;
  unsigned engines = 0;
  unsigned rounds = 0;
  std::string disk;  // directory of files on disk
  // One value per round:
  std::vector<double> floor_seconds;
  std::vector<double> wsync_seconds;
  std::vector<double> wsync_staged_seconds;
  std::vector<double> wsync_paused_seconds;
  std::vector<PeerRow> rows;
  double others_busy = 0;
  double stolen = 0;
};

// kResourceExhausted, with the needed and the available memory, if a turn with a model of `bytes`
// bytes does not fit in memory.
[[nodiscard]] Result<> require_peers_memory(std::uint64_t bytes, unsigned engines);

// Called before each turn with the name of the contender and the numbers of finished and of all
// turns.
using OnPeerTurn = std::function<void(std::string_view name, unsigned done, unsigned total)>;

// In each round every contender has a turn, and the order is reversed with each round. A turn
// starts the contender's processes, does its warm-ups and one measured transfer, and ends the
// processes. Contenders that wait thus use neither memory nor cores. A peer that fails is dropped
// for the remaining rounds, and the others continue. Errors: wsync or the floor fails, the model
// does not fit in memory (kResourceExhausted, with the needed amount), and kCancelled.
[[nodiscard]] Result<PeersBenchResult> run_peers_bench(const PeersBenchOptions& options,
                                                       const Interrupt& interrupt,
                                                       const OnPeerTurn& on_turn);

}  // namespace wsync::bench
