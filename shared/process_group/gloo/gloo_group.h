// Process groups between hosts, over Gloo's TCP transport. Each pair of ranks has a connection, and
// each peer has a thread that sleeps until something breaks.
//
// The connections are neither encrypted nor authenticated, and anyone who can write to the
// directory controls where they lead. Use them only in a trusted network. A network error that
// Gloo's own thread does not expect ends the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shared/process_group/process_group.h"

namespace wsync::collective::gloo {

inline constexpr std::uint32_t kGlooRankCount = 256;
inline constexpr std::uint64_t kGlooMessageBytes = (1ULL << 38U) - 1;

struct GlooOptions {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;             // number of ranks, 1 to kGlooRankCount
  std::string directory;              // rendezvous directory, visible to all hosts
  std::string run;                    // unique name of the group in the directory
  std::string address = "127.0.0.1";  // of this host, reachable by the others; IPv4 or IPv6
};

// Joins the group and returns after all its ranks have joined. Then removes the files that it
// needed in the directory; files of a killed process remain. kInvalidInput for an invalid option;
// kRefused if the run already has this rank; kDeadline names the missing ranks; kIo.
//
// A rank that breaks the group sends the others the reason, if it still can. A rank that disappears
// without a message is detected by the ranks that exchange messages with it (kPeerLost). exchange()
// limits the size of one message to kGlooMessageBytes.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> join(const GlooOptions& options,
                                                         TimePoint deadline);

}  // namespace wsync::collective::gloo
