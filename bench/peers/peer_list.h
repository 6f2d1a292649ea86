// The peers of `wsync bench peers`: common ways to move a trainer's weights into other processes'
// memory. To add one, add a script or program in scripts/ that follows scripts/member.py, and a row
// in peer_list.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::bench {

enum class PeerStart : std::uint8_t {
  kProcesses,  // one process of the script for the trainer and one for each engine
  kMpirun,     // mpirun starts all of them
  kProgram,    // as kProcesses, with a program that --install has compiled
};

enum class PeerFiles : std::uint8_t { kNone, kTmpfs, kDisk };

struct Peer {
  std::string_view name;     // "safetensors-tmpfs"
  std::string_view title;    // readable name
  std::string_view how;      // a sentence about how it works
  std::string_view script;   // in scripts/
  std::string_view variant;  // passed to the script
  PeerStart start = PeerStart::kProcesses;
  PeerFiles files = PeerFiles::kNone;     // location of its temporary data files
  std::vector<std::string_view> modules;  // Python modules that it imports
  std::string_view program;               // program in PATH; empty: none
  std::string_view package;               // Debian package of the program
};

[[nodiscard]] std::span<const Peer> all_peers();

// "raw-tmpfs, safetensors-tmpfs, ..."
[[nodiscard]] std::string peer_names();

// Returns the peers with these names in the list's order, or all peers if `names` is empty.
// kInvalidInput names an unknown peer and lists the known ones.
[[nodiscard]] Result<std::vector<const Peer*>> pick_peers(std::span<const std::string> names);

}  // namespace wsync::bench
