#include "inference_side/engine_link/destination.h"

#include <algorithm>
#include <array>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/stream_copy.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/cast.h"
#include "shared/weights/content_digest.h"

namespace wsync::engine {
namespace {

constexpr std::uint64_t kPartBytes = reload::LoadPlan::kPartBytes;
constexpr std::uint64_t kWidest = 2;  // an element becomes at most so many times as long

bool is_float(DType dtype) noexcept {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

std::uint64_t bytes_as(const Destination::Cast& cast, std::uint64_t version_bytes) noexcept {
  return version_bytes * dtype_bits(cast.to) / dtype_bits(cast.from);
}

}  // namespace

Destination Destination::of(const RankTensor& tensor) {
  Destination destination{.memory = tensor.destination, .cast = std::nullopt};
  const DType from = tensor.description.dtype;
  if (tensor.held_as && *tensor.held_as != from)
    destination.cast = {.from = from, .to = *tensor.held_as};
  return destination;
}

Result<> check_cast(const RankTensor& tensor, control::TakeMode take, bool on_gpu) {
  const auto cast = Destination::of(tensor).cast;
  if (!cast) return {};
  const auto refuse = [&](std::string_view why) {
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("tensor {} is {} in the version and {} in the engine's memory, {}",
                    tensor.description.name, dtype_name(cast->from), dtype_name(cast->to), why));
  };
  if (take != control::TakeMode::kPieces)
    return refuse("which is possible only for a rank that takes pieces");
  if (!is_float(cast->from) || !is_float(cast->to))
    return refuse("but only F32, F16 and BF16 can be converted into each other");
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.destination.data());
  const std::uint64_t element = dtype_bits(cast->to) / 8;
  if (on_gpu && address % element != 0)
    return refuse(
        fmt::format("but its destination {:#x} is no multiple of an element's {} bytes, which a "
                    "GPU needs",
                    address, element));
  return {};
}

FloatCast device_cast(const std::optional<Destination::Cast>& cast) noexcept {
  if (!cast) return {};
  return {.from = *float_format(cast->from), .to = *float_format(cast->to)};
}

std::uint64_t destination_bytes(const RankTensor& tensor, std::uint64_t version_bytes) noexcept {
  const auto cast = Destination::of(tensor).cast;
  return cast ? bytes_as(*cast, version_bytes) : version_bytes;
}

SplitSum take_chunk(const reload::LoadPlan& plan, const reload::CopyGroup& group,
                    std::uint64_t index, std::span<const std::byte> bucket,
                    const Destination& destination, reload::CopyScratch& scratch) {
  if (!destination.cast)
    return plan.execute_chunk(group, index, bucket, destination.memory, scratch);
  const Destination::Cast cast = *destination.cast;
  SplitSum wrong;
  const SplitSum sum = plan.read_chunk(
      group, index, bucket, scratch, [&](std::uint64_t at, std::span<const std::byte> part) {
        std::array<std::byte, kPartBytes * kWidest> converted;
        const auto out = std::span(converted).first(bytes_as(cast, part.size()));
        wsync::cast(cast.from, part, cast.to, out);
        copy_streaming(destination.memory.subspan(bytes_as(cast, at), out.size()), out);
        if (planted("cast_sums_destination"))
          wrong += split_sum(out, {.seed = plan.tensors()[group.tensor].seed,
                                   .position = bytes_as(cast, at),
                                   .tensor_bytes = destination.memory.size()});
      });
  return planted("cast_sums_destination") ? wrong : sum;
}

std::string why_unreadable(const RankTensor& tensor) {
  const Destination destination = Destination::of(tensor);
  if (!destination.cast || planted("narrowed_is_read_back")) return {};
  const auto& [from, to] = *destination.cast;
  if (is_exact_cast(from, to)) return {};
  return fmt::format(
      "tensor {} cannot be read back: it is {} in the version and {} in this engine's memory, "
      "which "
      "has fewer bits",
      tensor.description.name, dtype_name(from), dtype_name(to));
}

Result<Digest> held_digest(const RankTensor& tensor) {
  const Destination destination = Destination::of(tensor);
  const std::uint64_t seed = seed_of(tensor.description.name);
  if (!destination.cast) return tensor_digest(seed, destination.memory);
  return held_digest_by(tensor, [&](std::uint64_t at, std::span<std::byte> out) -> Result<> {
    std::ranges::copy(destination.memory.subspan(at, out.size()), out.begin());
    return {};
  });
}

Result<Digest> held_digest_by(const RankTensor& tensor, const ReadHeld& read) {
  const Destination destination = Destination::of(tensor);
  const std::uint64_t seed = seed_of(tensor.description.name);
  const auto& [from, to] = destination.cast.value();
  if (auto why = why_unreadable(tensor); !why.empty())
    return fail(ErrorCode::kRefused, std::move(why));
  std::vector<std::byte> leaf(limits::kLeafBytes);
  std::vector<std::byte> window(leaf.size() * dtype_bits(to) / dtype_bits(from));
  WordSum sum;
  std::uint64_t bytes = 0;
  bool is_of_version = true;
  for (std::uint64_t at = 0; at < destination.memory.size(); at += window.size()) {
    const auto held = std::span(window).first(
        std::min<std::uint64_t>(window.size(), destination.memory.size() - at));
    WSYNC_TRY(read(at, held));
    const auto part = std::span(leaf).first(held.size() * dtype_bits(from) / dtype_bits(to));
    if (planted("narrowed_is_read_back") && !is_exact_cast(from, to))
      cast(to, held, from, part);
    else
      is_of_version = cast_back(to, held, from, part) && is_of_version;
    sum += word_sum(part, {.seed = seed, .position = bytes});
    bytes += part.size();
  }
  // A digest is one of a sum and a size, and this is not the size of the tensor.
  return digest_of(sum, is_of_version || planted("cast_back_rounds") ? bytes : bytes + 1);
}

}  // namespace wsync::engine
