// `wsync bench whole` measures whole updates: from the beginning of a publish until all engines
// serve it. The baseline is the floor of the copies that such an update cannot do without.
//
// The trainer is a process that uses the C functions of the trainer library (c_publisher.h). In
// each round it publishes twice, in alternating order, with other bytes in every tensor:
//
//   publish: its weights are copied into a version (wsync_trainer_publish). The floor is a copy of
//     the weights to memory that is shared and touched, plus a copy of the version to the memory of
//     the engines.
//   in place: the weights have been written to the version before (wsync_trainer_map), and the time
//     begins with wsync_trainer_end. The floor is the copy to the memory of the engines alone.
//
// The floors are measured in the same processes and in every round, without digests and messages,
// with the copy and the number of threads that were fastest before the rounds.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/catalogue.h"
#include "bench/harness/machine.h"
#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

// Time of an update / floor of its copies, as maxima.
inline constexpr double kPublishByFloor = 1.15;
inline constexpr double kInPlaceByFloor = 1.25;
// Time of an update of at most kSmallBytes, as a maximum of the median.
inline constexpr std::uint64_t kSmallBytes = 1 << 20U;
inline constexpr double kSmallTargetMs = 5;
// Share of an update that no span of its trace explains, as a maximum of the median. Not for small
// ones, of which messages and wake-ups are the most part.
inline constexpr double kUnexplainedPercent = 2;

struct WholeBenchOptions {
  std::string executable;  // wsync
  std::string directory;   // for all created files; the owner removes it
  std::string checkpoint;
  std::uint64_t bytes = 0;                 // of the checkpoint
  std::vector<unsigned> engines = {1, 2};  // one fleet after the other
  unsigned rounds = 15;
};

// kResourceExhausted, with the needed amount, if there is too little memory for a model of `bytes`
// bytes; kInvalidInput for a number that cannot be measured.
[[nodiscard]] Result<> check_whole_bench(const WholeBenchOptions& options, std::uint64_t bytes);

// Errors, after which no process is left: kCancelled on a signal, kDigestMismatch if the engines do
// not have the published bytes, and the first error of a process.
[[nodiscard]] Result<SuiteResult> run_whole_bench(const WholeBenchOptions& options,
                                                  const Interrupt& interrupt,
                                                  const OnTurn& on_turn);

}  // namespace wsync::bench
