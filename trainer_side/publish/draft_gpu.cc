// Parts of a draft that are in the memory of a GPU.
#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "trainer_side/publish/draft.h"
#include "trainer_side/publish/part_failure.h"

namespace wsync::publish {
namespace {

constexpr std::uint64_t kStagingAlignment = 64;  // of the source of a leaf

}  // namespace

Result<> Draft::check_not_lost() const {
  if (!is_lost_) return {};
  return fail(ErrorCode::kRefused,
              "a GPU has failed while it copied into this version, and may still write there: "
              "abandon the version");
}

bool Draft::has_dtype_of(const DraftPart& part, const Place& place) const {
  return part.dtype == slots_[place.tensor].info.dtype;
}

Result<> Draft::start_copies(std::span<const DraftPart> parts, std::span<const Place> places,
                             DeviceCopies& copies, std::size_t& failed) {
  for (failed = 0; failed < parts.size(); ++failed) {
    if (!parts[failed].on_gpu) continue;
    WSYNC_TRY(prepare_pinning(*parts[failed].on_gpu));
    if (has_dtype_of(parts[failed], places[failed]))
      WSYNC_TRY(add_rows(parts[failed], places[failed], copies));
  }
  return copies.empty() ? Result<>() : copies.start();
}

// A mapping is pinned once, while all of it is writable.
Result<> Draft::prepare_pinning(const DeviceBytes& bytes) {
  const MappedRegion& region = arena_->arena()->region();
  const std::lock_guard lock(pinning_);
  if (bytes.gpus->has_tried_to_pin(region, bytes.gpu)) return {};
  WSYNC_TRY(arena_->lease().unprotect());
  bytes.gpus->pin(region, bytes.gpu);
  return {};
}

Result<DraftPart> Draft::on_host(const DraftPart& part,
                                 std::shared_ptr<std::vector<std::byte>>& memory) {
  memory = std::make_shared<std::vector<std::byte>>(part.on_gpu->range.size());
  if (auto copied = copy_to_host(*part.on_gpu, *memory, memory); !copied)
    return fail(copied.error().with_context(fmt::format("tensor {}", part.name)));
  DraftPart host = part;
  host.on_gpu.reset();
  host.data = memory->data();
  return host;
}

Result<> Draft::add_rows(const DraftPart& part, const Place& place, DeviceCopies& copies) {
  const Slot& slot = slots_[place.tensor];
  const std::uint64_t bits = dtype_bits(slot.info.dtype);
  DeviceCopies::Rows to{
      .into = slot.memory.data(), .row_bytes = part.on_gpu->range.size(), .rows = 1, .stride = 0};
  if (bits % 8 == 0) {
    const Rows rows = rows_of(place);
    to = {.into = slot.memory.data() + rows.first * bits / 8,
          .row_bytes = rows.run * bits / 8,
          .rows = rows.rows,
          .stride = rows.pitch * bits / 8};
  }
  auto added = copies.add(*part.on_gpu, 0, to);
  if (!added) return fail(added.error().with_context(fmt::format("tensor {}", part.name)));
  return {};
}

Result<> Draft::sum_when_copied(const Slot& slot, std::uint64_t begin, std::uint64_t end,
                                DeviceCopies& copies) {
  const auto bytes = slot.memory.subspan(begin, end - begin);
  const bool is_whole = begin % limits::kLeafBytes == 0 &&
                        (end % limits::kLeafBytes == 0 || end == slot.memory.size());
  if (!is_whole) return copies.wait(bytes);
  const auto sum = copies.wait_and_sum(bytes, {.seed = seed_of(slot.info.name), .position = begin});
  if (!sum) return fail(sum.error());
  keep_sum(slot, begin, *sum);
  return {};
}

// The bytes come to the host in windows of leaves, through memory that is pinned: one window is
// converted while the next one travels. All leaves are of parts on one GPU: one that fails may
// still write to the memory, which is used by nobody else.
Result<> Draft::convert_from_gpu(std::span<const DraftPart> parts, std::span<const Place> places,
                                 std::span<const LeafOfPart> leaves, std::size_t& failed) {
  if (leaves.empty()) return {};
  const DeviceBytes& first = *parts[leaves.front().part].on_gpu;
  const auto staging = WSYNC_TRY(first.gpus->staging(first.gpu));
  struct Window {
    std::unique_ptr<DeviceCopies> copies;
    std::size_t begin = 0;
    std::size_t end = 0;
    std::vector<std::span<std::byte>> source;  // of each leaf
  };
  const auto source_of = [&](const LeafOfPart& leaf) {
    const std::uint64_t from_bits = dtype_bits(parts[leaf.part].dtype);
    const std::uint64_t to_bits = dtype_bits(slots_[places[leaf.part].tensor].info.dtype);
    return std::pair{(leaf.begin - leaf.part_begin) * from_bits / to_bits,
                     (leaf.end - leaf.begin) * from_bits / to_bits};
  };
  std::size_t half = 0;
  const auto open = [&](std::size_t begin) -> Result<Window> {
    Window window{.copies = std::make_unique<DeviceCopies>(staging.memory, nullptr),
                  .begin = begin,
                  .end = begin,
                  .source = {}};
    const std::span<std::byte> room = staging.halves[half];
    half = 1 - half;
    for (std::uint64_t used = 0; window.end < leaves.size(); ++window.end) {
      const LeafOfPart& leaf = leaves[window.end];
      failed = leaf.part;
      const auto [offset, bytes] = source_of(leaf);
      if (bytes > room.size() - used) break;
      const auto into = room.subspan(used, bytes);
      auto added = window.copies->add(*parts[leaf.part].on_gpu, offset,
                                      {.into = into.data(), .row_bytes = bytes});
      if (!added)
        return fail(added.error().with_context(fmt::format("tensor {}", parts[leaf.part].name)));
      window.source.push_back(into);
      used += (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
      used = std::min<std::uint64_t>(used, room.size());
    }
    WSYNC_TRY(window.copies->start());
    return window;
  };
  Window next = WSYNC_TRY(open(0));
  while (next.begin < next.end) {
    const Window window = std::move(next);
    next = window.end < leaves.size() ? WSYNC_TRY(open(window.end)) : Window{};
    PartFailure failure;
    for_each_index(helpers_.get(), window.end - window.begin, [&](std::size_t i) {
      const LeafOfPart& leaf = leaves[window.begin + i];
      if (failure.is_set() || !failure.keep(window.copies->wait(window.source[i]), leaf.part))
        return;
      write_leaf(parts[leaf.part], slots_[places[leaf.part].tensor], leaf.begin, leaf.end,
                 window.source[i].data(), 1.0F);
    });
    WSYNC_TRY(failure.result(parts, failed));
  }
  return {};
}

}  // namespace wsync::publish
