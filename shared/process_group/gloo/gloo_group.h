// Process groups between hosts, over Gloo's TCP transport: a connection for each pair of ranks, and
// a thread for each peer that sleeps until something breaks.
//
// The connections are neither encrypted nor is it checked who opens them, and whoever writes to the
// directory decides where they lead: use them in a network that is trusted. An error of the network
// that Gloo's own thread does not expect ends the process.
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
  std::uint32_t size = 0;             // ranks, 1 to kGlooRankCount
  std::string directory;              // where the ranks find each other; all hosts see it
  std::string run;                    // names the group there; not used by another one before
  std::string address = "127.0.0.1";  // of this host, as the others reach it; IPv4 or IPv6
};

// Joins the group, and returns when all its ranks have. The files that it needs in the directory
// meanwhile are removed; those of a process that is killed stay. kInvalidInput for an option that
// cannot be; kRefused when the run has this rank already; kDeadline names the ranks that have not
// come; kIo.
//
// A rank that breaks the group tells the others why while it can. A rank that is gone without a
// word is found by those that exchange messages with it (kPeerLost). exchange() has a limit for one
// message, kGlooMessageBytes.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> join(const GlooOptions& options,
                                                         TimePoint deadline);

}  // namespace wsync::collective::gloo
