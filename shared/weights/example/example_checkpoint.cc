#include "shared/weights/example/example_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/weights/example/example_model.h"

namespace wsync::cli {
namespace {

constexpr std::uint32_t kShardsMax = 1000;
constexpr std::size_t kBlockWords = 1U << 17U;  // 1 MiB: stays in the cache between fill and write

struct Tensor {
  TensorInfo info;
  std::uint64_t bytes = 0;
};

class File {
 public:
  static Result<File> create(const std::string& path) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd.valid()) return fail_errno(path, errno);
    return File(path, std::move(fd));
  }
  Result<> write(const void* data, std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd_.get(), at, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return fail_errno("write " + path_, errno);
      at += n;
      bytes -= static_cast<std::size_t>(n);
    }
    return {};
  }

 private:
  File(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  UniqueFd fd_;
};

// Returns the first state of a tensor's generator. It differs for each name, seed and step.
std::uint64_t first_state(const std::string& name, const DemoCheckpoint& wanted) {
  const std::string text = fmt::format("{}/{}/{}", name, wanted.seed, wanted.step);
  const std::string digest = digest_of(std::as_bytes(std::span(text))).to_string();
  return std::stoull(digest.substr(0, 16), nullptr, 16) | 1U;
}

// Which bits of a word are random and which are set. They exclude NaN, infinity and patterns.
struct Bits {
  std::uint64_t random = 0;
  std::uint64_t set = 0;
};
constexpr Bits bits_of(DType dtype) {
  // F8_E4M3: magnitudes 2^-1 to 2, both signs. BF16, and the upper half of F32: 2^-7 to 2^-5.
  if (dtype == DType::kF8E4M3) return {0x8f8f'8f8f'8f8f'8f8fULL, 0x3030'3030'3030'3030ULL};
  if (dtype == DType::kF32) return {0x80ff'ffff'80ff'ffffULL, 0x3c00'0000'3c00'0000ULL};
  return {0x80ff'80ff'80ff'80ffULL, 0x3c00'3c00'3c00'3c00ULL};
}

std::uint64_t fill(std::span<std::uint64_t> words, std::uint64_t state, Bits bits) {
  for (std::uint64_t& word : words) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    word = (state & bits.random) | bits.set;
  }
  return state;
}

Result<> write_header(File& file, const std::vector<Tensor>& tensors, std::uint64_t step) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}, {"step", std::to_string(step)}};
  std::uint64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    header[tensor.info.name] = {{"dtype", dtype_name(tensor.info.dtype)},
                                {"shape", tensor.info.shape},
                                {"data_offsets", {begin, begin + tensor.bytes}}};
    begin += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  WSYNC_TRY(file.write(length.data(), length.size()));
  return file.write(text.data(), text.size());
}

Result<> write_shard(const std::string& path, const std::vector<Tensor>& tensors,
                     const DemoCheckpoint& wanted) {
  auto file = WSYNC_TRY(File::create(path));
  WSYNC_TRY(write_header(file, tensors, wanted.step));
  std::vector<std::uint64_t> block(kBlockWords);
  for (const Tensor& tensor : tensors) {
    std::uint64_t state = first_state(tensor.info.name, wanted);
    for (std::uint64_t left = tensor.bytes; left > 0;) {
      const std::uint64_t bytes = std::min<std::uint64_t>(left, kBlockWords * 8);
      state = fill(std::span(block).first((bytes + 7) / 8), state, bits_of(tensor.info.dtype));
      WSYNC_TRY(file.write(block.data(), bytes));
      left -= bytes;
    }
  }
  return {};
}

Result<> write_json(const std::string& path, const nlohmann::json& object) {
  auto file = WSYNC_TRY(File::create(path));
  const std::string text = object.dump(2) + "\n";
  return file.write(text.data(), text.size());
}

