#include "shared/device/cuda_library.h"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <optional>
#include <string_view>
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

// Returns the folder of the program or library that contains this function. Returns an empty path
// if it is unknown, for example if a library was loaded by a relative path and the process then
// changed its folder.
std::filesystem::path own_folder() {
  Dl_info info{};
  link_map* map = nullptr;
  std::error_code code;
  const bool found = ::dladdr1(reinterpret_cast<const void*>(&own_folder), &info,
                               reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0;
  // The link map has no name for the program itself, and argv[0] may be anything.
  if (!found || map == nullptr || map->l_name == nullptr || *map->l_name == '\0')
    return std::filesystem::read_symlink("/proc/self/exe", code).parent_path();
  return std::filesystem::canonical(map->l_name, code).parent_path();
}

// Returns the candidates in search order. The last one has no folder, so the system's search
// applies.
std::vector<std::filesystem::path> places() {
  std::vector<std::filesystem::path> all;
  if (const auto folder = own_folder(); !folder.empty()) {
    all.push_back(folder / kLibrary);
    all.push_back((folder / ".." / WSYNC_LIBRARY_FOLDER / kLibrary).lexically_normal());
    if (const auto lib = folder.parent_path() / "lib" / kLibrary; lib != all.back())
      all.push_back(lib);
  }
  all.emplace_back(kLibrary);
  return all;
}

Result<Loaded> check_entry(void* handle, const std::string& place) {
  const auto entry = reinterpret_cast<CudaEntry>(::dlsym(handle, kCudaEntry));
  if (entry == nullptr)
    return fail(ErrorCode::kRefused,
                fmt::format("device kind cuda: {} has no {}: the file is not wsync's library; "
                            "install {} from the package of this program",
                            place, kCudaEntry, kLibrary));
  const CudaBackend* backend = entry();
  const auto other = [&](std::string_view what, const auto& found, const auto& expected) {
    return fail(ErrorCode::kRefused,
                fmt::format("device kind cuda: {} is of another build than this program ({} {}, "
                            "expected {}); install both from one package",
                            place, what, found, expected));
  };
  // The fields after `size` are read only if the size is right.
  if (backend == nullptr) return other("backend", "none", "one");
  if (backend->size != sizeof(CudaBackend))
    return other("size", backend->size, sizeof(CudaBackend));
  const std::string_view build = backend->build == nullptr ? "" : backend->build;
  if (build != cuda_build())
    return other("build", fmt::format("'{}'", build), fmt::format("'{}'", cuda_build()));
  return Loaded{.handle = handle, .backend = backend};
}

// Returns std::nullopt if there is no library at `place`.
Result<std::optional<Loaded>> load_from(const std::filesystem::path& place) {
  std::error_code code;
  const bool named = place.has_parent_path();
  if (named && !std::filesystem::exists(place, code)) return std::optional<Loaded>{};
  void* handle = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle != nullptr) {
    const auto checked = WSYNC_TRY(check_entry(handle, place.string()));
    return std::optional<Loaded>(checked);
  }
  const char* said = ::dlerror();
  const std::string_view why = said == nullptr ? "no reason given" : said;
  // The system found no such file. The error for a library that exists but cannot be loaded names
  // something else.
  if (!named &&
      why.starts_with(fmt::format("{}: cannot open shared object file: No such", kLibrary)))
    return std::optional<Loaded>{};
  return fail(
      ErrorCode::kRefused,
      fmt::format("device kind cuda: {} cannot be loaded: {}; install libwsync_cuda.so from "
                  "the package of this wsync",
                  place.string(), why));
}

Result<Loaded> load() {
  const char* variable = std::getenv(kVariable);
  std::vector<std::filesystem::path> looked;
  if (variable == nullptr || *variable == '\0') {
    looked = places();
  } else {
    looked.emplace_back(variable);
    if (!looked.front().is_absolute())
      return fail(ErrorCode::kRefused,
                  fmt::format("device kind cuda: {} is '{}', expected the absolute path of {}",
                              kVariable, variable, kLibrary));
  }
  std::vector<std::string> names;
  for (const auto& place : looked) {
    const auto loaded = WSYNC_TRY(load_from(place));
    if (loaded) return *loaded;
    names.push_back(place.has_parent_path() ? place.string() : "the system's folders");
  }
  return fail(ErrorCode::kRefused,
              fmt::format("device kind cuda needs {}, which was not found; looked for {}; install "
                          "wsync with its CUDA backend, set {}, or use host devices (devices.kind: "
                          "unified or separate; an engine's --device host)",
                          kLibrary, fmt::join(names, ", "), kVariable));
}

const Result<Loaded>& loaded() {
  static const Result<Loaded> once = load();
  return once;
}

}  // namespace

std::string cuda_build() {
  return fmt::format("wsync {}, compiler {}, sizes {} {} {} {} {}", WSYNC_RELEASE, __VERSION__,
                     sizeof(CudaFacts), sizeof(GpuFacts), sizeof(Error), sizeof(DeviceOptions),
                     sizeof(Piece));
}

Result<const CudaBackend*> cuda_backend() {
  if (!loaded()) return fail(loaded().error());
  return loaded()->backend;
}

Result<void*> cuda_symbol(const char* name) {
  if (!loaded()) return fail(loaded().error());
  void* symbol = ::dlsym(loaded()->handle, name);
  if (symbol == nullptr)
    return fail(ErrorCode::kRefused,
                fmt::format("{} has no {}: the library was built without it, or is of another "
                            "build than this program; install both from one package",
                            kLibrary, name));
  return symbol;
}

std::optional<std::uint32_t> common_numa_node(const std::vector<GpuFacts>& gpus,
                                              const std::vector<std::string>& uuids) {
  std::optional<std::uint32_t> common;
  for (const std::string& uuid : uuids) {
    const auto gpu = std::ranges::find(gpus, uuid, &GpuFacts::uuid);
    if (gpu == gpus.end() || !gpu->numa_node || (common && common != gpu->numa_node)) return {};
    common = gpu->numa_node;
  }
  return common;
}

std::string compute_text(const GpuFacts& gpu) {
  return fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor);
}

std::string numa_node_text(const GpuFacts& gpu) {
  return gpu.numa_node ? std::to_string(*gpu.numa_node) : "not reported";
}

std::string pcie_text(const GpuFacts& gpu) {
  return gpu.pcie_now.empty() ? "PCIe link not reported" : gpu.pcie_now;
}

std::string visible_gpus_text() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? std::string("CUDA_VISIBLE_DEVICES is not set")
                            : fmt::format("CUDA_VISIBLE_DEVICES is '{}'", visible);
}

std::string cuda_version_text(std::uint32_t version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace wsync::device
