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
#include "bench/harness/paired.h"
#include "bench/harness/result.h"
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

// Two places of memory that so many threads copy between, in equal parts. Each part was first
// touched by the thread that copies it, so that on a host with several nodes it lies beside it.
//
// Thread: the one that made it; the others only inside parallel().
class Ground {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Ground>> create(std::size_t bytes, unsigned threads);
  Ground(const Ground&) = delete;
  Ground& operator=(const Ground&) = delete;

  // The source, with a number in each page that no earlier call has left there.
  [[nodiscard]] std::span<const std::byte> stamped();
  [[nodiscard]] std::span<const std::byte> source() const noexcept { return source_.bytes(); }
  [[nodiscard]] std::span<std::byte> target() noexcept { return target_.bytes(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return source_.bytes().size(); }
  // kDigestMismatch, with the first byte that differs, unless the target holds the source.
  [[nodiscard]] Result<> check_arrived() const;
  // Changes a byte of each page of the target, so that what was there does not pass for what comes.
  void spoil_target() noexcept;
  // Runs work(i, part i) for every thread at the same time, and waits. Part i is always of the same
  // thread; 0 is the caller.
  struct Part {
    std::size_t at = 0;
    std::size_t bytes = 0;
  };
  void parallel(const std::function<void(unsigned index, Part part)>& work);

 private:
  Ground(Pages source, Pages target, unsigned threads);
  Pages source_;
  Pages target_;
  std::uint64_t stamp_ = 0;
  std::vector<std::unique_ptr<ThreadPool>> helpers_;  // of one thread each
};

// Thread: one.
class Workbench {
 public:
  // Both places of `bytes`, a multiple of 4096, touched and filled.
  [[nodiscard]] static Result<std::unique_ptr<Workbench>> create(std::size_t bytes);
  // What one thread copies on, and the other measurements use.
  [[nodiscard]] std::span<const std::byte> stamped() { return ground().stamped(); }
  [[nodiscard]] std::span<const std::byte> source() const noexcept {
    return grounds_.front()->source();
  }
  [[nodiscard]] std::span<std::byte> target() noexcept { return ground().target(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return grounds_.front()->bytes(); }
  [[nodiscard]] Result<> check_arrived() const { return grounds_.front()->check_arrived(); }
  [[nodiscard]] Ground& ground() noexcept { return *grounds_.front(); }
  // Another one for so many threads, which lives as long as this.
  [[nodiscard]] Result<Ground*> add_ground(unsigned threads);

 private:
  explicit Workbench(std::unique_ptr<Ground> ground) { grounds_.push_back(std::move(ground)); }
  std::vector<std::unique_ptr<Ground>> grounds_;
};

// One row of the suite: what `measure` takes for the workbench's bytes, as a rate.
struct BaselineRow {
  std::string name;     // of the catalogue
  std::string variant;  // "2 threads"; may be empty
  std::function<Result<std::chrono::nanoseconds>()> measure;
  // The machine may refuse it at any time (kResourceExhausted): it is left out then, with a note.
  bool may_run_out = false;
};

// Rows, and what they need while they are measured; what could not be measured is a note.
struct BaselineRows {
  std::vector<BaselineRow> rows;
  std::vector<std::string> notes;
  nlohmann::json parameters = nlohmann::json::object();
};

}  // namespace wsync::bench
