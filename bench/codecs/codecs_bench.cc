#include "bench/codecs/codecs_bench.h"

#include <vector>

#include "bench/baseline/workbench.h"
#include "bench/codecs/bulk_codecs.h"
#include "bench/codecs/patch_codecs.h"
#include "bench/codecs/text_codecs.h"
#include "bench/harness/memory.h"
#include "bench/harness/rows.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kCodecPageBytes = 4096;
// Source, target, float32, bfloat16, rounded up; weights and changed weights.
constexpr std::uint64_t kCodecCopies = 6;

Result<> check_codecs(const CodecsBenchOptions& options) {
  if (options.bytes < kCodecBytesMin || options.bytes > kCodecBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--size is {} bytes, expected 1MiB to 64GiB", options.bytes));
  return require_copies(kCodecCopies, options.bytes,
                        "for the source, the target, and the converted and changed numbers");
}

}  // namespace

Result<SuiteResult> run_codecs_bench(const CodecsBenchOptions& options, const Interrupt& interrupt,
                                     const OnTurn& on_turn) {
  WSYNC_TRY(check_codecs(options));
  const std::uint64_t bytes =
      (options.bytes + kCodecPageBytes - 1) / kCodecPageBytes * kCodecPageBytes;
  std::vector<Row> rows;
  const auto bench = WSYNC_TRY(Ground::create(bytes, 1));
  std::vector<Row> texts;
  WSYNC_TRY(add_text_codec_rows(options.model, texts));
  WSYNC_TRY(add_bulk_codec_rows(*bench, rows));
  WSYNC_TRY(add_patch_codec_rows(bytes, rows));
  rows.insert(rows.end(), texts.begin(), texts.end());
  auto suite =
      run_rows("codecs", rows, {.warm_ups = 1, .rounds = options.rounds}, interrupt, on_turn);
  if (!suite) return suite;
  suite->parameters["bytes"] = bytes;
  suite->parameters["model"] = options.model;
  suite->notes.emplace_back(
      "compression, quantisation and a keyed MAC are not measured: this release uses none of them "
      "for weights");
  return suite;
}

}  // namespace wsync::bench
