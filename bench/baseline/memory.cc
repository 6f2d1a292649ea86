#include "bench/baseline/memory.h"

#include <algorithm>
#include <cstring>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/shared_memory.h"
#include "shared/base/stream_copy.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;

using CopyBytes = void (*)(std::span<std::byte> to, std::span<const std::byte> from);

void copy_plainly(std::span<std::byte> to, std::span<const std::byte> from) {
  std::memcpy(to.data(), from.data(), to.size());
}
void copy_past_caches(std::span<std::byte> to, std::span<const std::byte> from) {
  copy_streaming(to, from);
}

Result<Spent> copy_all(Ground& ground, CopyBytes copy) {
  const auto from = ground.stamped();
  const auto to = ground.target();
  const Stopwatch watch;
  ground.parallel([&](unsigned, Ground::Part part) {
    copy(to.subspan(part.at, part.bytes), from.subspan(part.at, part.bytes));
  });
  const Spent spent = watch.stop();
  WSYNC_TRY(ground.check_arrived());
  return spent;
}

// Refuses a measurement with too few huge pages, because its figure would be that of small pages
// under the name of huge pages.
Result<> check_huge(const Pages& pages, PageKind kind) {
  if (kind == PageKind::kSmall || pages.huge_bytes() >= pages.bytes().size() / 2) return {};
  return fail(ErrorCode::kResourceExhausted, fmt::format("only {1} of {0} bytes are in huge pages",
                                                         pages.bytes().size(), pages.huge_bytes()));
}

Result<nanoseconds> touch_private(std::size_t bytes, PageKind kind) {
  const auto pages = WSYNC_TRY(Pages::make_private(bytes, kind));
  const TimePoint begin = now();
  pages.touch();
  const nanoseconds taken = now() - begin;
  WSYNC_TRY(check_huge(pages, kind));
  return taken;
}

Result<nanoseconds> touch_shared(std::size_t bytes, PageKind kind) {
  const auto file = WSYNC_TRY(make_memory_file(bytes));
  const auto pages = WSYNC_TRY(Pages::map_shared(file.get(), bytes, kind));
  const TimePoint begin = now();
  pages.touch();
  const nanoseconds taken = now() - begin;
  WSYNC_TRY(check_huge(pages, kind));
  return taken;
}

// A file in memory with a copy of the source at one point in time, and its digest.
struct FilledFile {
  UniqueFd fd;
  Digest digest;
};
Result<std::shared_ptr<FilledFile>> make_filled(const Ground& ground) {
  auto fd = WSYNC_TRY(make_memory_file(ground.bytes()));
  const auto pages = WSYNC_TRY(Pages::map_shared(fd.get(), ground.bytes(), PageKind::kSmall));
  copy_plainly(pages.bytes(), ground.source());
  return std::make_shared<FilledFile>(
      FilledFile{.fd = std::move(fd), .digest = digest_of(ground.source())});
}

Result<nanoseconds> map_filled(const FilledFile& file, std::size_t bytes) {
  const TimePoint begin = now();
  const auto region = WSYNC_TRY(MappedRegion::map(file.fd.get(), bytes, false));
  WSYNC_TRY(region.populate(false, 1));
  const nanoseconds taken = now() - begin;
  if (digest_of(region.bytes()) != file.digest)
    return fail(ErrorCode::kDigestMismatch,
                "the bytes of the mapping differ from those of the file");
  return taken;
}

constexpr int kTries = 3;  // attempts to get huge pages, because free memory may be fragmented

Result<nanoseconds> touch_new(std::size_t bytes, PageKind kind, bool shared) {
  for (int attempt = 1;; ++attempt) {
    const auto taken = shared ? touch_shared(bytes, kind) : touch_private(bytes, kind);
    if (taken || attempt == kTries || taken.error().code() != ErrorCode::kResourceExhausted)
      return taken;
  }
}

