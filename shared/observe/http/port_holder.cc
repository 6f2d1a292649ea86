#include "shared/observe/http/port_holder.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "shared/base/format.h"

namespace wsync::http {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListening = "0A";  // TCP_LISTEN in /proc/net/tcp

// Parses "0100007F:1F90". The port is the hexadecimal number after the last colon.
bool is_at_port(std::string_view address, std::uint16_t port) {
  const std::string_view digits = address.substr(address.rfind(':') + 1);
  std::uint32_t found = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), found, 16);
  return error == std::errc{} && end == digits.data() + digits.size() && found == port;
}

// Returns "socket:[INODE]" of each socket that listens on the port.
std::set<std::string> listening_sockets(std::uint16_t port) {
  std::set<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // column headings
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, skipped, inode;
      words >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;  // queues, timer, retransmissions, uid, timeout
      words >> inode;
      if (state == kListening && is_at_port(local, port))
        sockets.insert(fmt::format("socket:[{}]", inode));
    }
  }
  return sockets;
}

bool has_one_of(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (sockets.contains(fs::read_symlink(entry->path(), gone).string())) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> port_holder(std::uint16_t port) {
  const std::set<std::string> sockets = listening_sockets(port);
  if (sockets.empty()) return std::nullopt;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string pid = entry->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!has_one_of(entry->path(), sockets)) continue;
    std::string name;
    std::ifstream comm(entry->path() / "comm");
    std::getline(comm, name);
    return fmt::format("process {} ({})", pid, name);
  }
  return std::nullopt;
}

}  // namespace wsync::http
