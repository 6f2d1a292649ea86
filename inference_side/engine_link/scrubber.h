// Scrubber: reads the weights of a rank again while it serves, on a thread of its own, for at most
// a share of the time of one processor. It reads a block at a time, and the link never waits for
// more than one: a pause waits for none.
//
// Thread: every function may be called on the thread that serves the link; the thread of this class
// reads only between set_serving(true) and hold(), and only what a pass names. A switch holds it
// before the first byte changes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "inference_side/engine_link/scrub_pass.h"
#include "shared/base/clock.h"
#include "shared/control/messages.h"

namespace wsync::engine {

// When a thread that has used `cpu` since `begin`, and may use `share_ppm` millionths of the time,
// may go on.
[[nodiscard]] TimePoint next_burst(TimePoint begin, std::chrono::nanoseconds cpu,
                                   std::uint32_t share_ppm);

class Scrubber {
 public:
  // `on_report` is called on the thread of this class when take_report() has something to return.
  explicit Scrubber(std::function<void()> on_report) : on_report_(std::move(on_report)) {}
  // Waits for the block that is being read.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  // Begins this pass in place of another one. The memory that it names must stay in place until
  // drop() or end() has returned. kResourceExhausted if there can be no thread.
  [[nodiscard]] Result<> begin(ScrubPass pass, std::uint32_t share_ppm);
  // Ends the pass, if there is one; the report says why. Returns when nothing is read any more.
  void end(std::uint64_t pass, std::string why);
  void end(std::string why);
  // The same without a report.
  void drop();

  // Whether the rank serves. Without it nothing more is read, but the block that is being read may
  // not be complete yet. With it a hold ends.
  void set_serving(bool serving);
  // The weights are about to change. Returns when nothing is read any more. Until the rank serves
  // again, nothing is read or reported.
  void hold();
  // While it is held: as ScrubPass::read_blocks(); empty without a pass.
  [[nodiscard]] std::vector<std::uint64_t> read_blocks() const;
  // While it is held: as ScrubPass::change() and set_version(). Do nothing without a pass.
  void change(std::span<const SplitSum> before, std::span<const SplitSum> after);
  void set_version(const Version& version);

  // The answer for the sidecar, once: the sums if the pass is complete and the rank serves, again
  // after each change of the version, or why it has ended.
  [[nodiscard]] std::optional<control::Scrubbed> take_report();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run();
  // Reads some blocks, and waits until the next ones are due. `counted`: the processor time of the
  // thread that was counted before; returns what is counted now.
  std::chrono::nanoseconds read_burst(Lock& lock, std::chrono::nanoseconds counted);
  void wait_until_idle(Lock& lock);
  [[nodiscard]] bool may_read() const;

  const std::function<void()> on_report_;
  mutable std::mutex mutex_;  // guards everything below, but the pass while a block is being read
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::optional<ScrubPass> pass_;
  std::optional<control::Scrubbed> failure_;
  std::optional<Version> reported_;  // as which the sums of pass_ were reported last
  std::chrono::nanoseconds cpu_{0};  // of pass_
  std::uint32_t share_ppm_ = 1;
  std::uint64_t passes_ = 0;  // so many have begun: a wait for the next burst ends with its pass
  bool serving_ = false;
  bool held_ = false;
  bool reading_ = false;  // a block of pass_, without the lock
  int waiters_ = 0;       // threads that wait for the end of that block; no other one is begun
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace wsync::engine
