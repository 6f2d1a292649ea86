#include "trainer_side/publish/weight_source.h"

#include <cstring>
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
    const auto* span = std::get_if<std::span<const std::byte>>(&tensor.bytes);
    if (span != nullptr && span->size() != needed)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {} has {} bytes in memory, but its shape needs {}",
                              describe(tensor.info), span->size(), needed));
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
  const auto from = std::get<std::span<const std::byte>>(bytes_[tensor]);
  std::memcpy(into.data(), from.data() + offset, into.size());
  return {};
}

Result<WordSum> MemorySource::read_sum(std::uint32_t tensor, const SumPlace& place,
                                       std::span<std::byte> into) {
  const auto* from = std::get_if<std::span<const std::byte>>(&bytes_[tensor]);
  if (from == nullptr) return WeightSource::read_sum(tensor, place, into);
  return copy_streaming_sum(into, from->subspan(place.position, into.size()), place);
}

}  // namespace wsync::publish
