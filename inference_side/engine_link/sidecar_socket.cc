#include "inference_side/engine_link/sidecar_socket.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unix_socket.h"

namespace wsync::engine {
namespace {

constexpr std::string_view kEngineSocket = ".engines";  // behind the name of its sidecar
constexpr std::size_t kNamesShown = 3;

// The engine sockets beside `path`, by their file names.
std::vector<std::string> engine_sockets_beside(const std::filesystem::path& path) {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(path.parent_path(), failed), end;
       !failed && at != end; at.increment(failed)) {
    std::string name = at->path().filename().string();
    if (name.ends_with(kEngineSocket) && name != path.filename()) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  if (names.size() > kNamesShown) names.resize(kNamesShown);
  return names;
}

std::string no_sidecar(const std::string& path, const std::string& found) {
  const std::filesystem::path file(path);
  std::string sentence = fmt::format(
      "no sidecar answers at {}: {}; expected the engine socket of a sidecar, "
      "RUN_DIR/NAME.engines, "
      "which its log names (\"engines attach at\"): ",
      path, found);
  if (const auto others = engine_sockets_beside(file); !others.empty())
    return sentence +
           fmt::format("{} has {}", file.parent_path().string(), fmt::join(others, ", "));
  const std::string name = file.filename().string();
  if (!name.ends_with(kEngineSocket) || name.size() == kEngineSocket.size())
    return sentence + "start one with `wsync sidecar --set name=host0`";
  return sentence + fmt::format("start it with `wsync sidecar --set name={} --set run_dir={}`",
                                name.substr(0, name.size() - kEngineSocket.size()),
                                file.parent_path().string());
}

}  // namespace

std::string why_not_connected(const std::string& path, const Error& error) {
  struct stat status{};
  const bool exists = ::lstat(path.c_str(), &status) == 0;
  if (!exists && error.code() == ErrorCode::kNotFound)
    return no_sidecar(path, "there is no such file");
  if (exists && S_ISDIR(status.st_mode)) return no_sidecar(path, "it is a directory");
  if (exists && S_ISREG(status.st_mode)) return no_sidecar(path, "it is a file and not a socket");
  if (error.code() == ErrorCode::kPeerLost)
    return no_sidecar(path, "its socket is left over from a process that has ended");
  return no_sidecar(path, error.message());
}

std::string why_not_welcomed(const std::string& path, int socket, const std::string& why) {
  const auto peer = peer_credentials(socket);
  if (!peer) return no_sidecar(path, why);
  std::string name;
  std::ifstream comm(fmt::format("/proc/{}/comm", peer->pid));
  std::getline(comm, name);
  return no_sidecar(
      path, fmt::format("process {}{} listens there and does not welcome this one: {}", peer->pid,
                        name.empty() ? "" : fmt::format(" ({})", name), why));
}

}  // namespace wsync::engine