// Adds the first touch of one kind of memory in pages of one kind.
void add_touch(BaselineRows& rows, const char* name, std::function<Result<nanoseconds>()> touch,
               std::string_view setting, bool huge) {
  if (huge) {
    // Try once before the rounds. If the system gives no huge pages, leave the row out with a note.
    if (const auto first = touch(); !first) {
      rows.notes.push_back(
          fmt::format("{} is not measured: {} (the system setting for huge pages is '{}')", name,
                      first.error().message(), setting));
      return;
    }
  }
  rows.rows.push_back(
      {.name = name, .variant = "", .measure = std::move(touch), .may_run_out = huge});
}

}  // namespace

std::vector<unsigned> copy_threads(unsigned cores) {
  std::vector<unsigned> counts = {1, 2, std::max(cores, 1U)};
  if (cores < 2) counts.erase(counts.begin() + 1);
  std::ranges::sort(counts);
  const auto equal = std::ranges::unique(counts);
  counts.erase(equal.begin(), equal.end());
  return counts;
}

Result<Spent> measure_memcpy(Ground& ground) { return copy_all(ground, copy_plainly); }

Result<Spent> measure_streaming_copy(Ground& ground) { return copy_all(ground, copy_past_caches); }

Result<nanoseconds> measure_digest(Ground& ground) {
  const auto bytes = ground.stamped();
  const TimePoint begin = now();
  const Digest digest = digest_of(bytes);
  const nanoseconds taken = now() - begin;
  Digester parts;
  parts.update(bytes.first(bytes.size() / 2));
  parts.update(bytes.subspan(bytes.size() / 2));
  if (parts.finish() != digest)
    return fail(ErrorCode::kDigestMismatch, "two digests of the same bytes differ");
  return taken;
}

Result<MeasureMapping> make_mapping(const Ground& ground) {
  auto filled = WSYNC_TRY(make_filled(ground));
  return [file = std::move(filled), bytes = ground.bytes()] { return map_filled(*file, bytes); };
}

Result<> add_memory_rows(Workbench& bench, const Machine& machine, BaselineRows& rows) {
  std::vector<std::pair<unsigned, Ground*>> grounds;
  for (const unsigned threads : copy_threads(machine.cores)) {
    auto ground =
        WSYNC_TRY(threads == 1 ? Result<Ground*>(&bench.ground()) : bench.add_ground(threads));
    grounds.emplace_back(threads, ground);
  }
  using Measure = Result<Spent> (*)(Ground&);
  for (const auto& [name, measure] :
       {std::pair<const char*, Measure>{"memcpy", measure_memcpy},
        std::pair<const char*, Measure>{"streaming copy", measure_streaming_copy}})
    for (const auto& [threads, ground] : grounds)
      rows.rows.push_back({.name = name,
                           .variant = counted(threads, "thread"),
                           .measure = [on = ground, run = measure]() -> Result<nanoseconds> {
                             const auto spent = WSYNC_TRY(run(*on));
                             return spent.wall;
                           }});
  const std::size_t bytes = bench.bytes();
  for (const PageKind kind : {PageKind::kSmall, PageKind::kHuge}) {
    const bool huge = kind == PageKind::kHuge;
    add_touch(
        rows, huge ? "first touch, private huge" : "first touch, private",
        [bytes, kind] { return touch_new(bytes, kind, false); }, machine.huge_pages, huge);
    add_touch(
        rows, huge ? "first touch, shared huge" : "first touch, shared",
        [bytes, kind] { return touch_new(bytes, kind, true); }, machine.shared_huge_pages, huge);
  }
  auto mapping = WSYNC_TRY(make_mapping(bench.ground()));
  rows.rows.push_back({.name = "map filled", .variant = "", .measure = std::move(mapping)});
  rows.rows.push_back({.name = "XXH3", .variant = "", .measure = [&bench] {
                         return measure_digest(bench.ground());
                       }});
  return {};
}

}  // namespace wsync::bench
