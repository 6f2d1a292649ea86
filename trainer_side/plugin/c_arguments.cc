#include "trainer_side/plugin/c_arguments.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/loaded_library.h"
#include "shared/base/weight_limits.h"
#include "trainer_side/plugin/rank_gather.h"

namespace wsync::plugin {
namespace {

using publish::RankTensor;

const void* const kPerThreadStream = reinterpret_cast<const void*>(2);  // CU_STREAM_PER_THREAD

// Where the bytes of a tensor or of a part are, as its description says.
struct Place {
  int device = WSYNC_DEVICE_HOST;  // may be no value of the enumeration: the caller may be C
  int gpu = 0;
  const void* stream = nullptr;
};

template <class Described>
Place place_of(const Described& described) {
  static_assert(sizeof described.data_on == sizeof(int));
  Place place{.device = 0, .gpu = described.gpu, .stream = described.stream};
  std::memcpy(&place.device, &described.data_on, sizeof place.device);
  return place;
}

// Whether this process has loaded a driver of GPUs.
bool has_driver() {
  static LoadedLibrary driver("libcuda.so.1");
  return driver.is_loaded();
}

// kInvalidInput if this process cannot read host memory there, as if it were memory of a GPU.
// Only where a driver of GPUs is loaded, so that others do not pay for the system call.
Result<> check_readable(std::string_view tensor, std::span<const std::byte> bytes) {
  if (bytes.empty() || !has_driver()) return {};
  std::array<std::byte, 2> ends{};
  const iovec into{.iov_base = ends.data(), .iov_len = ends.size()};
  const std::array<iovec, 2> from{
      iovec{.iov_base = const_cast<std::byte*>(&bytes.front()), .iov_len = 1},
      iovec{.iov_base = const_cast<std::byte*>(&bytes.back()), .iov_len = 1}};
  const auto read = ::process_vm_readv(::getpid(), &into, 1, from.data(), from.size(), 0);
  // A system may forbid the call.
  if (read == static_cast<ssize_t>(ends.size()) || (read < 0 && errno != EFAULT)) return {};
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("tensor {}: its data at {} is not memory of the host that this process can read; "
                  "for memory of a GPU set data_on to WSYNC_DEVICE_CUDA",
                  tensor, static_cast<const void*>(bytes.data())));
}

// Returns the bytes in memory of the host or of a GPU.
Result<publish::TensorBytes> memory_bytes(publish::TrainerGpus& gpus, std::string_view tensor,
                                          const Place& place, std::span<const std::byte> bytes) {
  const auto refuse = [&](std::string what) {
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", tensor, std::move(what)));
  };
  if (place.device == WSYNC_DEVICE_HOST) {
    WSYNC_TRY(check_readable(tensor, bytes));
    return bytes;
  }
  if (place.device != WSYNC_DEVICE_CUDA)
    return refuse(fmt::format(
        "data_on is {}, expected WSYNC_DEVICE_HOST (0) or WSYNC_DEVICE_CUDA (1)", place.device));
  if (place.gpu < 0)
    return refuse(fmt::format("gpu is {}, expected the number of a GPU, from 0 on", place.gpu));
  auto on_gpu = gpus.bytes(static_cast<std::uint32_t>(place.gpu), bytes,
                           reinterpret_cast<std::uintptr_t>(place.stream));
  if (!on_gpu) return fail(on_gpu.error().with_context(fmt::format("tensor {}", tensor)));
  return std::move(*on_gpu);
}

Result<publish::TensorBytes> read_bytes(publish::TrainerGpus& gpus,
                                        const wsync_trainer_tensor& tensor, std::uint64_t bytes) {
  const Place place = place_of(tensor);
  if (tensor.data != nullptr) {
    // The copy is made on a thread of the library, which has another default stream.
    if (place.device == WSYNC_DEVICE_CUDA && tensor.stream == kPerThreadStream)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {}: stream is the default stream of a thread; give "
                              "NULL, and synchronise it before each publish",
                              tensor.name));
    return memory_bytes(gpus, tensor.name, place,
                        std::span(static_cast<const std::byte*>(tensor.data), bytes));
  }
  if (place.device != WSYNC_DEVICE_HOST && (tensor.read != nullptr || bytes != 0))
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("tensor {}: data_on is {}, but data is NULL; what `read` gives, and what is "
                    "written between begin and end, is described with WSYNC_DEVICE_HOST",
                    tensor.name, place.device));
  if (tensor.read == nullptr) return publish::TensorBytes(publish::ReadTensor());
  return publish::TensorBytes(
      publish::ReadTensor([read = tensor.read, user = tensor.user](
                              std::uint64_t offset, std::span<std::byte> into) -> Result<> {
        const int code = read(user, offset, into.data(), into.size());
        if (code == 0) return {};
        return fail(ErrorCode::kRefused, fmt::format("its read callback failed with {}", code));
      }));
}

