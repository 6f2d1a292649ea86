// `wsync bench peers`: a trainer has a model in its memory, and N engines must have it in theirs,
// every byte verified; by wsync (wsync_side.h), and by what else is used for it (peer_list.h,
// scripts/). How to read the table, and limits: deploy/guides/benchmark.md.
//
// Time is the benchmark's clock, from the word to begin, which trainer and engines get at once,
// until the last process has said that it holds the verified bytes; of wsync, from the call of
// publish until every engine has committed the version.
//
// Trainer and engines of every peer take XXH3-128 of all tensors in their own memory, in a thread
// beside the transfer, and it is compared with the digest of the model that the benchmark has made
// itself. Two models take turns, so bytes of the one before are a mismatch. wsync digests every
// tensor while it stages, engines verify a checksum of each piece as they copy it, the version's
// content digest is compared with the one computed here, and `wsync verify` reads back after each
// turn, outside of the time.
//
// The floor (copier.h): a process for each engine copies the model once from a mapping that all
// share into its own memory, all at once, by the best streaming copy; the least of as many copies
// of each kind as a turn has transfers.
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
  std::string executable;  // wsync
  std::string directory;   // for everything that is made; the owner removes it
  std::string tmpfs = std::string(kPeersTmpfs);  // where peers' files on tmpfs lie
  std::vector<std::string> checkpoints;          // two, of equal layouts and different bytes
  std::vector<FoundPeer> peers;
  unsigned engines = 2;
  unsigned rounds = 9;
  unsigned warm_ups = 3;  // transfers before the one that is measured, of each turn
};

// A contender, or one that could not take part.
struct PeerRow {
  const Peer* peer = nullptr;
  std::string versions;
  std::string skipped;  // why it never began
  std::string failed;   // why it was given up, and in which round; `seconds` are of those before
  std::vector<double> seconds;  // of each round
};

struct PeersBenchResult {
  Machine machine;
  std::uint64_t bytes = 0;  // of the model
  std::uint64_t tensors = 0;
  unsigned engines = 0;
  unsigned rounds = 0;
  std::string disk;  // the folder where files on disk lay
  // Of each round:
  std::vector<double> floor_seconds;
  std::vector<double> wsync_seconds;
  std::vector<double> wsync_staged_seconds;
  std::vector<double> wsync_paused_seconds;
  std::vector<PeerRow> rows;
  double others_busy = 0;
  double stolen = 0;
};

// kResourceExhausted, with what is needed and what there is, when a turn with a model of so many
// bytes does not fit into memory.
[[nodiscard]] Result<> require_peers_memory(std::uint64_t bytes, unsigned engines);

// Told before each turn: whose it is, and how many of how many are done.
using OnPeerTurn = std::function<void(std::string_view name, unsigned done, unsigned total)>;

// In each round every contender has a turn, and the order is turned round with each round. A turn
// starts the contender's processes, makes its warm-ups and then one transfer that is measured, and
// ends them: what waits for its turn uses neither memory nor a core. A peer that fails is left out
// from there on, and the others go on; wsync or the floor failing is an error, as are a model that
// does not fit into memory (kResourceExhausted, with what is needed) and kCancelled.
[[nodiscard]] Result<PeersBenchResult> run_peers_bench(const PeersBenchOptions& options,
                                                       const Interrupt& interrupt,
                                                       const OnPeerTurn& on_turn);

}  // namespace wsync::bench
