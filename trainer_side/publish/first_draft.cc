#include "trainer_side/publish/first_draft.h"

#include <utility>

#include "shared/base/format.h"

namespace wsync::publish {

Result<> FirstDraft::put(const DraftPart& part, DType published) {
  const auto refuse = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", part.name, what));
  };
  TensorInfo given{.name = std::string(part.name), .dtype = part.dtype, .shape = part.shape};
  if (part.range) {
    if (part.range->dim >= given.shape.size() || part.range->begin > given.shape[part.range->dim] ||
        part.range->length > given.shape[part.range->dim] - part.range->begin)
      return refuse(fmt::format("[{}, {}) of dimension {} lies outside of its shape {}",
                                part.range->begin, part.range->begin + part.range->length,
                                part.range->dim, shape_text(part.shape)));
    given.shape[part.range->dim] = part.range->length;
  }
  const std::uint64_t bytes = WSYNC_TRY(given.byte_size());
  Kept kept{.part = part, .data = {}, .scales = {}};
  if (part.on_gpu) {
    // Kept on the host, like the others.
    const auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    if (auto copied = copy_to_host(*part.on_gpu, *memory, memory); !copied)
      return fail(copied.error().with_context(fmt::format("tensor {}", part.name)));
    kept.data = std::move(*memory);
    kept.part.on_gpu.reset();
  } else {
    kept.data.assign(part.data, part.data + bytes);
  }
  if (const auto* scales = std::get_if<GivenScales>(&part.scales))
    kept.scales.assign(scales->values.begin(), scales->values.end());
  const TensorInfo info{.name = given.name, .dtype = published, .shape = part.shape};
  const std::lock_guard lock(mutex_);
  if (is_closed_)
    return fail(ErrorCode::kRefused,
                fmt::format("tensor {}: the version is being ended", part.name));
  const auto [known, is_new] = infos_.try_emplace(info.name, info);
  if (!is_new && known->second != info)
    return refuse(fmt::format("it was put as {} first, and now as {}", describe(known->second),
                              describe(info)));
  Kept& added = parts_.emplace_back(std::move(kept));
  added.part.name = known->first;
  added.part.data = added.data.data();
  if (std::holds_alternative<GivenScales>(part.scales))
    added.part.scales = GivenScales{added.scales};
  return {};
}

Result<> FirstDraft::close() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_closed_, true))
    return fail(ErrorCode::kRefused, "the version is being ended already");
  return {};
}

void FirstDraft::reopen() {
  const std::lock_guard lock(mutex_);
  is_closed_ = false;
}

Result<std::vector<DraftTensor>> FirstDraft::tensors() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, TensorInfo, std::less<>> all = infos_;
  for (const Kept& kept : parts_) {
    if (!std::holds_alternative<ComputedScales>(kept.part.scales)) continue;
    auto scales = WSYNC_TRY(scale_info(infos_.find(kept.part.name)->second));
    all.try_emplace(scales.name, std::move(scales));
  }
  std::vector<DraftTensor> tensors;
  for (auto& [name, info] : all) tensors.push_back({.info = std::move(info), .range = {}});
  return tensors;
}

Result<> FirstDraft::put_into(Draft& draft) const {
  const std::lock_guard lock(mutex_);
  for (const Kept& kept : parts_) WSYNC_TRY(draft.put(kept.part));
  return {};
}

}  // namespace wsync::publish
