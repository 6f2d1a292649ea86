#include <algorithm>
#include <numeric>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"
#include "shared/weights/output_file.h"
#include "shared/weights/safetensors.h"

namespace wsync {
namespace {

constexpr std::size_t kChunkBytes = 8 * limits::kMiB;

// Wider dtypes first, then by name. This is the order of the reference writer, which keeps tensors
// aligned.
std::vector<std::size_t> file_order(std::span<const TensorInfo> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (tensors[a].dtype != tensors[b].dtype) return tensors[a].dtype > tensors[b].dtype;
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

Result<> append_string(std::string& json, std::string_view text) {
  auto encoded = WSYNC_TRY(json_string(text));
  json += encoded;
  return {};
}

// Returns the header with its length, identical to that of the reference writer.
Result<std::string> make_header(std::span<const TensorInfo> tensors,
                                std::span<const std::size_t> order,
                                const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      WSYNC_TRY(append_string(json, key));
      json += ':';
      WSYNC_TRY(append_string(json, value));
    }
    json += '}';
  }
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const TensorInfo& tensor = tensors[order[i]];
    const auto bytes = WSYNC_TRY(tensor.byte_size());
    std::uint64_t end = 0;
    if (__builtin_add_overflow(at, bytes, &end) || end > limits::kModelBytesMax)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the tensors exceed the limit of {} bytes at tensor {}",
                              limits::kModelBytesMax, quote_text(tensor.name)));
    const bool twice = i != 0 && tensors[order[i - 1]].name == tensor.name;
    if (twice || tensor.name == "__metadata__")
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {} {}", quote_text(tensor.name),
                              twice ? "is given twice" : "has the name that the format reserves"));
    if (json.size() > 1) json += ',';
    WSYNC_TRY(append_string(json, tensor.name));
    json += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), at, end);
    at = end;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > limits::kSafetensorsHeaderBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the header would be {} bytes; at most {} are allowed: use more shards",
                            json.size(), limits::kSafetensorsHeaderBytes));
  const std::uint64_t length = json.size();
  std::string header(reinterpret_cast<const char*>(&length), sizeof length);
  return header + json;
}

}  // namespace

Result<> write_safetensors(const std::string& path, std::span<const TensorInfo> tensors,
                           const std::map<std::string, std::string>& metadata,
                           const TensorSource& source) {
  const std::vector<std::size_t> order = file_order(tensors);
  const auto header = make_header(tensors, order, metadata);
  if (!header) return fail(header.error().with_context(path));
  std::uint64_t total = header->size();
  for (const TensorInfo& tensor : tensors) total += tensor.byte_size().value();

  auto file = WSYNC_TRY(OutputFile::create(path, total));
  WSYNC_TRY(file.append(std::as_bytes(std::span(*header))));
  std::vector<std::byte> chunk(std::min<std::uint64_t>(kChunkBytes, total));
  for (const std::size_t index : order) {
    const std::uint64_t bytes = tensors[index].byte_size().value();
    for (std::uint64_t offset = 0; offset < bytes; offset += chunk.size()) {
      const auto part =
          std::span(chunk).first(std::min<std::uint64_t>(chunk.size(), bytes - offset));
      WSYNC_TRY(source(index, offset, part));
      WSYNC_TRY(file.append(part));
    }
  }
  return file.commit();
}

}  // namespace wsync
