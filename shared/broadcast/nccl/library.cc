#include "shared/broadcast/nccl/library.h"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <sstream>

#include "shared/base/format.h"
#include "shared/broadcast/nccl_library.h"

namespace wsync::collective::nccl {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
constexpr const char* kNamedBy = "WSYNC_NCCL_LIBRARY";
constexpr const char* kLoopback = "lo";

#ifndef WSYNC_NCCL_LIBRARY
#define WSYNC_NCCL_LIBRARY ""
#endif

// Adds the folders of NCCL's Python package below the prefix of an installation.
void add_python_places(const std::filesystem::path& prefix,
                       std::vector<std::filesystem::path>& places) {
  std::error_code code;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(prefix / "lib", code)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      const auto library = entry.path() / packages / "nvidia" / "nccl" / "lib" / kSoname;
      if (std::filesystem::exists(library, code)) found.push_back(library);
    }
  }
  std::ranges::sort(found);
  for (auto& library : found)
    if (std::ranges::find(places, library) == places.end()) places.push_back(std::move(library));
}

// Returns the prefix of the first python3 on PATH, or an empty path if there is none.
std::filesystem::path python_prefix() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code code;
    if (!folder.empty() && std::filesystem::exists(std::filesystem::path(folder) / "python3", code))
      return std::filesystem::path(folder).parent_path();
  }
  return {};
}

template <class Function>
Result<> find(void* handle, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  if (function != nullptr) return {};
  return fail(
      ErrorCode::kRefused,
      fmt::format("{} has no {}: the library is not NCCL, or it is too old; NCCL {} or newer is "
                  "needed (set {} to the path of one, or use the local collective)",
                  path, name, nccl_version_text(kOldestNccl), kNamedBy));
}

// Returns the path that the loader found for a bare name.
std::string path_of(void* symbol, const std::filesystem::path& asked) {
  Dl_info info{};
  if (::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr) return info.dli_fname;
  return asked.string();
}

Result<Nccl> table_of(void* handle, const std::filesystem::path& place) {
  Nccl nccl;
  nccl.path = place.string();
#define WSYNC_NCCL_FIND(name) WSYNC_TRY(find(handle, nccl.path, #name, nccl.name));
  WSYNC_NCCL_CALLS(WSYNC_NCCL_FIND)
#undef WSYNC_NCCL_FIND
  nccl.path = path_of(reinterpret_cast<void*>(nccl.ncclGetVersion), place);
  int version = 0;
  WSYNC_TRY(check(nccl, nccl.ncclGetVersion(&version), nccl.path));
  nccl.version = static_cast<std::uint32_t>(std::max(version, 0));
  if (nccl.version < kOldestNccl)
    return fail(ErrorCode::kRefused,
                fmt::format("{} is NCCL {}, which is too old: communicators that can be aborted "
                            "while they start need {} or newer; install a newer NCCL, set {} to "
                            "its path, or use the local collective",
                            nccl.path, nccl_version_text(nccl.version),
                            nccl_version_text(kOldestNccl), kNamedBy));
  return nccl;
}

// All ranks are in this process, so nothing of NCCL has to be reached from outside. By default NCCL
// listens on an interface of the network, which may be filtered or go down. A choice of the user
// counts. NCCL reads the variable when the first unique id is made.
void keep_to_loopback() {
  constexpr int kKeep = 0;
  (void)::setenv("NCCL_SOCKET_IFNAME", kLoopback, kKeep);
}

}  // namespace

std::vector<std::filesystem::path> nccl_places() {
  if (const char* named = std::getenv(kNamedBy)) return {named};
  std::vector<std::filesystem::path> places{kSoname};
  if (const std::filesystem::path built(WSYNC_NCCL_LIBRARY); !built.empty())
    places.push_back(built);
  if (const char* environment = std::getenv("VIRTUAL_ENV")) add_python_places(environment, places);
  if (const auto prefix = python_prefix(); !prefix.empty()) add_python_places(prefix, places);
  return places;
}

Result<Nccl> load_nccl(const std::vector<std::filesystem::path>& places) {
  std::vector<std::string> looked;
  for (const auto& place : places) {
    const bool bare = !place.has_parent_path();
    std::error_code code;
    if (!bare && !place.is_absolute())
      return fail(ErrorCode::kRefused, fmt::format("NCCL: {} is '{}', expected an absolute path",
                                                   kNamedBy, place.string()));
    looked.push_back(bare ? fmt::format("{} in the system's library path", place.string())
                          : place.string());
    if (!bare && !std::filesystem::exists(place, code)) continue;
    void* handle = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return table_of(handle, place);
    const char* why = ::dlerror();
    if (!bare)
      return fail(ErrorCode::kRefused, fmt::format("NCCL: {} cannot be loaded: {}", place.string(),
                                                   why == nullptr ? "no reason given" : why));
  }
  return fail(ErrorCode::kRefused,
              fmt::format("NCCL was not found (looked for {}); install libnccl2 or the Python "
                          "package of NCCL, set {} to a {}, or use the local collective",
                          fmt::join(looked, ", "), kNamedBy, kSoname));
}

bool ranks_share_gpus(const Nccl& nccl) {
  const char* set = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return set != nullptr && std::string_view(set) == "1" && nccl.version >= kOldestSharingNccl;
}

Result<const Nccl*> nccl() {
  static const Result<Nccl> once = [] {
    keep_to_loopback();
    return load_nccl(nccl_places());
  }();
  if (!once) return fail(once.error());
  return &*once;
}

Result<> check(const Nccl& nccl, ncclResult_t code, std::string_view what,
               std::source_location where) {
  if (code == ncclSuccess || code == ncclInProgress) return {};
  const char* last = nccl.ncclGetLastError(nullptr);
  std::string sentence = fmt::format("{}: NCCL {}: {}", what, nccl_version_text(nccl.version),
                                     nccl.ncclGetErrorString(code));
  if (last != nullptr && *last != '\0') sentence += fmt::format(" ({})", last);
  const auto kind = [&] {
    if (code == ncclRemoteError) return ErrorCode::kPeerLost;
    if (code == ncclInvalidArgument || code == ncclInvalidUsage) return ErrorCode::kInvalidInput;
    return ErrorCode::kIo;
  }();
  return fail(kind, std::move(sentence), where);
}

}  // namespace wsync::collective::nccl
