// `wsync bench control` measures the cost of the control plane, with bare sockets as the baseline.
// How to read the table, and limits: deploy/guides/benchmark.md.
//
// Both ends are threads of one process. Every message is compared with the expected one.
//
//   round trip, port: a command's Cancel and its CancelReply, from loop to loop over the product's
//     ZeroMQ port. The figure is the mean of --messages round trips, one after the other. Baseline:
//     bare ZeroMQ.
//   round trip, engine link: an engine's BucketAck and the sidecar's BucketReady over their Unix
//     socket. Baseline: a bare Unix socket.
//   round trip, bare ZeroMQ: messages of the same sizes, DEALER to ROUTER, each with its own
//     context and a thread that blocks in recv. Baseline: a bare Unix socket, which is a pair of
//     stream sockets.
//   one way: ten times --messages without waiting, until one answer confirms that all have arrived.
//     ZeroMQ puts many messages into one system call, the others do not.
//   encode, decode: see message_codec.h. In nanoseconds, and in MiB/s of the message. Baseline:
//     memcpy of its bytes into existing memory.
//   update round: time of a coordinator's state machine for a whole update of N sidecars, without
//     sockets and without waiting (rounds.h): publish, then Accept, Staged, Decided and Switched of
//     each sidecar, in a shuffled order. The baseline is the same time per sidecar for the first
//     number of --replicas. A round that does not commit on every replica is an error.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr unsigned kControlMessagesMax = 1'000'000;
inline constexpr unsigned kOneWayTimes = 10;  // one-way messages per round trip

struct ControlBenchOptions {
  std::string directory;     // for sockets; mode 0700, the owner removes it
  unsigned messages = 2000;  // round trips per measurement
  // replicas per round, each in its own sidecar
  std::vector<unsigned> replicas = {1, 10, 100, 1000};
  unsigned rounds = 15;
};

// All cases take turns (measure_in_turns()), after one round that is not counted. kInvalidInput if
// a number is out of range. Errors of the links. kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_control_bench(const ControlBenchOptions& options,
                                                    const Interrupt& interrupt,
                                                    const OnTurn& on_turn);

}  // namespace wsync::bench
