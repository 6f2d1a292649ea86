#include "trainer_side/publish/weight_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"

namespace wsync::publish {

Result<WordSum> WeightSource::read_sum(std::uint32_t tensor, const SumPlace& place,
                                       std::span<std::byte> into) {
  WSYNC_TRY(read(tensor, place.position, into));
  return word_sum(into, place);
}

std::optional<std::uint64_t> size_of(const TensorBytes& bytes) noexcept {
  if (const auto* host = std::get_if<std::span<const std::byte>>(&bytes)) return host->size();
  if (const auto* gpu = std::get_if<DeviceBytes>(&bytes)) return gpu->range.size();
  return std::nullopt;
}

std::span<std::byte> place_of(const WritableArena& arena, const BucketPlan& plan,
                              const Manifest& manifest, std::uint32_t tensor) {
  const auto pieces = plan.tensor_pieces(tensor);
  const std::uint64_t begin = pieces.empty() ? 0 : plan.arena_offset(pieces.front());
  return arena.data().subspan(begin, manifest.byte_size(tensor));
}

bool MemorySource::is_on_host() const {
  return std::ranges::none_of(
      bytes_, [](const TensorBytes& bytes) { return std::holds_alternative<DeviceBytes>(bytes); });
}

std::optional<std::uint32_t> MemorySource::numa_node() const {
  std::map<std::uint32_t, std::shared_ptr<TrainerGpus>> gpus;
  for (const TensorBytes& bytes : bytes_)
    if (const auto* on_gpu = std::get_if<DeviceBytes>(&bytes)) gpus[on_gpu->gpu] = on_gpu->gpus;
  std::optional<std::uint32_t> common;
  for (const auto& [number, owner] : gpus) {
    const auto node = owner->numa_node(number);
    if (!node || (common && common != node)) return std::nullopt;
    common = node;
  }
  return common;
}

Result<> MemorySource::start(const WritableArena& arena, const BucketPlan& plan) {
  auto copies = std::make_unique<DeviceCopies>(arena.hold(), &arena.arena()->region());
  for (std::uint32_t tensor = 0; tensor < bytes_.size(); ++tensor) {
    const auto* bytes = std::get_if<DeviceBytes>(&bytes_[tensor]);
    if (bytes == nullptr) continue;
    const auto into = place_of(arena, plan, *manifest_, tensor);
    const auto added = copies->add(
        *bytes, 0, {.into = into.data(), .row_bytes = into.size(), .rows = 1, .stride = 0});
    if (!added) return fail(added.error().with_context("tensor " + manifest_->tensor(tensor).name));
  }
  copies_ = std::move(copies);
  return copies_->start();
}

Result<MemorySource> MemorySource::create(std::vector<MemoryTensor> tensors) {
  std::vector<TensorInfo> infos;
  infos.reserve(tensors.size());
  for (const MemoryTensor& tensor : tensors) infos.push_back(tensor.info);
  auto manifest = WSYNC_TRY(Manifest::create(std::move(infos)));
  MemorySource source;
  source.manifest_ = std::make_shared<const Manifest>(std::move(manifest));
  source.bytes_.resize(tensors.size());
  for (MemoryTensor& tensor : tensors) {
    const auto index = source.manifest_->find(tensor.info.name);
    WSYNC_CHECK(index.has_value(), "a manifest has the tensors that it was made from");
    const std::uint64_t needed = source.manifest_->byte_size(*index);
    const auto has = size_of(tensor.bytes);
    if (has && *has != needed)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {} has {} bytes in memory, but its shape needs {}",
                              describe(tensor.info), *has, needed));
    source.bytes_[*index] = std::move(tensor.bytes);
  }
  return source;
}

Result<> MemorySource::read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) {
  if (const auto* callback = std::get_if<ReadTensor>(&bytes_[tensor])) {
    auto done = (*callback)(offset, into);
    if (!done) return fail(done.error().with_context(manifest_->tensor(tensor).name));
    return {};
  }
  if (std::holds_alternative<DeviceBytes>(bytes_[tensor]))
    return fail(ErrorCode::kInternal, "weights of a GPU are read with their sum only");
  const auto from = std::get<std::span<const std::byte>>(bytes_[tensor]);
  std::memcpy(into.data(), from.data() + offset, into.size());
  return {};
}

std::optional<std::span<const std::byte>> MemorySource::view(std::uint32_t tensor,
                                                             std::uint64_t offset,
                                                             std::uint64_t bytes) const {
  const auto* from = std::get_if<std::span<const std::byte>>(&bytes_[tensor]);
  if (from == nullptr) return std::nullopt;
  return from->subspan(offset, bytes);
}

Result<WordSum> MemorySource::read_sum(std::uint32_t tensor, const SumPlace& place,
                                       std::span<std::byte> into) {
  if (std::holds_alternative<DeviceBytes>(bytes_[tensor])) {
    WSYNC_CHECK(copies_ != nullptr, "weights of a GPU are read between start() and finish()");
    auto sum = copies_->wait_and_sum(into, place);
    if (!sum) return fail(sum.error().with_context(manifest_->tensor(tensor).name));
    return sum;
  }
  const auto* from = std::get_if<std::span<const std::byte>>(&bytes_[tensor]);
  if (from == nullptr) return WeightSource::read_sum(tensor, place, into);
  return copy_streaming_sum(into, from->subspan(place.position, into.size()), place);
}

}  // namespace wsync::publish