// Bytes of a part of a tensor of this shape.
Result<std::uint64_t> bytes_of(const publish::DraftPart& part) {
  const RankTensor tensor{
      .info = {.name = std::string(part.name), .dtype = part.dtype, .shape = part.shape},
      .range = part.range,
      .bytes = publish::ReadTensor()};
  const auto info = WSYNC_TRY(shard_info(tensor));
  return info.byte_size();
}

}  // namespace

Result<DType> dtype_argument(std::string_view tensor, const char* name) {
  const auto dtype = parse_dtype(name);
  if (dtype) return *dtype;
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("tensor {}: dtype {} is unknown; use the names of safetensors", tensor, name));
}

Result<RankTensor> tensor_argument(publish::TrainerGpus& gpus, const wsync_trainer_tensor& tensor) {
  if (tensor.name == nullptr || tensor.dtype == nullptr)
    return fail(ErrorCode::kInvalidInput, "a tensor needs a name and a dtype");
  const auto refuse = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", tensor.name, what));
  };
  const auto dtype = WSYNC_TRY(dtype_argument(tensor.name, tensor.dtype));
  if (tensor.shape_count > limits::kTensorRank)
    return refuse(fmt::format("it has {} dimensions, at most {} are allowed", tensor.shape_count,
                              limits::kTensorRank));
  if (tensor.range_count > 1)
    return refuse(fmt::format("it has {} ranges, at most 1 is allowed", tensor.range_count));
  if ((tensor.shape == nullptr && tensor.shape_count != 0) ||
      (tensor.ranges == nullptr && tensor.range_count != 0))
    return refuse("its shape or ranges are NULL");
  RankTensor out{.info = {.name = tensor.name, .dtype = dtype}};
  out.info.shape.assign(tensor.shape, tensor.shape + tensor.shape_count);
  if (tensor.range_count == 1)
    out.range = publish::ShardRange{
        .dim = tensor.ranges->dim, .begin = tensor.ranges->begin, .length = tensor.ranges->length};
  const auto part = WSYNC_TRY(shard_info(out));
  auto bytes = WSYNC_TRY(read_bytes(gpus, tensor, *part.byte_size()));
  out.bytes = std::move(bytes);
  return out;
}

Result<publish::DraftPart> part_argument(publish::TrainerGpus& gpus,
                                         const wsync_trainer_part& part) {
  if (part.name == nullptr || part.dtype == nullptr)
    return fail(ErrorCode::kInvalidInput, "a part needs a name and a dtype");
  const auto refuse = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput, fmt::format("tensor {}: {}", part.name, what));
  };
  if ((part.shape == nullptr && part.shape_count != 0) ||
      (part.ranges == nullptr && part.range_count != 0) ||
      (part.scales == nullptr && part.scale_count != 0))
    return refuse("its shape, ranges or scales are NULL");
  if (part.range_count > 1)
    return refuse(fmt::format("it has {} ranges, at most 1 is allowed", part.range_count));
  if (part.compute_scales != 0 && part.scale_count != 0)
    return refuse("scales are either given or computed");
  publish::DraftPart out{.name = part.name};
  out.dtype = WSYNC_TRY(dtype_argument(part.name, part.dtype));
  out.shape.assign(part.shape, part.shape + part.shape_count);
  if (part.range_count == 1)
    out.range = publish::ShardRange{
        .dim = part.ranges->dim, .begin = part.ranges->begin, .length = part.ranges->length};
  const bool is_empty =
      std::ranges::find(out.shape, 0U) != out.shape.end() || (out.range && out.range->length == 0);
  if (part.data == nullptr && !is_empty) return refuse("its data is NULL");
  const Place place = place_of(part);
  const auto bytes = bytes_of(out);
  // What does not fit is refused later, with what the version has.
  if (bytes || place.device != WSYNC_DEVICE_HOST) {
    const auto* data = static_cast<const std::byte*>(part.data);
    auto memory = WSYNC_TRY(
        memory_bytes(gpus, part.name, place, std::span(data, is_empty ? 0 : WSYNC_TRY(bytes))));
    if (auto* on_gpu = std::get_if<publish::DeviceBytes>(&memory)) out.on_gpu = std::move(*on_gpu);
  }
  if (!out.on_gpu) out.data = static_cast<const std::byte*>(part.data);
  if (part.compute_scales != 0)
    out.scales = publish::ComputedScales{};
  else if (part.scale_count != 0)
    out.scales = publish::GivenScales{{part.scales, part.scale_count}};
  return out;
}

}  // namespace wsync::plugin
