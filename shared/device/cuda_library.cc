#include "shared/device/cuda_library.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <vector>

#include "shared/base/format.h"

namespace wsync::device {
namespace {

constexpr const char* kLibrary = "libwsync_cuda.so";
constexpr const char* kVariable = "WSYNC_CUDA_LIBRARY";

struct Loaded {
  void* handle = nullptr;
  const CudaBackend* backend = nullptr;
};

// The folder of the program or library that this function is linked into.
std::filesystem::path own_folder() {
  Dl_info info{};
  std::error_code code;
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0 &&
      info.dli_fname != nullptr &&
      std::string_view(info.dli_fname).find('/') != std::string_view::npos)
    return std::filesystem::canonical(info.dli_fname, code).parent_path();
  return std::filesystem::canonical("/proc/self/exe", code).parent_path();
}

std::vector<std::filesystem::path> places() {
  if (const char* named = std::getenv(kVariable)) return {named};
  const auto folder = own_folder();
  return {folder / kLibrary, folder.parent_path() / "lib" / kLibrary, kLibrary};
}

Result<Loaded> load() {
  std::vector<std::string> looked;
  for (const auto& place : places()) {
    looked.push_back(place.string());
    std::error_code code;
    if (place.has_parent_path() && !std::filesystem::exists(place, code)) continue;
    void* handle = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = ::dlerror();
      if (!place.has_parent_path()) break;  // not installed where the system looks either
      return fail(ErrorCode::kRefused,
                  fmt::format("device kind cuda: {} cannot be loaded: {}", place.string(), why));
    }
    const auto entry = reinterpret_cast<CudaEntry>(::dlsym(handle, kCudaEntry));
    const CudaBackend* backend = entry == nullptr ? nullptr : entry();
    if (backend == nullptr || backend->size != sizeof(CudaBackend) ||
        backend->build != cuda_build())
      return fail(ErrorCode::kRefused,
                  fmt::format("device kind cuda: {} is of another build than this program; install "
                              "both from one package",
                              place.string()));
    return Loaded{.handle = handle, .backend = backend};
  }
  return fail(ErrorCode::kRefused,
              fmt::format("device kind cuda needs {}, which is not there (looked for {}); install "
                          "wsync with its CUDA backend, set {}, or use unified or separate host "
                          "devices",
                          kLibrary, fmt::join(looked, ", "), kVariable));
}

const Result<Loaded>& loaded() {
  static const Result<Loaded> once = load();
  return once;
}

}  // namespace

std::string cuda_build() {
  return fmt::format("{} {} {} {} {}", __VERSION__, sizeof(CudaFacts), sizeof(Error),
                     sizeof(DeviceOptions), sizeof(Piece));
}

Result<const CudaBackend*> cuda_backend() {
  if (!loaded()) return fail(loaded().error());
  return loaded()->backend;
}

Result<void*> cuda_symbol(const char* name) {
  if (!loaded()) return fail(loaded().error());
  void* symbol = ::dlsym(loaded()->handle, name);
  if (symbol == nullptr)
    return fail(ErrorCode::kRefused, fmt::format("{} has no {}", kLibrary, name));
  return symbol;
}

}  // namespace wsync::device
