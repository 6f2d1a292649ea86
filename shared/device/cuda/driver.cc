#include "shared/device/cuda/driver.h"

#include <dlfcn.h>
#include <mutex>

#include "shared/base/format.h"

namespace wsync::device::cuda {
namespace {

constexpr const char* kDriverLibrary = "libcuda.so.1";

// The driver is never unloaded, because it has its own threads and exit handlers.
constexpr int kLoadFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;

std::string version_text(std::uint32_t version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Returns the loaded driver's version for error messages, or an empty string if the query fails.
std::string said_version(const Driver& cuda) {
  int version = 0;
  if (cuda.cuDriverGetVersion == nullptr || cuda.cuDriverGetVersion(&version) != CUDA_SUCCESS)
    return {};
  return fmt::format(" (the driver supports CUDA {})",
                     version_text(static_cast<std::uint32_t>(version)));
}

std::string start_hint(CUresult code) {
  switch (code) {
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
      return "; a child process cannot use CUDA that its parent has used, unless it executes "
             "another program (exec)";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "; a service of the driver is not running (nvidia-fabricmanager on NVSwitch machines)";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "; libcuda.so.1 does not match the kernel module: restart the machine after an update "
             "of the driver, or correct the container's copy of libcuda.so.1";
    default:
      return {};
  }
}

// What to do where the Multi-Process Service is the reason.
std::string_view mps_hint(CUresult code) {
  switch (code) {
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
      return "; see that nvidia-cuda-mps-control runs, and that CUDA_MPS_PIPE_DIRECTORY is its "
             "directory";
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
      return "; after a fault, the MPS server takes new clients when all those of the GPU have "
             "ended:"
             " stop every process that uses it";
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
      return "; fewer processes can share a GPU through MPS";
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return "; restart this process, and the others that use the GPU through MPS";
    default:
      return {};
  }
}

// After one of these faults, every call of the context returns the same code, as the driver
// documents. The stream whose work failed has already reported it.
bool repeats_a_fault(CUresult code) noexcept {
  switch (code) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return false;
  }
}

ErrorCode error_code(CUresult code) noexcept {
  switch (code) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_TOO_MANY_PEERS:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
      return ErrorCode::kResourceExhausted;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
      return ErrorCode::kRefused;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case CUDA_ERROR_MAP_FAILED:
      return ErrorCode::kInvalidInput;
    default:
      return ErrorCode::kIo;
  }
}

struct Failures {
  std::mutex mutex;
  ReleaseFailures seen;
};
Failures& failures() {
  static Failures all;
  return all;
}

}  // namespace

Result<Driver> load_driver(const char* name) {
  void* library = ::dlopen(name, kLoadFlags);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return fail(ErrorCode::kRefused,
                fmt::format("no NVIDIA driver: {} cannot be loaded ({}); install the driver, or "
                            "give the container the machine's GPUs",
                            name, why == nullptr ? "no reason given" : why));
  }
  Driver cuda;
  std::string missing;
#define WSYNC_CUDA_TEXT_OF(name) #name
#define WSYNC_CUDA_TEXT(name) WSYNC_CUDA_TEXT_OF(name)
#define WSYNC_CUDA_FIND(name)                                                                 \
  cuda.name = reinterpret_cast<decltype(cuda.name)>(::dlsym(library, WSYNC_CUDA_TEXT(name))); \
  if (cuda.name == nullptr && missing.empty()) missing = WSYNC_CUDA_TEXT(name);
  WSYNC_CUDA_DRIVER_CALLS(WSYNC_CUDA_FIND)
#undef WSYNC_CUDA_FIND
#undef WSYNC_CUDA_TEXT
#undef WSYNC_CUDA_TEXT_OF
  if (!missing.empty())
    return fail(ErrorCode::kRefused,
                fmt::format("the NVIDIA driver is too old: {} has no {}{}; wsync was built with "
                            "CUDA {}",
                            name, missing, said_version(cuda), version_text(CUDA_VERSION)));
  const CUresult code = cuda.cuInit(0);
  cuda.has_gpus = code != CUDA_ERROR_NO_DEVICE;
  if (code != CUDA_SUCCESS && cuda.has_gpus)
    return fail(ErrorCode::kRefused,
                fmt::format("the NVIDIA driver cannot be initialised: cuInit: {}{}{}",
                            describe(cuda, code), said_version(cuda), start_hint(code)));
  const auto version = WSYNC_TRY(driver_version(cuda));
  if (version / 1000 < CUDA_VERSION / 1000)
    return fail(
        ErrorCode::kRefused,
        fmt::format("the NVIDIA driver is too old: it supports CUDA {}, but wsync was built with "
                    "CUDA {}; install a driver for CUDA {} or newer",
                    version_text(version), version_text(CUDA_VERSION), CUDA_VERSION / 1000));
  return cuda;
}

Result<const Driver*> driver() {
  static const Result<Driver> once = load_driver(kDriverLibrary);
  if (!once) return fail(once.error());
  return &*once;
}

Result<std::uint32_t> driver_version(const Driver& cuda) {
  int version = 0;
  WSYNC_TRY(check(cuda, cuda.cuDriverGetVersion(&version), "the version of the NVIDIA driver"));
  return static_cast<std::uint32_t>(version);
}

std::string describe(const Driver& cuda, CUresult code) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuda.cuGetErrorName == nullptr || cuda.cuGetErrorName(code, &name) != CUDA_SUCCESS ||
      name == nullptr)
    return fmt::format("CUDA error {}", static_cast<int>(code));
  if (cuda.cuGetErrorString(code, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

Result<> check(const Driver& cuda, CUresult code, std::string_view what,
               std::source_location where) {
  if (code == CUDA_SUCCESS) return {};
  return fail(error_code(code), fmt::format("{}: {}{}", what, describe(cuda, code), mps_hint(code)),
              where);
}

void released(const Driver& cuda, CUresult code, const char* what) noexcept {
  if (code == CUDA_SUCCESS || code == CUDA_ERROR_DEINITIALIZED ||
      code == CUDA_ERROR_CONTEXT_IS_DESTROYED || repeats_a_fault(code))
    return;
  auto& all = failures();
  const std::lock_guard lock(all.mutex);
  if (all.seen.count++ == 0) all.seen.first = fmt::format("{}: {}", what, describe(cuda, code));
}

ReleaseFailures release_failures() {
  auto& all = failures();
  const std::lock_guard lock(all.mutex);
  return all.seen;
}

}  // namespace wsync::device::cuda
