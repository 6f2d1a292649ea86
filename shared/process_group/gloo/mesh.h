// Rendezvous and connections of the ranks of a Gloo group. Used only by gloo_group.cc.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <gloo/context.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shared/process_group/gloo/gloo_group.h"

namespace wsync::collective::gloo {

// Blocks signals for this thread and for the threads that it starts meanwhile. Each write of Gloo
// to a connection whose other side is closed raises SIGPIPE; the destructor discards a pending one.
class SignalsBlocked {
 public:
  enum class Which : std::uint8_t { kPipe, kAll };
  explicit SignalsBlocked(Which which) noexcept;
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t former_{};
};

// Returns the time until the deadline in Gloo's type, at least zero.
[[nodiscard]] std::chrono::milliseconds time_left(TimePoint deadline);

// A rank's files in the directory of a run. The destructor removes them.
class Files {
 public:
  Files() = default;
  Files(Files&& other) noexcept : paths_(std::exchange(other.paths_, {})) {}
  Files& operator=(Files&&) = delete;
  ~Files();
  void add(const std::string& path) { paths_.push_back(path); }

 private:
  std::vector<std::string> paths_;
};

struct Mesh {
  // must not be removed before every rank is connected
  Files files;
  std::shared_ptr<::gloo::Context> context;
};

// Connects to every other rank.
[[nodiscard]] Result<Mesh> connect(const GlooOptions& options, TimePoint deadline);

}  // namespace wsync::collective::gloo
