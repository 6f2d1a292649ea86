// What the measurements of `wsync bench baseline` have in common: bytes to be moved, a place where
// they arrive, and the proof that they did.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/baseline/pages.h"
#include "bench/measure/paired.h"
#include "bench/measure/result.h"
#include "shared/base/clock.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/thread_pool.h"

namespace wsync::bench {

// What a measurement took.
struct Spent {
  std::chrono::nanoseconds wall{};
  std::chrono::nanoseconds cpu{};  // of all threads of this process
};

// Begins with its construction. Thread: stop() in any one.
class Stopwatch {
 public:
  Stopwatch() noexcept;
  [[nodiscard]] Spent stop() const noexcept;

 private:
  std::chrono::nanoseconds cpu_;
  TimePoint begin_;
};

// Thread: one; the threads of parallel() only inside it.
class Workbench {
 public:
  // Both places of `bytes`, a multiple of 4096, touched and filled; up to `threads` threads.
  [[nodiscard]] static Result<std::unique_ptr<Workbench>> create(std::size_t bytes,
                                                                 unsigned threads);

  // The source, with a number in each page that no earlier call has left there.
  [[nodiscard]] std::span<const std::byte> stamped();
  [[nodiscard]] std::span<const std::byte> source() const noexcept { return source_.bytes(); }
  [[nodiscard]] std::span<std::byte> target() noexcept { return target_.bytes(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return source_.bytes().size(); }
  // kDigestMismatch, with the first byte that differs, unless the target holds the source.
  [[nodiscard]] Result<> check_arrived() const;
  // Changes a byte of each page of the target, so that what was there does not pass for what comes.
  void spoil_target() noexcept;
  // Runs work(i) for i below `threads` at the same time, i = 0 in this thread, and waits.
  void parallel(unsigned threads, const std::function<void(unsigned)>& work);

 private:
  Workbench(Pages source, Pages target, unsigned threads);
  Pages source_;
  Pages target_;
  std::uint64_t stamp_ = 0;
  std::unique_ptr<ThreadPool> helpers_;  // null: one thread
};

// One row of the suite: what `measure` takes for the workbench's bytes, as a rate.
struct BaselineRow {
  std::string name;     // of the catalogue
  std::string variant;  // "2 threads"; may be empty
  std::function<Result<std::chrono::nanoseconds>()> measure;
};

// Rows, and what they need while they are measured; what could not be measured is a note.
struct BaselineRows {
  std::vector<BaselineRow> rows;
  std::vector<std::string> notes;
  nlohmann::json parameters = nlohmann::json::object();
};

}  // namespace wsync::bench
