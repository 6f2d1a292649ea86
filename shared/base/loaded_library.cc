#include "shared/base/loaded_library.h"

#include <dlfcn.h>
#include <link.h>

namespace wsync {
namespace {

// How many libraries this process has loaded so far, those included that are unloaded again.
std::uint64_t loads_so_far() {
  std::uint64_t loads = 0;
  // Each entry has the number, so the first one is enough.
  const auto take = [](dl_phdr_info* info, std::size_t, void* into) {
    *static_cast<std::uint64_t*>(into) = info->dlpi_adds;
    return 1;
  };
  ::dl_iterate_phdr(take, &loads);
  return loads;
}

}  // namespace

bool LoadedLibrary::is_loaded() {
  if (is_loaded_) return true;
  // Read before the search: what is loaded meanwhile changes the number again.
  const std::uint64_t loads = loads_so_far();
  if (loads == loads_) return false;
  ++searches_;
  void* const library = ::dlopen(name_, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    loads_ = loads;
    return false;
  }
  ::dlclose(library);
  is_loaded_ = true;
  return true;
}

}  // namespace wsync
