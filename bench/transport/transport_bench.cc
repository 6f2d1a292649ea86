#include "bench/transport/transport_bench.h"

#include <algorithm>
#include <memory>

#include "bench/baseline/links.h"
#include "bench/baseline/memory.h"
#include "bench/harness/memory.h"
#include "bench/harness/rows.h"
#include "bench/transport/transfers.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/transport/limits.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kTransportCopies = 5;  // source, target, relayed bytes, an arena, a file

template <class T>
Result<> check_all_differ(const std::vector<T>& values, const char* option) {
  if (values.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} is empty; expected at least one number", option));
  for (const T value : values)
    if (std::ranges::count(values, value) > 1)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} contains {} more than once", option, value));
  return {};
}

Result<> check_transport(const TransportBenchOptions& options) {
  if (options.bytes < kTransportBytesMin || options.bytes > kTransportBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--size is {} bytes, expected 1MiB to 64GiB", options.bytes));
  WSYNC_TRY(check_all_differ(options.bucket_bytes, "--bucket"));
  WSYNC_TRY(check_all_differ(options.connections, "--connections"));
  for (const std::uint64_t bucket : options.bucket_bytes) {
    if (bucket < kTransportBucketBytesMin || bucket > options.bytes ||
        bucket > limits::kBucketBytesMax)
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format(
              "--bucket contains {} bytes, expected 64KiB to 8GiB and at most --size ({} bytes)",
              bucket, options.bytes));
    if (options.bytes / bucket >= kTransportBucketsMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--bucket contains {0} bytes, which divides --size ({2} bytes) into "
                              "more than {1} buckets; choose larger buckets",
                              bucket, kTransportBucketsMax, options.bytes));
  }
  for (const unsigned connections : options.connections)
    if (connections == 0 || connections > limits::kStreamCountMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--connections contains {}, expected numbers from 1 to {}",
                              connections, limits::kStreamCountMax));
  return require_copies(kTransportCopies, options.bytes, "for both sides");
}

std::string size_text(std::uint64_t bytes) {
  return bytes % limits::kMiB == 0 ? fmt::format("{} MiB", bytes / limits::kMiB)
                                   : fmt::format("{} KiB", bytes / limits::kKiB);
}

// Seconds of processor time per 10^9 bytes.
double cpu_s_per_gb(const Spent& spent, std::uint64_t bytes) {
  return seconds(spent.cpu) / (static_cast<double>(bytes) * 1e-9);
}

// A row of a rate and of its cost, "CPU of NAME". `against` is the baseline of the rate, and its
// cost that of the cost.
Row costed_row(const std::string& name, const std::string& variant, const std::string& against,
               std::uint64_t bytes, std::function<Result<Spent>()> measure) {
  const std::string cost = "CPU of ";
  return {.figures = {{.name = name, .variant = variant, .bytes = bytes, .against = against},
                      {.name = cost + name,
                       .variant = variant,
                       .bytes = bytes,
                       .against = against.empty() ? against : cost + against}},
          .measure = [bytes, measure = std::move(measure)]() -> Result<std::vector<double>> {
            const auto spent = WSYNC_TRY(measure());
            return std::vector<double>{gib_per_s(bytes, spent.wall), cpu_s_per_gb(spent, bytes)};
          }};
}

Result<> add_bare_rows(Ground& bench, std::vector<Row>& rows) {
  const std::uint64_t bytes = bench.bytes();
  rows.push_back(costed_row("streaming copy", "", "", bytes,
                            [&bench] { return measure_streaming_copy(bench); }));
  auto mapping = WSYNC_TRY(make_mapping(bench));
  rows.push_back(rate_row({.name = "map filled", .variant = "", .bytes = bytes, .against = {}},
                          std::move(mapping)));
  auto link = make_tcp_link();
  if (!link) return fail(std::move(link).error());
  rows.push_back(costed_row("loopback TCP", "", "", bytes,
                            [&bench, link = *link] { return pass_all(bench, *link); }));
  return {};
}

