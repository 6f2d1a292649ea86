// Modules and kernels. Of a module only the header is read, for the GPUs that its machine code runs
// on: the kernels are those that kernels.cc knows, compiled for the host.
#include <cstring>
#include <vector>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/kernels.h"
#include "tests/emulated_cuda/stream.h"

namespace emulated_cuda {
namespace {

bool looks_like_a_module(const void* image) {
  constexpr std::uint32_t kElf = 0x464c457f;      // a cubin
  constexpr std::uint32_t kFatbin = 0xba55ed50;   // as nvcc -fatbin writes it
  constexpr std::uint32_t kWrapper = 0x466243b1;  // as programs of the runtime hold it
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  const auto* text = static_cast<const char*>(image);
  return magic == kElf || magic == kFatbin || magic == kWrapper ||
         std::strncmp(text, "//", 2) == 0 || std::strncmp(text, ".version", 8) == 0;
}

// Whether a cubin is for GPUs of the emulated compute capability: of the same major one, and of no
// higher minor one. The flags of the ELF header hold that of the cubin; the byte depends on the
// ABI.
bool runs_on_emulated_gpus(const void* image) {
  constexpr std::size_t kAbiVersion = 8;
  constexpr std::size_t kFlags = 48;
  constexpr int kNewestOldAbi = 7;
  const auto* bytes = static_cast<const unsigned char*>(image);
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != 0x464c457f) return true;
  std::uint32_t flags = 0;
  std::memcpy(&flags, bytes + kFlags, sizeof flags);
  const auto built_for =
      static_cast<int>(bytes[kAbiVersion] <= kNewestOldAbi ? flags & 0xffU : flags >> 8U & 0xffU);
  return built_for / 10 == kComputeMajor && built_for % 10 <= kComputeMinor;
}

// The function with this handle, its kernel and its module's context; the mutex is not held.
CUresult find_function(const char* name, CUfunction handle, const Kernel** kernel,
                       std::uint64_t* context) {
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  const auto function = all.functions.find(id_of(HandleKind::kFunction, handle));
  if (function == all.functions.end())
    return misuse(name, CUDA_ERROR_INVALID_HANDLE, "no function");
  const auto module = all.modules.find(function->second.module);
  if (module == all.modules.end())
    return misuse(name, CUDA_ERROR_INVALID_HANDLE, "the function's module has been unloaded");
  *kernel = &kernels()[static_cast<std::size_t>(function->second.kernel)];
  *context = module->second.context;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  constexpr const char* kName = "cuModuleLoadData";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    if (image == nullptr || !looks_like_a_module(image))
      return misuse(kName, CUDA_ERROR_INVALID_IMAGE, "neither a fat binary, a cubin nor PTX");
    if (settings().mode == Mode::kOldDriver) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    const auto context = current();
    if (!runs_on_emulated_gpus(image)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = all.next_id++;
    all.modules[id] = {.context = context->id};
    *module = make_handle<CUmodule>(HandleKind::kModule, id);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleUnload(CUmodule module) {
  constexpr const char* kName = "cuModuleUnload";
  return call(kName, Needs::kRelease, [&]() -> CUresult {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = id_of(HandleKind::kModule, module);
    if (all.modules.erase(id) == 0)
      return misuse(kName, CUDA_ERROR_INVALID_HANDLE, "no module, or unloaded before");
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* kernel) {
  constexpr const char* kName = "cuModuleGetFunction";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = id_of(HandleKind::kModule, module);
    if (!all.modules.contains(id))
      return misuse(kName, CUDA_ERROR_INVALID_HANDLE, "no module, or unloaded before");
    const auto known = kernels();
    for (std::size_t i = 0; i < known.size(); ++i) {
      if (std::strcmp(known[i].name, kernel) != 0) continue;
      const std::uint64_t own = all.next_id++;
      all.functions[own] = {.module = id, .kernel = static_cast<int>(i)};
      *function = make_handle<CUfunction>(HandleKind::kFunction, own);
      return CUDA_SUCCESS;
    }
    return misuse(
        kName, CUDA_ERROR_NOT_FOUND,
        std::string(kernel) + " is not emulated: add it to tests/emulated_cuda/kernels.cc");
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream_handle,
                        void** parameters, void** extra) {
  constexpr const char* kName = "cuLaunchKernel";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    const Kernel* kernel = nullptr;
    std::uint64_t context = 0;
    std::shared_ptr<Stream> stream;
    if (const CUresult bad = find_function(kName, function, &kernel, &context)) return bad;
    if (const CUresult bad = find_stream(kName, stream_handle, stream)) return bad;
    if (context != stream->context().id)
      return misuse(kName, CUDA_ERROR_INVALID_HANDLE, "kernel and stream are of two contexts");
    if (parameters == nullptr || extra != nullptr)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    "parameters are only taken through kernelParams");
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != kernel->threads || block_y != 1 ||
        block_z != 1 || shared_bytes != 0 || grid_x > 2147483647U)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    std::string(kernel->name) + " is launched in a shape that it is not made for");
    add_count("kernel launch");
    stream->push(
        {.kind = "kernel", .work = kernel->prepare(parameters, grid_x, stream->shared_context())});
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  constexpr const char* kName = "cuFuncGetAttribute";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    const Kernel* kernel = nullptr;
    std::uint64_t context = 0;
    if (const CUresult bad = find_function(kName, function, &kernel, &context)) return bad;
    switch (attribute) {
      case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = static_cast<int>(kernel->threads);
        return CUDA_SUCCESS;
      case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = 0;
        return CUDA_SUCCESS;
      default:
        return misuse(
            kName, CUDA_ERROR_INVALID_VALUE,
            "attribute " + std::to_string(static_cast<int>(attribute)) + " is not emulated");
    }
  });
}

}  // extern "C"
