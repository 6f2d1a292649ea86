// Copies and fills. A call returns before the bytes are there, but for pageable host memory, as the
// documentation of the driver says (API synchronization behavior): what is copied from it is read
// at the call; what is copied to it is there when the call returns.
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/stream.h"

namespace emulated_cuda {
namespace {

// Of rows: the bytes of all of them and of what lies between.
struct Rows {
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;
  std::size_t to_bytes() const { return (height - 1) * to_pitch + width; }
  std::size_t from_bytes() const { return (height - 1) * from_pitch + width; }
};

void copy_rows(std::byte* to, const std::byte* from, const Rows& rows) {
  for (std::size_t row = 0; row < rows.height; ++row)
    std::memcpy(to + row * rows.to_pitch, from + row * rows.from_pitch, rows.width);
}

Op copy_op(const Place& to, const Place& from, const Rows& rows) {
  Op op{.kind = "copy"};
  op.holds.emplace_back(to.used);
  op.holds.emplace_back(from.used);
  std::shared_ptr<std::vector<std::byte>> staged;
  if (from.pageable)
    staged = std::make_shared<std::vector<std::byte>>(from.at, from.at + rows.from_bytes());
  op.work = [to = to.at, from = from.at, staged, rows](std::byte*& written) {
    copy_rows(to, staged ? staged->data() : from, rows);
    written = to + rows.height / 2 * rows.to_pitch + rows.width / 2;
    return CUDA_SUCCESS;
  };
  return op;
}

// Instead of a copy that a device may not carry out: it fails at its turn, and so does all after
// it.
Op denied_op(const char* name, const std::string& why) {
  return {.kind = "copy", .work = [name, why](std::byte*&) {
            return misuse(name, CUDA_ERROR_ILLEGAL_ADDRESS, "a copy " + why);
          }};
}

// The devices that write and that read: -1 for that of the stream.
struct Engines {
  int writes = -1;
  int reads = -1;
};

CUresult copy(const char* name, const Place& to, const Place& from, const Rows& rows,
              CUstream handle, const Engines& engines = {}) {
  std::shared_ptr<Stream> stream;
  if (const CUresult bad = find_stream(name, handle, stream)) return bad;
  if (to.read_only)
    return misuse(name, CUDA_ERROR_INVALID_VALUE,
                  "copies to memory that is registered for reading");
  if (to.at < from.at + rows.from_bytes() && from.at < to.at + rows.to_bytes())
    return misuse(name, CUDA_ERROR_INVALID_VALUE, "source and destination overlap");
  if (to.pageable || from.pageable) add_count("pageable copy");
  const int own = stream->context().device;
  auto denied = why_denied(to, engines.writes < 0 ? own : engines.writes, true);
  if (denied.empty()) denied = why_denied(from, engines.reads < 0 ? own : engines.reads, false);
  stream->push(denied.empty() ? copy_op(to, from, rows) : denied_op(name, denied));
  if (!to.pageable) return CUDA_SUCCESS;
  stream->wait_idle();
  return static_cast<CUresult>(stream->context().error.load());
}

CUresult copy(const char* name, const Place& to, const Place& from, std::size_t bytes,
              CUstream handle, const Engines& engines = {}) {
  return copy(name, to, from, Rows{.width = bytes}, handle, engines);
}

CUresult fill(const char* name, CUdeviceptr address, const void* pattern, std::size_t width,
              std::size_t count, CUstream handle) {
  if (count == 0) return CUDA_SUCCESS;
  Place to;
  std::shared_ptr<Stream> stream;
  if (address % width != 0)
    return misuse(name, CUDA_ERROR_INVALID_VALUE, "the address is not aligned");
  if (const CUresult bad = device_place(name, address, width * count, to)) return bad;
  if (const CUresult bad = find_stream(name, handle, stream)) return bad;
  std::vector<std::byte> one(width);
  std::memcpy(one.data(), pattern, width);
  Op op{.kind = "memset"};
  op.holds.emplace_back(to.used);
  if (const auto denied = why_denied(to, stream->context().device, true); !denied.empty()) {
    stream->push(denied_op(name, denied));
    return CUDA_SUCCESS;
  }
  op.work = [at = to.at, one = std::move(one), count](std::byte*&) {
    if (one.size() == 1) {
      std::memset(at, std::to_integer<int>(one[0]), count);
      return CUDA_SUCCESS;
    }
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(at + i * one.size(), one.data(), one.size());
    return CUDA_SUCCESS;
  };
  stream->push(std::move(op));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  constexpr const char* kName = "cuMemcpyHtoDAsync_v2";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    Place target;
    Place source;
    if (bytes == 0) return CUDA_SUCCESS;
    if (const CUresult bad = device_place(kName, to, bytes, target)) return bad;
    if (const CUresult bad = host_place(kName, from, bytes, source)) return bad;
    return copy(kName, target, source, bytes, stream);
  });
}