Result<> add_memfd_row(Ground& bench, TransferLoop& loop, const TransportBenchOptions& options,
                       std::vector<Row>& rows) {
  auto memfd = MemfdTransfers::create(bench, loop, fmt::format("{}/host.sock", options.directory));
  if (!memfd) return fail(std::move(memfd).error());
  const std::uint64_t bytes = bench.bytes();
  const auto figure = [&](const char* name, const char* against) {
    return Figure{.name = name, .variant = "", .bytes = bytes, .against = against};
  };
  rows.push_back(
      {.figures = {figure("memfd, handed over", "map filled"),
                   figure("memfd, handed over and copied", "streaming copy"),
                   figure("CPU of memfd, handed over and copied", "CPU of streaming copy")},
       .measure = [memfd = std::shared_ptr<MemfdTransfers>(std::move(*memfd)), bytes,
                   bucket = options.bucket_bytes.front()]() -> Result<std::vector<double>> {
         const auto times = WSYNC_TRY(memfd->pass(bucket));
         return std::vector<double>{gib_per_s(bytes, times.hand_over),
                                    gib_per_s(bytes, times.all.wall),
                                    cpu_s_per_gb(times.all, bytes)};
       }});
  return {};
}

Result<> add_tcp_rows(Ground& bench, TransferLoop& loop, const TransportBenchOptions& options,
                      std::vector<Row>& rows) {
  const std::shared_ptr<TcpTransfers> tcp = WSYNC_TRY(TcpTransfers::create(bench, loop));
  const std::shared_ptr<TcpTransfers> tls = WSYNC_TRY(TcpTransfers::create(bench, loop, true));
  for (const std::uint64_t bucket : options.bucket_bytes)
    for (const unsigned connections : options.connections) {
      const TcpTransfers::Shape shape{.bucket_bytes = bucket, .connections = connections};
      const std::string variant =
          fmt::format("buckets of {}, {}", size_text(bucket), counted(connections, "connection"));
      rows.push_back(costed_row("TCP streams", variant, "loopback TCP", bench.bytes(),
                                [tcp, shape] { return tcp->pass(shape); }));
      rows.push_back(costed_row("TLS streams", variant, case_name("TCP streams", variant),
                                bench.bytes(), [tls, shape] { return tls->pass(shape); }));
    }
  const TcpTransfers::Shape shape{.bucket_bytes = options.bucket_bytes.front(),
                                  .connections = options.connections.back()};
  rows.push_back(costed_row("TCP relay",
                            fmt::format("buckets of {}, {}", size_text(shape.bucket_bytes),
                                        counted(shape.connections, "connection")),
                            "loopback TCP", bench.bytes(),
                            [tcp, shape] { return tcp->relay(shape); }));
  return {};
}

}  // namespace

Result<SuiteResult> run_transport_bench(const TransportBenchOptions& options,
                                        const Interrupt& interrupt, const OnTurn& on_turn) {
  WSYNC_TRY(check_transport(options));
  const std::uint64_t bytes = (options.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto bench = WSYNC_TRY(Ground::create(bytes, 1));
  const auto loop = WSYNC_TRY(TransferLoop::create());
  std::vector<Row> rows;
  WSYNC_TRY(add_bare_rows(*bench, rows));
  WSYNC_TRY(add_memfd_row(*bench, *loop, options, rows));
  WSYNC_TRY(add_tcp_rows(*bench, *loop, options, rows));
  auto suite =
      run_rows("transport", rows, {.warm_ups = 1, .rounds = options.rounds}, interrupt, on_turn);
  if (!suite) return suite;
  suite->parameters["bytes"] = bytes;
  suite->parameters["memfd_bucket_bytes"] = options.bucket_bytes.front();
  suite->notes.emplace_back(
      "both ends are threads of this process; TCP streams compute and check a digest of every "
      "bucket at both ends, loopback TCP does not");
  suite->notes.emplace_back(
      "TLS streams are encrypted with AES-128-GCM; UCX is not measured, because this release has "
      "none");
  return suite;
}

}  // namespace wsync::bench
