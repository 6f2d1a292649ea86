// RankProcess: a rank of a replica as a process of `wsync engine --json`, whose events are read as
// they come.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/harness/child.h"

namespace wsync::bench {

// What it has said so far.
struct RankView {
  std::optional<std::uint16_t> port;  // that it listens on
  bool attached = false;
  std::uint64_t steps = 0;        // as it told last
  std::uint64_t stats_told = 0;   // how often
  std::vector<std::string> torn;  // the first few sentences about torn steps
  nlohmann::json outcome;         // its last line; null before
  bool ended = false;             // it says nothing any more
  std::optional<Error> failure;   // what it said was not understood, or it ended unasked
};

// Thread: the owner's; a thread of its own reads.
class RankProcess {
 public:
  // `interrupt` is borrowed.
  [[nodiscard]] static Result<std::unique_ptr<RankProcess>> start(ChildOptions options,
                                                                  std::string name,
                                                                  const Interrupt& interrupt);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();  // asks it to stop; kills it when it does not

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] RankView view() const;
  // Asks it to end in order; view() tells when it has.
  void ask_to_end();

 private:
  RankProcess(Child child, std::string name, const Interrupt& interrupt);
  void read();
  void take(const std::string& line);

  const std::string name_;
  const Interrupt& interrupt_;
  Child child_;
  std::atomic<bool> asked_ = false;     // to end
  std::atomic<bool> stopping_ = false;  // reading
  mutable std::mutex mutex_;
  RankView view_;  // under mutex_
  std::thread thread_;
};

}  // namespace wsync::bench
