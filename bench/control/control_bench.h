// `wsync bench control`: what the control plane costs, beside bare sockets. How to read the table,
// and limits: deploy/guides/benchmark.md.
//
// Both ends are threads of one process. Every message is checked to be the one that was due.
//
//   round trip, port: a command's Cancel and its CancelReply, from loop to loop over the
//     product's ZeroMQ port; the mean of --messages of them, one after the other. Beside bare
//     ZeroMQ.
//   round trip, engine link: an engine's BucketAck and the sidecar's BucketReady over their
//     Unix socket. Beside a bare Unix socket.
//   round trip, bare ZeroMQ: as many bytes, DEALER to ROUTER, each with a context of its own,
//     threads that wait in recv. Beside a bare Unix socket, which is a pair of stream sockets.
//   one way: ten times --messages without waiting, until one answer says that all have come.
//     ZeroMQ puts many into one system call, which the others do not.
//   encode, decode: message_codec.h; nanoseconds, and MiB/s of the message beside memcpy of its
//     bytes into memory that is there.
//   update round: what a coordinator's state machine takes for a whole update of N sidecars,
//     without sockets and without waiting (rounds.h): publish, then Accept, Staged, Decided and
//     Switched of each in an order of their own. The same divided by N stands beside the first
//     number of --replicas. A round that has not committed on every replica is an error.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr unsigned kControlMessagesMax = 1'000'000;
inline constexpr unsigned kOneWayTimes = 10;  // messages one way by round trips

struct ControlBenchOptions {
  std::string directory;     // for sockets; of mode 0700, the owner removes it
  unsigned messages = 2000;  // round trips of one measurement
  std::vector<unsigned> replicas = {1, 10, 100, 1000};  // of rounds, each in a sidecar of its own
  unsigned rounds = 15;
};

// All take turns (measure_in_turns()), after one round that is not counted. kInvalidInput for
// numbers out of range; errors of the links; kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_control_bench(const ControlBenchOptions& options,
                                                    const Interrupt& interrupt,
                                                    const OnTurn& on_turn);

}  // namespace wsync::bench
