#include "bench/baseline/baseline_bench.h"

#include <algorithm>

#include "bench/baseline/files.h"
#include "bench/baseline/gpus.h"
#include "bench/baseline/links.h"
#include "bench/baseline/memory.h"
#include "bench/measure/catalogue.h"
#include "bench/measure/report.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/memory_limit.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kCopiesHeld = 5;  // source, target, two files in memory, one just touched
constexpr std::uint64_t kRoundUpBytes = 4096;

Result<> check_size(std::uint64_t bytes) {
  if (bytes < kBaselineBytesMin || bytes > kBaselineBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--size is {} bytes, expected 1MiB to 64GiB", bytes));
  return require_memory(kCopiesHeld * bytes, fmt::format("{} times --size", kCopiesHeld));
}

std::string turn_name(const BaselineRow& row) {
  return row.variant.empty() ? row.name : fmt::format("{}, {}", row.name, row.variant);
}

std::vector<Contender> contenders_of(const BaselineRows& rows, std::uint64_t bytes) {
  std::vector<Contender> contenders;
  for (const BaselineRow& row : rows.rows)
    contenders.push_back({.name = turn_name(row), .sample = [&row, bytes]() -> Result<double> {
                            const auto taken = row.measure();
                            if (!taken) return fail(taken.error());
                            return static_cast<double>(bytes) / limits::kGiB /
                                   std::max(seconds(*taken), 1e-9);
                          }});
  return contenders;
}

}  // namespace

Result<SuiteResult> run_baseline_bench(const BaselineBenchOptions& options,
                                       const Interrupt& interrupt, const OnTurn& on_turn) {
  WSYNC_TRY(check_size(options.bytes));
  const Machine machine = this_machine();
  const std::uint64_t bytes = (options.bytes + kRoundUpBytes - 1) / kRoundUpBytes * kRoundUpBytes;
  const auto busy = busy_with_others(interrupt);
  if (!busy) return fail(busy.error());
  CpuLoad load;
  auto bench = Workbench::create(bytes, std::max(1U, machine.cores));
  if (!bench) return fail(std::move(bench).error());
  BaselineRows rows;
  rows.parameters["bytes"] = bytes;
  WSYNC_TRY(add_memory_rows(**bench, machine, rows));
  WSYNC_TRY(add_link_rows(**bench, options.directory, rows));
  WSYNC_TRY(add_file_rows(**bench, options.directory, rows));
  if (options.gpus) WSYNC_TRY(add_gpu_rows(**bench, rows));
  const auto contenders = contenders_of(rows, bytes);
  const auto samples =
      measure_in_turns(contenders, {.warm_ups = 1, .rounds = options.rounds}, interrupt, on_turn);
  if (!samples) return fail(samples.error());
  SuiteResult result{.suite = "baseline",
                     .parameters = std::move(rows.parameters),
                     .notes = std::move(rows.notes)};
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const BaselineRow& row = rows.rows[i];
    CaseResult done = case_of("baseline", row.name, row.variant, (*samples)[i]);
    done.bytes = bytes;
    if (i > 0) set_baseline_of("baseline", row.name, done, samples->front());
    result.cases.push_back(std::move(done));
  }
  for (std::string& sentence : load_sentences(*busy, load.since_last().stolen))
    result.notes.push_back(std::move(sentence));
  return result;
}

}  // namespace wsync::bench
