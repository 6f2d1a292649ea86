// Common parts of the measurements of `wsync bench baseline`: the bytes to move, their destination,
// and the check that they arrived.
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
#include "shared/weights/leaf_table.h"

namespace wsync::bench {

// The leaves of so many bytes in buckets of this size, a multiple of 8. They are those of one
// tensor.
[[nodiscard]] std::shared_ptr<const LeafTable> leaves_of(std::uint64_t bytes,
                                                         std::uint64_t bucket_bytes);
// Their sums.
[[nodiscard]] std::vector<WordSum> sums_of(const LeafTable& leaves,
                                           std::span<const std::byte> bytes);

// Time that a measurement took.
struct Spent {
  std::chrono::nanoseconds wall{};
  std::chrono::nanoseconds cpu{};  // processor time of all threads of this process
};

// Starts when it is constructed. Thread: any for stop().
class Stopwatch {
 public:
  Stopwatch() noexcept;
  [[nodiscard]] Spent stop() const noexcept;

 private:
  std::chrono::nanoseconds cpu_;
  TimePoint begin_;
};

// Source and target memory between which a fixed number of threads copy in equal parts. The thread
// that copies a part touches it first, so that the part is in the memory of its own NUMA node.
//
// Thread: the one that created it. Other threads only inside parallel().
class Ground {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Ground>> create(std::size_t bytes, unsigned threads);
  Ground(const Ground&) = delete;
  Ground& operator=(const Ground&) = delete;

  // Returns the source after writing a new number into each page, which no earlier call used.
  [[nodiscard]] std::span<const std::byte> stamped();
  [[nodiscard]] std::span<const std::byte> source() const noexcept { return source_.bytes(); }
  [[nodiscard]] std::span<std::byte> target() noexcept { return target_.bytes(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return source_.bytes().size(); }
  // kDigestMismatch, with the first different byte, unless the target equals the source.
  [[nodiscard]] Result<> check_arrived() const;
  // Changes a byte in each page of the target, so that old bytes are not mistaken for new ones.
  void spoil_target() noexcept;
  // Runs work(i, part i) in all threads at the same time and waits for them. Part i always has the
  // same thread. Part 0 is the caller's.
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
  std::vector<std::unique_ptr<ThreadPool>> helpers_;  // one thread each
};

// Thread: one.
class Workbench {
 public:
  // Both areas have `bytes` bytes, a multiple of 4096, and are touched and filled.
  [[nodiscard]] static Result<std::unique_ptr<Workbench>> create(std::size_t bytes);
  // The ground for copies by one thread, which other measurements use as well.
  [[nodiscard]] std::span<const std::byte> stamped() { return ground().stamped(); }
  [[nodiscard]] std::span<const std::byte> source() const noexcept {
    return grounds_.front()->source();
  }
  [[nodiscard]] std::span<std::byte> target() noexcept { return ground().target(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return grounds_.front()->bytes(); }
  [[nodiscard]] Result<> check_arrived() const { return grounds_.front()->check_arrived(); }
  [[nodiscard]] Ground& ground() noexcept { return *grounds_.front(); }
  // Adds a ground for `threads` threads, which lives as long as the workbench.
  [[nodiscard]] Result<Ground*> add_ground(unsigned threads);

 private:
  explicit Workbench(std::unique_ptr<Ground> ground) { grounds_.push_back(std::move(ground)); }
  std::vector<std::unique_ptr<Ground>> grounds_;
};

// One row of the suite: the rate at which `measure` handles the workbench's bytes.
struct BaselineRow {
  std::string name;     // name in the catalogue
  std::string variant;  // "2 threads"; may be empty
  std::function<Result<std::chrono::nanoseconds>()> measure;
  // The machine may refuse the measurement at any time (kResourceExhausted). The row is then left
  // out with a note.
  bool may_run_out = false;
};

// Rows and the data that they need during measurements. Each measurement that is not possible is a
// note.
struct BaselineRows {
  std::vector<BaselineRow> rows;
  std::vector<std::string> notes;
  nlohmann::json parameters = nlohmann::json::object();
};

}  // namespace wsync::bench
