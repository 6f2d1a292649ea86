// NVIDIA's Multi-Process Service (MPS): whether its control daemon serves this process. A process
// finds the daemon by its directory of sockets, which CUDA_MPS_PIPE_DIRECTORY names. The driver
// looks for it when the process first uses CUDA, and works without it if it does not listen there.
#pragma once

#include <cstdint>
#include <string>

namespace wsync::device {

struct MpsDaemon {
  enum class State : std::uint8_t {
    kNone,       // the directory has no control socket
    kListens,    // a daemon listens, so processes that start now share GPUs through it
    kGone,       // the socket is there, but nobody listens: the daemon has ended
    kForbidden,  // the socket is there, but this user may not connect
  };
  State state = State::kNone;
  std::string directory;  // of the sockets
  bool is_named = false;  // by CUDA_MPS_PIPE_DIRECTORY; otherwise it is the default
  std::string reason;     // kForbidden: the system's error text
};

// Looks for the daemon of this process's environment. Connects to its control socket, sends nothing
// and disconnects. Thread: any.
[[nodiscard]] MpsDaemon find_mps_daemon();
// The same for a directory.
[[nodiscard]] MpsDaemon find_mps_daemon(const std::string& directory, bool is_named);

// One sentence about the daemon, and what to do if the state is not what the environment asks for;
// empty if there is nothing to do.
[[nodiscard]] std::string mps_text(const MpsDaemon& daemon);
[[nodiscard]] std::string mps_advice(const MpsDaemon& daemon);

}  // namespace wsync::device
