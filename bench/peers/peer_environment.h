// The peers' packages: finds the installed ones and installs the missing ones.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "bench/peers/peer_list.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct PeerEnvironment {
  std::string folder;   // directory of the Python environment, which may not exist
  std::string scripts;  // directory of write_peer_scripts(); also gets logs of commands
};

// Returns $XDG_CACHE_HOME/wsync/peers or ~/.cache/wsync/peers. kNotFound if neither variable is
// set.
[[nodiscard]] Result<std::string> default_peer_folder();

struct FoundPeer {
  const Peer* peer = nullptr;
  std::string missing;   // reason to skip it, and what to do; empty: nothing is missing
  std::string versions;  // "torch 2.13.0, safetensors 0.8.0"
  // Command of its processes. It uses the Python of --install if that exists, otherwise the one in
  // PATH. For peers that mpirun starts, it is mpirun and the script.
  std::vector<std::string> command;
};

// Finds the packages of each peer. No package is imported, so a package may still be broken.
// kCancelled. Never kNotFound: without Python each peer reports that Python is missing.
[[nodiscard]] Result<std::vector<FoundPeer>> find_peers(const std::vector<const Peer*>& peers,
                                                        const PeerEnvironment& environment,
                                                        unsigned engines,
                                                        const Interrupt& interrupt);

// Creates the environment with the pinned Python packages, installs Debian packages if this process
// may (root on a system with apt-get), and compiles the programs of peers. Returns one sentence per
// failed step of a single peer, with the command to run. kNotFound and kIo if there can be no
// Python environment. kCancelled. Calls `on_step` before each step.
[[nodiscard]] Result<std::vector<std::string>> install_peers(
    const PeerEnvironment& environment, const Interrupt& interrupt,
    const std::function<void(std::string_view)>& on_step);

}  // namespace wsync::bench
