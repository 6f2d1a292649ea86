#include "shared/device/mps.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::device {
namespace {

constexpr const char* kDirectoryVariable = "CUDA_MPS_PIPE_DIRECTORY";
constexpr const char* kDefaultDirectory = "/tmp/nvidia-mps";
constexpr const char* kControlSocket = "control";

// Returns 0 if somebody listens at the Unix socket, otherwise an errno.
int connect_error(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // A socket of another type refuses this one with EPROTOTYPE, but only if somebody has bound it.
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0
             ? 0
             : errno;
}

}  // namespace

MpsDaemon find_mps_daemon() {
  const char* named = std::getenv(kDirectoryVariable);
  const bool is_named = named != nullptr && *named != '\0';
  return find_mps_daemon(is_named ? named : kDefaultDirectory, is_named);
}

MpsDaemon find_mps_daemon(const std::string& directory, bool is_named) {
  MpsDaemon daemon{.directory = directory, .is_named = is_named, .reason = {}};
  const std::string path = directory + "/" + kControlSocket;
  struct stat file{};
  if (::stat(path.c_str(), &file) != 0) {
    if (errno != EACCES) return daemon;
    daemon.state = MpsDaemon::State::kForbidden;
    daemon.reason = std::strerror(EACCES);
    return daemon;
  }
  switch (const int error = connect_error(path)) {
    case 0:
    case EAGAIN:  // it listens, and its queue is full
    case EPROTOTYPE:
      daemon.state = MpsDaemon::State::kListens;
      break;
    case EACCES:
    case EPERM:
      daemon.state = MpsDaemon::State::kForbidden;
      daemon.reason = std::strerror(error);
      break;
    default:  // also a file that is no socket
      daemon.state = MpsDaemon::State::kGone;
  }
  return daemon;
}

std::string mps_text(const MpsDaemon& daemon) {
  switch (daemon.state) {
    case MpsDaemon::State::kListens:
      return fmt::format(
          "the MPS control daemon at {} serves this process, so engines and the sidecar use a GPU "
          "at "
          "the same time",
          daemon.directory);
    case MpsDaemon::State::kGone:
      return fmt::format(
          "{} has the socket of an MPS control daemon that has ended: GPUs are used "
          "without MPS",
          daemon.directory);
    case MpsDaemon::State::kForbidden:
      return fmt::format(
          "this user may not connect to the MPS control daemon at {} ({}): GPUs are "
          "used without MPS",
          daemon.directory, daemon.reason);
    case MpsDaemon::State::kNone:
      break;
  }
  return fmt::format("no MPS control daemon at {}: processes that share a GPU use it in turns",
                     daemon.directory);
}

std::string mps_advice(const MpsDaemon& daemon) {
  if (daemon.state == MpsDaemon::State::kListens) return {};
  if (daemon.state == MpsDaemon::State::kForbidden)
    return "run the daemon as the user of wsync and of the engines";
  if (daemon.is_named)
    return fmt::format(
        "start nvidia-cuda-mps-control -d with the same {} as the engines and the sidecar, or "
        "unset "
        "it; in a container, mount that directory",
        kDirectoryVariable);
  if (daemon.state == MpsDaemon::State::kGone)
    return "start nvidia-cuda-mps-control -d before the engines and the sidecar, if they share "
           "GPUs";
  return {};
}

}  // namespace wsync::device
