// cuInit() and what is said of devices.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unistd.h>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/context.h"
#include "tests/emulated_cuda/errors.h"

namespace emulated_cuda {
namespace {

// Attributes by number: the oldest cuda.h that is taken lacks their names.
constexpr int kHostNumaId = 134;
constexpr int kOldVersion = 11040;  // a driver of CUDA 11.4

// -1: not emulated.
int device_attribute(CUdevice_attribute attribute, int device) {
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 49152;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 4;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return kComputeMajor;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return kComputeMinor;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      return 0;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return settings().descriptors ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
      return settings().reads_read_only ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return 0x10 + machine_number(device);
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      return 0;
    case kHostNumaId:
      return 0;
    default:
      return -1;
  }
}

}  // namespace

State& state() {
  static auto* const all = new State();
  return *all;
}

CUresult check_device(const char* name, CUdevice device) {
  if (device >= 0 && device < device_count()) return CUDA_SUCCESS;
  return misuse(name, CUDA_ERROR_INVALID_DEVICE, "no device " + std::to_string(device));
}

int device_count() { return static_cast<int>(settings().visible.size()); }

int machine_number(int device) { return settings().visible[static_cast<std::size_t>(device)]; }

}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuInit(unsigned int flags) {
  return call("cuInit", Needs::kNothing, [&]() -> CUresult {
    if (flags != 0) return misuse("cuInit", CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    if (settings().mode == Mode::kMismatch) return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    if (settings().mode == Mode::kNoGpu || device_count() == 0) return CUDA_ERROR_NO_DEVICE;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    if (all.initialized)
      return all.process == ::getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    const auto devices = static_cast<std::size_t>(device_count());
    all.process = ::getpid();
    all.primary.resize(devices);
    all.retained.resize(devices);
    all.initialized = true;
    return CUDA_SUCCESS;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", Needs::kNothing, [&]() -> CUresult {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = settings().mode == Mode::kOldDriver ? kOldVersion : CUDA_VERSION;
    return CUDA_SUCCESS;
  });
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = error_name(error);
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = error_text(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", Needs::kDriver, [&]() -> CUresult {
    *count = device_count();
    return CUDA_SUCCESS;
  });
}

// Asked with a number that a person wrote: no misuse.
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call("cuDeviceGet", Needs::kDriver, [&]() -> CUresult {
    if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  return call("cuDeviceGetName", Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device("cuDeviceGetName", device)) return bad;
    std::snprintf(name, static_cast<std::size_t>(std::max(bytes, 0)), "Emulated GPU");
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return call("cuDeviceGetUuid_v2", Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device("cuDeviceGetUuid_v2", device)) return bad;
    unsigned char bytes[16];
    gpu_uuid(machine_number(device), bytes);
    std::memcpy(uuid->bytes, bytes, sizeof bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  return call("cuDeviceTotalMem_v2", Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device("cuDeviceTotalMem_v2", device)) return bad;
    *bytes = settings().memory_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return call("cuDeviceGetAttribute", Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device("cuDeviceGetAttribute", device)) return bad;
    const int found = device_attribute(attribute, device);
    if (found < 0)
      return misuse("cuDeviceGetAttribute", CUDA_ERROR_INVALID_VALUE,
                    "attribute " + std::to_string(static_cast<int>(attribute)) +
                        " is not emulated: add it to tests/emulated_cuda/device.cc");
    *value = found;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
  return call("cuDeviceGetPCIBusId", Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device("cuDeviceGetPCIBusId", device)) return bad;
    if (bytes < 13) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02X:00.0",
                  static_cast<unsigned>(0x10 + machine_number(device)));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return call("cuDeviceCanAccessPeer", Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device("cuDeviceCanAccessPeer", device)) return bad;
    if (const CUresult bad = check_device("cuDeviceCanAccessPeer", peer)) return bad;
    *can = device != peer && settings().peers ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
