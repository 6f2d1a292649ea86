#include "shared/weights/manifest.h"

#include <algorithm>
#include <numeric>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/layer_order.h"

namespace wsync {
namespace {

Result<> check_name_and_rank(const TensorInfo& tensor) {
  if (tensor.name.empty())
    return fail(ErrorCode::kInvalidInput, "a tensor has an empty name; every tensor needs one");
  if (tensor.name.size() > limits::kTensorNameBytes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("tensor '{}...' has a name of {} bytes; at most {} are allowed",
                    tensor.name.substr(0, 64), tensor.name.size(), limits::kTensorNameBytes));
  if (tensor.shape.size() > limits::kTensorRank)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("tensor '{}' has {} dimensions; at most {} are allowed", tensor.name,
                            tensor.shape.size(), limits::kTensorRank));
  return {};
}

// Sorts into layer order. The keys refer to the names, so the function sorts indices first and
// moves the tensors afterwards.
std::vector<TensorInfo> in_layer_order(std::vector<TensorInfo> tensors) {
  std::vector<LayerKey> keys(tensors.size());
  std::transform(tensors.begin(), tensors.end(), keys.begin(),
                 [](const TensorInfo& t) { return layer_key(t.name); });
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (const auto c = compare_layers(keys[a], keys[b]); c != 0) return c < 0;
    if (const auto c = natural_compare(tensors[a].name, tensors[b].name); c != 0) return c < 0;
    return tensors[a].name < tensors[b].name;
  });
  std::vector<TensorInfo> sorted;
  sorted.reserve(tensors.size());
  for (const std::uint32_t i : order) sorted.push_back(std::move(tensors[i]));
  return sorted;
}

}  // namespace

Result<std::uint64_t> TensorInfo::byte_size() const {
  auto bytes = tensor_byte_size(dtype, shape);
  if (!bytes) return fail(bytes.error().with_context(fmt::format("tensor '{}'", name)));
  return bytes;
}

std::string describe(const TensorInfo& tensor) {
  return fmt::format("{} {} [{}]", tensor.name, dtype_name(tensor.dtype),
                     fmt::join(tensor.shape, ", "));
}

Result<Manifest> Manifest::create(std::vector<TensorInfo> tensors) {
  if (tensors.size() > limits::kTensorCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the model has {} tensors; at most {} are allowed", tensors.size(),
                            limits::kTensorCount));
  for (const TensorInfo& tensor : tensors) WSYNC_TRY(check_name_and_rank(tensor));

  Manifest manifest;
  manifest.tensors_ = in_layer_order(std::move(tensors));
  const std::size_t count = manifest.tensors_.size();
  manifest.bytes_.reserve(count);
  manifest.layers_.reserve(count);
  manifest.by_name_.resize(count);
  LayerKey previous;
  for (std::size_t i = 0; i < count; ++i) {
    const TensorInfo& tensor = manifest.tensors_[i];
    const auto bytes = WSYNC_TRY(tensor.byte_size());
    // Neither term exceeds 2^61 + kModelBytesMax, so the sum cannot wrap.
    manifest.total_bytes_ += bytes;
    if (manifest.total_bytes_ > limits::kModelBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the model exceeds the limit of {} bytes at tensor '{}'",
                              limits::kModelBytesMax, describe(tensor)));
    const LayerKey key = layer_key(tensor.name);
    const std::uint32_t step = i != 0 && compare_layers(previous, key) != 0 ? 1 : 0;
    manifest.layers_.push_back(i == 0 ? 0 : manifest.layers_.back() + step);
    previous = key;
    manifest.bytes_.push_back(bytes);
  }

  const auto name_of = [&](std::uint32_t i) -> const std::string& {
    return manifest.tensors_[i].name;
  };
  std::iota(manifest.by_name_.begin(), manifest.by_name_.end(), 0U);
  std::sort(manifest.by_name_.begin(), manifest.by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name_of(a) < name_of(b); });
  const auto twice = std::adjacent_find(
      manifest.by_name_.begin(), manifest.by_name_.end(),
      [&](std::uint32_t a, std::uint32_t b) { return name_of(a) == name_of(b); });
  if (twice != manifest.by_name_.end())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("tensor '{}' is given twice; names must differ", name_of(*twice)));
  manifest.layout_digest_ = layout_digest_of(manifest.tensors_);
  return manifest;
}

std::optional<std::uint32_t> Manifest::find(std::string_view name) const {
  const auto at =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  if (at == by_name_.end() || tensors_[*at].name != name) return std::nullopt;
  return *at;
}

Digest Manifest::layout_digest_of(std::span<const TensorInfo> tensors) {
  Digester digester;
  digester.update(std::string_view("wsync layout 1"));
  digester.update(std::uint64_t{tensors.size()});
  for (const TensorInfo& tensor : tensors) {
    digester.update(std::uint64_t{tensor.name.size()});
    digester.update(std::string_view(tensor.name));
    digester.update(std::uint64_t{static_cast<std::uint8_t>(tensor.dtype)});
    digester.update(std::uint64_t{tensor.shape.size()});
    for (const std::uint64_t dim : tensor.shape) digester.update(dim);
  }
  return digester.finish();
}

void Manifest::encode(ByteWriter& writer) const {
  writer.put(static_cast<std::uint32_t>(tensors_.size()));
  for (const TensorInfo& tensor : tensors_) {
    writer.put_string(tensor.name);
    writer.put(tensor.dtype);
    writer.put(static_cast<std::uint8_t>(tensor.shape.size()));
    for (const std::uint64_t dim : tensor.shape) writer.put(dim);
  }
}

Result<Manifest> Manifest::decode(ByteReader& reader) {
  constexpr std::size_t kMinTensorBytes = 4 + 1 + 1;  // name length, dtype, rank
  const std::uint32_t count =
      reader.get_count(limits::kTensorCount, kMinTensorBytes, "manifest.tensors");
  std::vector<TensorInfo> tensors(count);
  for (TensorInfo& tensor : tensors) {
    tensor.name = reader.get_string(limits::kTensorNameBytes, "manifest.name");
    tensor.dtype = reader.get_enum(kLastDType, "manifest.dtype");
    const auto rank = reader.get<std::uint8_t>("manifest.rank");
    if (rank > limits::kTensorRank)
      reader.violate("manifest.rank",
                     fmt::format("{} dimensions, at most {} allowed", rank, limits::kTensorRank));
    if (!reader.ok()) break;
    tensor.shape.resize(rank);
    for (std::uint64_t& dim : tensor.shape) dim = reader.get<std::uint64_t>("manifest.shape");
  }
  if (!reader.ok())
    return fail(ErrorCode::kInvalidInput, "manifest: " + std::string(reader.violation()));
  auto manifest = create(tensors);
  if (!manifest) return fail(manifest.error().with_context("manifest"));
  for (std::size_t i = 0; i < count; ++i)
    if (manifest->tensor(i).name != tensors[i].name)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("manifest: tensor {} is '{}', layer order has '{}' there", i,
                              tensors[i].name, manifest->tensor(i).name));
  return manifest;
}

}  // namespace wsync
