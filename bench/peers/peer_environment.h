// Where the peers' packages are: which of them are there, and how they are installed.
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
  std::string folder;   // of the Python environment, which may not exist
  std::string scripts;  // directory with write_peer_scripts(); logs of commands go there too
};

// $XDG_CACHE_HOME/wsync/peers, or ~/.cache/wsync/peers. kNotFound without either.
[[nodiscard]] Result<std::string> default_peer_folder();

struct FoundPeer {
  const Peer* peer = nullptr;
  std::string missing;   // why it is skipped, and what to do; empty: all that it needs is there
  std::string versions;  // "torch 2.13.0, safetensors 0.8.0"
  // Its processes' command: with --install's Python, or else the one in PATH. Of mpirun and the
  // script for peers that it starts.
  std::vector<std::string> command;
};

// What is there of each peer. Nothing is imported, so a package may still turn out to be broken.
// kCancelled; kNotFound never: a Python that is missing is missing for each peer.
[[nodiscard]] Result<std::vector<FoundPeer>> find_peers(const std::vector<const Peer*>& peers,
                                                        const PeerEnvironment& environment,
                                                        unsigned engines,
                                                        const Interrupt& interrupt);

// Makes the environment with the pinned Python packages, installs Debian packages where this
// process may (root on a system with apt-get) and compiles what peers need to have compiled. What
// could not be done for single peers is returned, a sentence each with the command to give;
// kNotFound and kIo when there can be no Python environment. kCancelled. `on_step` is told before
// each.
[[nodiscard]] Result<std::vector<std::string>> install_peers(
    const PeerEnvironment& environment, const Interrupt& interrupt,
    const std::function<void(std::string_view)>& on_step);

}  // namespace wsync::bench
