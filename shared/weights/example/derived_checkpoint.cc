#include "shared/weights/example/derived_checkpoint.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::size_t kLengthBytes = 8;

bool transposable(const TensorInfo& tensor) {
  const auto& shape = tensor.shape;
  return shape.size() >= 2 && shape[shape.size() - 1] != shape[shape.size() - 2] &&
         shape[shape.size() - 1] != 0 && shape[shape.size() - 2] != 0;
}

// Chooses the tensor to change: a projection if there is one, otherwise a matrix, otherwise any
// tensor.
std::optional<std::size_t> choose_tensor(const Manifest& manifest) {
  std::optional<std::size_t> any;
  std::optional<std::size_t> matrix;
  for (std::size_t t = 0; t < manifest.size(); ++t) {
    const TensorInfo& tensor = manifest.tensor(t);
    if (!transposable(tensor)) {
      if (!any && tensor.shape.size() < limits::kTensorRank) any = t;
      continue;
    }
    if (tensor.name.find("q_proj") != std::string::npos) return t;
    if (!matrix) matrix = t;
  }
  return matrix ? matrix : any;
}

// Writes `to`: the header of the safetensors file `from` with another shape of one tensor. The data
// has the same size, but is a hole in the file.
Result<> write_hollow_file(const fs::path& from, const fs::path& to, const std::string& tensor,
                           const std::vector<std::uint64_t>& shape) {
  std::ifstream in(from, std::ios::binary);
  std::array<unsigned char, kLengthBytes> length{};
  in.read(reinterpret_cast<char*>(length.data()), length.size());
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < length.size(); ++i)
    header_bytes |= static_cast<std::uint64_t>(length[i]) << (8 * i);
  if (!in || header_bytes > limits::kSafetensorsHeaderBytes)
    return fail(ErrorCode::kIo, from.string() + ": its header cannot be read");
  std::string text(header_bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  ordered_json header = ordered_json::parse(text, nullptr, false);
  if (!in || !header.is_object() || !header.contains(tensor))
    return fail(ErrorCode::kIo, from.string() + ": its header cannot be read");
  const std::uint64_t data_bytes = fs::file_size(from) - kLengthBytes - header_bytes;
  header[tensor]["shape"] = shape;
  std::string changed = header.dump();
  changed.resize((changed.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  for (std::size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<unsigned char>(changed.size() >> (8 * i));
  {
    std::ofstream out(to, std::ios::binary);
    out.write(reinterpret_cast<const char*>(length.data()), length.size());
    out.write(changed.data(), static_cast<std::streamsize>(changed.size()));
    if (!out.flush()) return fail(ErrorCode::kIo, to.string() + ": cannot be written");
  }
  fs::resize_file(to, kLengthBytes + changed.size() + data_bytes);
  return {};
}

Result<WrongShape> make_wrong_shape(const std::string& from, const std::string& to) {
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(from));
  const std::optional<std::size_t> chosen = choose_tensor(checkpoint.manifest());
  if (!chosen)
    return fail(ErrorCode::kInvalidInput, from + " has no tensor whose shape could be changed");
  const TensorInfo& tensor = checkpoint.manifest().tensor(*chosen);
  std::vector<std::uint64_t> shape = tensor.shape;
  if (transposable(tensor))
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  else
    shape.push_back(1);
  const fs::path holder = checkpoint.file_of(*chosen);
  fs::create_directory(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from))
    if (entry.is_regular_file() && entry.path().filename() != holder.filename())
      fs::create_symlink(fs::canonical(entry.path()), fs::path(to) / entry.path().filename());
  WSYNC_TRY(write_hollow_file(holder, fs::path(to) / holder.filename(), tensor.name, shape));
  return WrongShape{
      .tensor = tensor.name, .expected = shape_text(tensor.shape), .found = shape_text(shape)};
}

}  // namespace

Result<> write_changed_copy(const ChangedCopy& copy, const std::atomic<bool>& cancelled) {
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(copy.from));
  const auto flip = static_cast<std::byte>(1U << copy.bit);
  const TensorSource source = [&](std::size_t tensor, std::uint64_t offset,
                                  std::span<std::byte> out) -> Result<> {
    if (cancelled) return fail(ErrorCode::kCancelled, "the copy was stopped");
    WSYNC_TRY(checkpoint.read(tensor, offset, out));
    for (std::uint64_t at = (copy.stride - offset % copy.stride) % copy.stride; at < out.size();
         at += copy.stride)
      out[at] ^= flip;
    return {};
  };
  return write_checkpoint_directory(copy.to, checkpoint.manifest(), source);
}

Result<WrongShape> write_wrong_shape(const std::string& from, const std::string& to) {
  try {
    return make_wrong_shape(from, to);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kIo, fmt::format("{}: {}", to, error.what()));
  }
}

}  // namespace wsync::cli
