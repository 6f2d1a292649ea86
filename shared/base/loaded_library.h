// LoadedLibrary: whether this process has loaded a shared library of some name, for example the
// driver of a GPU that a framework brings. It never loads the library, and stays cheap where the
// library is missing: dlopen() with RTLD_NOLOAD searches all folders of libraries each time.
#pragma once

#include <atomic>
#include <cstdint>

namespace wsync {

// Thread: any.
class LoadedLibrary {
 public:
  // `name`: the library's SONAME, for example "libcuda.so.1"; it outlives this object. Destroying
  // it does nothing, so that threads may use a static one at the end of the process.
  explicit LoadedLibrary(const char* name) : name_(name) {}

  // Once true it stays true: a library that is unloaded later is not noticed.
  [[nodiscard]] bool is_loaded();
  // How often the folders of libraries were searched: once for each time at which this process has
  // loaded something since.
  [[nodiscard]] std::uint64_t searches() const noexcept { return searches_; }

 private:
  const char* const name_;
  std::atomic<bool> is_loaded_ = false;
  std::atomic<std::uint64_t> loads_ = 0;  // of anything, when it was missing
  std::atomic<std::uint64_t> searches_ = 0;
};

}  // namespace wsync
