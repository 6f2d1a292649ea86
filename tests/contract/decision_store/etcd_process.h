// A real etcd of one member, in a process of its own, for the contract of decision stores.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <netinet/in.h>
#include <spawn.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "trainer_side/coordinator/etcd/etcd_client.h"
#include "trainer_side/coordinator/etcd/etcd_messages.h"

namespace wsync::coordinator::etcd {

// A port that nobody listens at now.
inline std::uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  WSYNC_CHECK(::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0, "a free port");
  WSYNC_CHECK(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0,
              "its number");
  ::close(socket);
  return ntohs(address.sin_port);
}

// Why the tests cannot run; empty: they can.
inline std::string why_no_etcd() {
  const char* path = std::getenv("PATH");
  for (std::string rest = path == nullptr ? "" : path; !rest.empty();) {
    const std::size_t end = rest.find(':');
    if (::access((rest.substr(0, end) + "/etcd").c_str(), X_OK) == 0) return {};
    rest.erase(0, end == std::string::npos ? rest.size() : end + 1);
  }
  return "etcd is not installed (Debian: etcd-server)";
}

class EtcdProcess {
 public:
  EtcdProcess() {
    std::string name = "/tmp/wsync_etcd_XXXXXX";
    WSYNC_CHECK(::mkdtemp(name.data()) != nullptr, "a folder for etcd");
    folder_ = name;
    start();
  }
  ~EtcdProcess() {
    end(SIGKILL);
    std::filesystem::remove_all(folder_);
  }
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  // After SIGSTOP every thread of it stands still.
  void signal(int number) const {
    ::kill(pid_, number);
    int status = 0;
    while (number == SIGSTOP &&
           (::waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)))
      WSYNC_CHECK(errno == EINTR, "etcd that stands still");
  }
  void end(int number) {
    if (pid_ <= 0) return;
    ::kill(pid_, number);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
  }
  // With the data that it has, at the same address.
  void start() {
    for (int tries = 0;; ++tries) {
      if (port_ == 0) port_ = free_port();
      launch(free_port());
      if (answers()) return;
      // Somebody else may have taken the port meanwhile.
      end(SIGKILL);
      port_ = 0;
      WSYNC_CHECK(tries < 5, "etcd does not start: see " + folder_.string() + "/log");
    }
  }
  // What a key holds now, read without the code that is tested for anything but the bytes.
  [[nodiscard]] KeyValue value_of(const std::string& key) const {
    auto client = EtcdClient::create({url()}).value();
    return parse_range(client->ask(kRangePath, range_request(key)).body).value();
  }

 private:
  void launch(std::uint16_t peer_port) {
    const std::string client = url();
    const std::string peer = fmt::format("http://127.0.0.1:{}", peer_port);
    std::vector<std::string> words = {"etcd",
                                      "--data-dir",
                                      folder_.string() + "/data",
                                      "--listen-client-urls",
                                      client,
                                      "--advertise-client-urls",
                                      client,
                                      "--listen-peer-urls",
                                      peer,
                                      "--initial-advertise-peer-urls",
                                      peer,
                                      "--initial-cluster",
                                      "default=" + peer,
                                      "--unsafe-no-fsync",
                                      "--logger",
                                      "zap",
                                      "--log-outputs",
                                      folder_.string() + "/log"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions{};
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    const int error = ::posix_spawnp(&pid_, "etcd", &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    WSYNC_CHECK(error == 0, "etcd is started");
  }
  [[nodiscard]] bool answers() {
    auto client = EtcdClient::create({url()}).value();
    const TimePoint end = now() + std::chrono::seconds(30);
    while (now() < end) {
      if (client->ask(kRangePath, range_request("/")).is_done) return true;
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        return false;
      }
      (void)client->pause(std::chrono::milliseconds(20));
    }
    return false;
  }

  std::filesystem::path folder_;
  std::uint16_t port_ = 0;
  pid_t pid_ = 0;
};

}  // namespace wsync::coordinator::etcd
