#include "bench/sync/floor.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <latch>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/config/defaults.h"
#include "shared/weights/bucket_plan.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kPieceBytes = limits::kMiB;  // bytes that a thread copies at a time

Result<ArenaView> find_arena(const Version& version) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (gone || !target.starts_with("/memfd:")) continue;
    auto view = ArenaView::open(std::stoi(entry.path().filename().string()),
                                {.version = std::pair{std::uint64_t{version.epoch}, version.step}});
    if (view) return view;
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("this process has no mapped arena of version {}", version.to_string()));
}

}  // namespace

std::vector<FloorWay> floor_ways(unsigned cores) {
  std::vector<FloorWay> ways;
  const auto kinds = available_copy_kinds();
  for (const CopyKind kind : kinds.size() > 1 ? kinds.subspan(1) : kinds) {
    ways.push_back({.kind = kind, .threads = 1});
    if (cores > 1) ways.push_back({.kind = kind, .threads = cores});
  }
  return ways;
}

Result<std::unique_ptr<FloorCopy>> FloorCopy::map(const Manifest& manifest,
                                                  const engine::reference::HeldModel& model,
                                                  const Version& version) {
  auto arena = WSYNC_TRY(find_arena(version));
  std::unique_ptr<FloorCopy> floor(new FloorCopy(std::move(arena)));
  // Where a tensor lies in the arena does not depend on the size of buckets.
  const auto plan = WSYNC_TRY(BucketPlan::create(manifest, config::kBucketBytesDefault));
  for (std::uint32_t t = 0; t < manifest.size(); ++t) {
    const auto tensor = plan.tensor_pieces(t);
    if (tensor.empty()) continue;
    const auto to = model.memory(t);
    const auto from = floor->arena_.data().subspan(plan.arena_offset(tensor.front()), to.size());
    floor->copy_.add(to, from);
  }
  return floor;
}

void FloorCopy::read() const { seen_ ^= word_sum(arena_.data(), {}).product; }

void PieceCopy::add(std::span<std::byte> to, std::span<const std::byte> from) {
  for (std::uint64_t at = 0; at < to.size(); at += kPieceBytes) {
    const auto bytes = std::min<std::uint64_t>(kPieceBytes, to.size() - at);
    pieces_.push_back({.to = to.subspan(at, bytes), .from = from.subspan(at, bytes)});
  }
  bytes_ += to.size();
}

PieceCopy::Times PieceCopy::copy(const FloorWay& way) {
  WSYNC_CHECK(way.threads > 0, "at least one thread copies");
  if (way.threads > 1 && (!helpers_ || helpers_->size() + 1 != way.threads))
    helpers_ = std::make_unique<ThreadPool>(way.threads - 1);
  std::atomic<std::size_t> next{0};
  const auto take = [&] {
    std::uint64_t sums = 0;
    for (std::size_t i = next++; i < pieces_.size(); i = next++) {
      if (way.verified)
        sums ^= copy_streaming_sum(pieces_[i].to, pieces_[i].from, {}, way.kind).product;
      else
        copy_streaming(pieces_[i].to, pieces_[i].from, way.kind);
    }
    seen_ ^= sums;
  };
  Times times{.begin = now()};
  std::latch done(way.threads - 1);
  for (unsigned i = 1; i < way.threads; ++i)
    helpers_->post([&] {
      take();
      done.count_down();
    });
  take();
  done.wait();
  times.end = now();
  return times;
}

}  // namespace wsync::bench
