// The sidecar's end of the engine link on a GPU, for tests: frames as SidecarPeer sends them, and
// buffers in the memory of another process (gpu_sidecar.cc).
#pragma once

#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/base/unix_socket.h"
#include "shared/control/messages.h"
#include "tests/contract/engine_link/sidecar_peer.h"

namespace wsync::engine::test {

class GpuSidecar {
 public:
  static constexpr std::uint64_t kGeneration = 0x5eed'1e55;  // of its handles

  explicit GpuSidecar(std::uint64_t bytes, std::uint32_t gpu = 0) {
    int in[2];
    int out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    auto sockets = unix_socket_pair().value();
    posix_spawn_file_actions_adddup2(&actions, sockets.second.get(), kSocket);
    std::string socket = std::to_string(kSocket);
    std::string number = std::to_string(gpu);
    std::string size = std::to_string(bytes);
    std::string program = WSYNC_GPU_SIDECAR;
    std::vector<char*> argv = {program.data(), number.data(), size.data(), socket.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
    for (int i = 0; i < 2; ++i) {
      handles_.push_back(read_handle());
      EXPECT_TRUE(wait_readable(sockets.first.get(), soon()).has_value());
      std::byte byte{};
      EXPECT_TRUE(receive_some(sockets.first.get(), {&byte, 1}, fds_).has_value());
    }
    EXPECT_EQ(fds_.size(), 2U);
  }
  GpuSidecar(const GpuSidecar&) = delete;
  GpuSidecar& operator=(const GpuSidecar&) = delete;
  ~GpuSidecar() { end(); }

  [[nodiscard]] const std::vector<control::BufferHandle>& handles() const { return handles_; }
  // The descriptors of the handles, for a message that carries them.
  [[nodiscard]] std::vector<UniqueFd> fds() const {
    std::vector<UniqueFd> copies;
    for (const UniqueFd& fd : fds_) copies.emplace_back(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
    return copies;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  // They lie in the buffer when it returns.
  void put(std::uint32_t slot, std::span<const std::byte> bytes) {
    fmt::print(to_, "put {} {}\n", slot, bytes.size());
    EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), to_), bytes.size());
    expect_done();
  }
  void scribble(std::uint32_t slot, std::size_t bytes) {
    put(slot, std::vector<std::byte>(bytes, std::byte{0x5a}));
  }
  void free_buffers() {
    fmt::print(to_, "free\n");
    expect_done();
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    ended_ = true;
  }

 private:
  static constexpr int kSocket = 3;  // in the other process
  std::string read_line() {
    char* line = nullptr;
    std::size_t room = 0;
    const auto length = ::getline(&line, &room, from_);
    std::string text(line, length > 0 ? static_cast<std::size_t>(length - 1) : 0);
    std::free(line);
    return text;
  }
  void expect_done() {
    std::fflush(to_);
    EXPECT_EQ(read_line(), "done");
  }
  control::BufferHandle read_handle() {
    const std::string text = read_line();
    control::BufferHandle handle{.opaque = {}, .generation = kGeneration};
    for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
      const auto digit = [&](char c) {
        EXPECT_TRUE(std::isxdigit(static_cast<unsigned char>(c))) << text;
        return c <= '9' ? c - '0' : c - 'a' + 10;
      };
      handle.opaque.push_back(static_cast<std::byte>(digit(text[i]) * 16 + digit(text[i + 1])));
    }
    EXPECT_FALSE(handle.opaque.empty());
    return handle;
  }
  void end() {
    std::fclose(to_);
    int status = 0;
    if (!ended_) {
      EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
      EXPECT_EQ(status, 0);
    }
    std::fclose(from_);
  }

  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::vector<control::BufferHandle> handles_;
  std::vector<UniqueFd> fds_;
  bool ended_ = false;
};

}  // namespace wsync::engine::test
