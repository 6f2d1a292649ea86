// Parts of a draft that are in the memory of a GPU.
#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "trainer_side/publish/draft.h"
#include "trainer_side/publish/part_failure.h"

namespace wsync::publish {
Result<> Draft::check_not_lost() const {
  if (!is_lost_) return {};
  return fail(ErrorCode::kRefused,
              "a GPU has failed while it copied into this version, and may still write there: "
              "abandon the version");
}

std::optional<FloatCast> Draft::cast_on_gpu(const DraftPart& part, const Place& place) const {
  const DType to = slots_[place.tensor].info.dtype;
  if (part.dtype == to) return FloatCast{};
  const auto from_format = float_format(part.dtype);
  const auto to_format = float_format(to);
  if (!from_format || !to_format || !can_cast(part.dtype, to)) return std::nullopt;
  const auto address = reinterpret_cast<std::uintptr_t>(part.on_gpu->range.data());
  if (address % float_bytes(*from_format) != 0) return std::nullopt;
  return FloatCast{.from = *from_format, .to = *to_format};
}

Result<> Draft::start_copies(std::span<const DraftPart> parts, std::span<const Place> places,
                             DeviceCopies& copies, std::size_t& failed) {
  for (failed = 0; failed < parts.size(); ++failed) {
    if (!parts[failed].on_gpu) continue;
    WSYNC_TRY(prepare_pinning(*parts[failed].on_gpu));
    if (const auto cast = cast_on_gpu(parts[failed], places[failed]))
      WSYNC_TRY(add_rows(parts[failed], places[failed], *cast, copies));
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

Result<> Draft::add_rows(const DraftPart& part, const Place& place, const FloatCast& cast,
                         DeviceCopies& copies) {
  const Slot& slot = slots_[place.tensor];
  const std::uint64_t bits = dtype_bits(slot.info.dtype);
  DeviceCopies::Rows to{.into = slot.memory.data(),
                        .row_bytes = cast.converted(part.on_gpu->range.size()),
                        .rows = 1,
                        .stride = 0};
  if (bits % 8 == 0) {
    const Rows rows = rows_of(place);
    to = {.into = slot.memory.data() + rows.first * bits / 8,
          .row_bytes = rows.run * bits / 8,
          .rows = rows.rows,
          .stride = rows.pitch * bits / 8};
  }
  auto added = copies.add(*part.on_gpu, 0, to, cast);
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

}  // namespace wsync::publish
