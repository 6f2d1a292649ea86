// How the ranks of a group over Gloo find each other and connect. Used by gloo_group.cc only.
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

// Blocks signals for this thread, and for those that it starts meanwhile. Of Gloo's writes to
// connections whose other side is gone each raises a SIGPIPE: one is taken back.
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

// Time until the deadline as Gloo wants it, not less than nothing.
[[nodiscard]] std::chrono::milliseconds time_left(TimePoint deadline);

// A rank's files in the directory of a run, removed on destruction.
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
  // Not to be removed before every rank is connected.
  Files files;
  std::shared_ptr<::gloo::Context> context;
};

// Connects with every other rank.
[[nodiscard]] Result<Mesh> connect(const GlooOptions& options, TimePoint deadline);

}  // namespace wsync::collective::gloo