// As far as wsync uses it: rows from the host to the device, from their beginning on.
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* wanted, CUstream stream) {
  constexpr const char* kName = "cuMemcpy2DAsync_v2";
  constexpr std::size_t kMaxPitch = 2147483647;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH
  return call(kName, Needs::kContext, [&]() -> CUresult {
    if (wanted->srcMemoryType != CU_MEMORYTYPE_HOST ||
        wanted->dstMemoryType != CU_MEMORYTYPE_DEVICE || wanted->srcXInBytes != 0 ||
        wanted->srcY != 0 || wanted->dstXInBytes != 0 || wanted->dstY != 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "copies other rows than those of the host");
    if (wanted->WidthInBytes == 0 || wanted->Height == 0) return CUDA_SUCCESS;
    if (wanted->srcPitch < wanted->WidthInBytes || wanted->dstPitch < wanted->WidthInBytes ||
        wanted->srcPitch > kMaxPitch || wanted->dstPitch > kMaxPitch)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    "a pitch is smaller than a row or larger than CU_DEVICE_ATTRIBUTE_MAX_PITCH");
    const Rows rows{.width = wanted->WidthInBytes,
                    .height = wanted->Height,
                    .to_pitch = wanted->dstPitch,
                    .from_pitch = wanted->srcPitch};
    Place target;
    Place source;
    if (const CUresult bad = device_place(kName, wanted->dstDevice, rows.to_bytes(), target))
      return bad;
    if (const CUresult bad = host_place(kName, wanted->srcHost, rows.from_bytes(), source))
      return bad;
    return copy(kName, target, source, rows, stream);
  });
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  constexpr const char* kName = "cuMemcpyDtoHAsync_v2";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    Place target;
    Place source;
    if (bytes == 0) return CUDA_SUCCESS;
    if (const CUresult bad = host_place(kName, to, bytes, target)) return bad;
    if (const CUresult bad = device_place(kName, from, bytes, source)) return bad;
    return copy(kName, target, source, bytes, stream);
  });
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  constexpr const char* kName = "cuMemcpyDtoDAsync_v2";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    Place target;
    Place source;
    if (bytes == 0) return CUDA_SUCCESS;
    if (const CUresult bad = device_place(kName, to, bytes, target)) return bad;
    if (const CUresult bad = device_place(kName, from, bytes, source)) return bad;
    return copy(kName, target, source, bytes, stream);
  });
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  constexpr const char* kName = "cuMemcpyAsync";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    Place target;
    Place source;
    if (bytes == 0) return CUDA_SUCCESS;
    if (const CUresult bad = any_place(kName, to, bytes, target)) return bad;
    if (const CUresult bad = any_place(kName, from, bytes, source)) return bad;
    return copy(kName, target, source, bytes, stream);
  });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream) {
  constexpr const char* kName = "cuMemcpyPeerAsync";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    Engines engines;
    {
      State& all = state();
      const std::scoped_lock lock(all.mutex);
      const auto writes = all.contexts.find(id_of(HandleKind::kContext, to_context));
      const auto reads = all.contexts.find(id_of(HandleKind::kContext, from_context));
      if (writes == all.contexts.end() || reads == all.contexts.end())
        return misuse(kName, CUDA_ERROR_INVALID_CONTEXT, "no such context, or no longer");
      engines = {.writes = writes->second->device, .reads = reads->second->device};
    }
    Place target;
    Place source;
    if (bytes == 0) return CUDA_SUCCESS;
    if (const CUresult bad = device_place(kName, to, bytes, target)) return bad;
    if (const CUresult bad = device_place(kName, from, bytes, source)) return bad;
    if (target.device != engines.writes || source.device != engines.reads)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE, "an address is not of the context beside it");
    return copy(kName, target, source, bytes, stream, engines);
  });
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
  return call("cuMemsetD8Async", Needs::kContext,
              [&] { return fill("cuMemsetD8Async", address, &value, 1, count, stream); });
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned int value, size_t count, CUstream stream) {
  return call("cuMemsetD32Async", Needs::kContext,
              [&] { return fill("cuMemsetD32Async", address, &value, 4, count, stream); });
}

}  // extern "C"
