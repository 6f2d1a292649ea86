// What users do today to bring a trainer's weights into other processes' memory: the peers of
// `wsync bench peers`. To add one: a script (or program) in scripts/ that speaks as
// scripts/member.py says, and a row in peer_list.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::bench {

enum class PeerStart : std::uint8_t {
  kProcesses,  // a process of the script for the trainer and for each engine
  kMpirun,     // all of them by mpirun
  kProgram,    // as kProcesses, of a program that --install has compiled
};

enum class PeerFiles : std::uint8_t { kNone, kTmpfs, kDisk };

struct Peer {
  std::string_view name;     // "safetensors-tmpfs"
  std::string_view title;    // for people
  std::string_view how;      // it does it: a sentence
  std::string_view script;   // in scripts/
  std::string_view variant;  // that the script is told
  PeerStart start = PeerStart::kProcesses;
  PeerFiles files = PeerFiles::kNone;     // where its data lies on its way
  std::vector<std::string_view> modules;  // of Python that it imports
  std::string_view program;               // in PATH; empty: none
  std::string_view package;               // of Debian that has the program
};

[[nodiscard]] std::span<const Peer> all_peers();

// "raw-tmpfs, safetensors-tmpfs, ..."
[[nodiscard]] std::string peer_names();

// The peers of these names in the list's order, all for an empty list. kInvalidInput names what is
// no peer, and lists those that there are.
[[nodiscard]] Result<std::vector<const Peer*>> pick_peers(std::span<const std::string> names);

}  // namespace wsync::bench
