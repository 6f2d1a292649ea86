#include "bench/baseline/baseline_bench.h"

#include <algorithm>

#include "bench/baseline/files.h"
#include "bench/baseline/gpus.h"
#include "bench/baseline/links.h"
#include "bench/baseline/memory.h"
#include "bench/harness/catalogue.h"
#include "bench/harness/memory.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench {
namespace {

// source, target, two files in memory, and one new mapping
constexpr std::uint64_t kCopiesHeld = 5;
constexpr std::uint64_t kQuickBytes = 32 * limits::kMiB;
constexpr std::uint64_t kQuickBytesMax = 512 * limits::kMiB;
constexpr std::uint64_t kRoundUpBytes = 4096;

Result<> check_size(std::uint64_t bytes, unsigned cores) {
  if (bytes < kBaselineBytesMin || bytes > kBaselineBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--size is {} bytes, expected 1MiB to 64GiB", bytes));
  // Every other number of threads has its own source and target.
  const std::uint64_t copies = kCopiesHeld + 2 * (copy_threads(cores).size() - 1);
  return require_copies(copies, bytes, "for the threads of this suite");
}

std::string turn_name(const BaselineRow& row) {
  return row.variant.empty() ? row.name : fmt::format("{}, {}", row.name, row.variant);
}

}  // namespace

std::uint64_t quick_baseline_bytes(std::uint64_t cache_bytes) noexcept {
  return std::clamp(2 * std::min(cache_bytes, kQuickBytesMax), kQuickBytes, kQuickBytesMax);
}

std::string cache_note(std::uint64_t bytes, std::uint64_t cache_bytes) {
  if (cache_bytes == 0)
    return "the size of the last-level caches is unknown; a small --size may measure the caches "
           "instead of memory";
  if (bytes > cache_bytes) return {};
  return fmt::format(
      "each measurement uses {}, which fits into the last-level caches ({}): the figures are those "
      "of the caches, not of memory; choose a larger --size",
      trace::format_bytes(bytes), trace::format_bytes(cache_bytes));
}

Result<std::vector<RowSamples>> measure_rows(const BaselineRows& rows, std::uint64_t bytes,
                                             unsigned rounds, const Interrupt& interrupt,
                                             const OnTurn& on_turn) {
  std::vector<RowSamples> all(rows.rows.size());
  std::vector<Contender> contenders;
  for (std::size_t i = 0; i < all.size(); ++i)
    contenders.push_back(
        {.name = turn_name(rows.rows[i]),
         .sample = [&row = rows.rows[i], &left_out = all[i].left_out, bytes]() -> Result<double> {
           if (!left_out.empty()) return 0;
           const auto taken = row.measure();
           if (taken)
             return static_cast<double>(bytes) / limits::kGiB / std::max(seconds(*taken), 1e-9);
           if (!row.may_run_out || taken.error().code() != ErrorCode::kResourceExhausted)
             return fail(taken.error());
           left_out = taken.error().message();
           return 0;
         }});
  auto samples = WSYNC_TRY(
      measure_in_turns(contenders, {.warm_ups = 1, .rounds = rounds}, interrupt, on_turn));
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].left_out.empty()) all[i].samples = std::move(samples[i]);
  return all;
}

Result<SuiteResult> run_baseline_bench(const BaselineBenchOptions& options,
                                       const Interrupt& interrupt, const OnTurn& on_turn) {
  const Machine machine = this_machine();
  WSYNC_TRY(check_size(options.bytes, machine.cores));
  const std::uint64_t bytes = (options.bytes + kRoundUpBytes - 1) / kRoundUpBytes * kRoundUpBytes;
  const auto busy = WSYNC_TRY(busy_with_others(interrupt));
  CpuLoad load;
  auto bench = WSYNC_TRY(Workbench::create(bytes));
  BaselineRows rows;
  rows.parameters["bytes"] = bytes;
  WSYNC_TRY(add_memory_rows(*bench, machine, rows));
  WSYNC_TRY(add_link_rows(*bench, options.directory, rows));
  WSYNC_TRY(add_file_rows(*bench, options.directory, rows));
  if (options.gpus) WSYNC_TRY(add_gpu_rows(*bench, rows));
  const auto measured = WSYNC_TRY(measure_rows(rows, bytes, options.rounds, interrupt, on_turn));
  SuiteResult result{.suite = "baseline",
                     .parameters = std::move(rows.parameters),
                     .notes = std::move(rows.notes)};
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const BaselineRow& row = rows.rows[i];
    const RowSamples& found = measured[i];
    if (!found.left_out.empty()) {
      result.notes.push_back(fmt::format("{} is left out, because a later round failed: {}",
                                         turn_name(row), found.left_out));
      continue;
    }
    CaseResult done = case_of("baseline", row.name, row.variant, found.samples);
    done.bytes = bytes;
    if (i > 0) set_baseline_of("baseline", row.name, done, measured.front().samples);
    result.cases.push_back(std::move(done));
  }
  if (std::string note = cache_note(bytes, machine.cache_bytes); !note.empty())
    result.notes.push_back(std::move(note));
  for (std::string& sentence : load_sentences(busy, load.since_last().stolen))
    result.notes.push_back(std::move(sentence));
  return result;
}

}  // namespace wsync::bench