// Puts consecutive tensors into shards of about equal size. Each shard is then sorted in the order
// of the reference writer: wider elements first, which aligns them, then by name.
std::vector<std::vector<Tensor>> to_shards(const std::vector<Tensor>& tensors, std::uint64_t total,
                                           std::uint32_t count) {
  std::vector<std::vector<Tensor>> shards(1);
  std::uint64_t before = 0;
  for (const Tensor& tensor : tensors) {
    if (shards.size() < count && before >= total / count * shards.size()) shards.emplace_back();
    shards.back().push_back(tensor);
    before += tensor.bytes;
  }
  for (std::vector<Tensor>& shard : shards)
    std::sort(shard.begin(), shard.end(), [](const Tensor& a, const Tensor& b) {
      if (a.info.dtype != b.info.dtype) return a.info.dtype > b.info.dtype;
      return a.info.name < b.info.name;
    });
  return shards;
}

Result<> write_all(const std::string& directory, const CheckpointModel& model,
                   const std::vector<Tensor>& tensors, std::uint64_t total,
                   const DemoCheckpoint& wanted) {
  const auto shards = to_shards(tensors, total, wanted.shards);
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    WSYNC_TRY(write_shard(directory + "/" + name, shards[i], wanted));
    for (const Tensor& tensor : shards[i]) map[tensor.info.name] = name;
  }
  WSYNC_TRY(write_json(directory + "/model.safetensors.index.json",
                       {{"metadata", {{"total_size", total}}}, {"weight_map", map}}));
  return write_json(directory + "/config.json", model.config);
}

Result<CheckpointModel> model_of(const DemoCheckpoint& wanted) {
  if (wanted.model) return *wanted.model;
  const auto demo = WSYNC_TRY(DemoModel::scaled_to(wanted.bytes));
  return CheckpointModel{.tensors = demo.tensors(),
                         .config = demo.config(),
                         .layers = demo.layers,
                         .hidden = demo.hidden,
                         .experts = demo.experts};
}

Result<std::vector<Tensor>> list_tensors(const CheckpointModel& model,
                                         const DemoCheckpoint& wanted) {
  std::vector<Tensor> tensors;
  bool found = wanted.wrong_shape.empty();
  for (TensorInfo info : model.tensors) {
    const auto bytes = WSYNC_TRY(info.byte_size());
    if (info.name == wanted.wrong_shape) {
      found = true;
      // The same number of bytes in another shape: [r, c] becomes [r, c/2, 2].
      info.shape.back() /= 2;
      info.shape.push_back(2);
    }
    tensors.push_back({.info = std::move(info), .bytes = bytes});
  }
  if (!found)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the demo model has no tensor '{}'", wanted.wrong_shape));
  return tensors;
}

}  // namespace

Result<DemoCheckpointInfo> make_demo_checkpoint(const DemoCheckpoint& wanted) {
  if (wanted.shards < 1 || wanted.shards > kShardsMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} shards: expected 1 to {}", wanted.shards, kShardsMax));
  const auto model = WSYNC_TRY(model_of(wanted));
  const auto tensors = WSYNC_TRY(list_tensors(model, wanted));
  std::uint64_t total = 0;
  for (const Tensor& tensor : tensors) total += tensor.bytes;

  std::string directory = wanted.directory;
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  std::error_code error;
  if (std::filesystem::exists(directory, error))
    return fail(ErrorCode::kInvalidInput,
                directory + " exists; choose another directory or remove it");
  const std::string partial = fmt::format("{}.partial-{}", directory, ::getpid());
  std::filesystem::create_directories(partial, error);
  if (error) return fail_errno(partial, error.value());

  Result<> written = write_all(partial, model, tensors, total, wanted);
  // rename() would replace an empty directory that was created meanwhile, which does no harm.
  if (written && ::rename(partial.c_str(), directory.c_str()) != 0)
    written = fail_errno("rename to " + directory, errno);
  if (!written) {
    std::filesystem::remove_all(partial, error);
    return fail(written.error());
  }
  return DemoCheckpointInfo{.bytes = total,
                            .tensors = tensors.size(),
                            .layers = model.layers,
                            .hidden = model.hidden,
                            .experts = model.experts};
}

}  // namespace wsync::cli
