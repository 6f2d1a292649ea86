#include "tests/emulated_cuda/call.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

#include "tests/emulated_cuda/context.h"

namespace emulated_cuda {
namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::string, std::uint64_t, std::less<>> of;
};

Counts& counts() {
  static auto* const all = new Counts();
  return *all;
}

std::uint64_t next_count(const char* name) {
  Counts& all = counts();
  const std::scoped_lock lock(all.mutex);
  return ++all.of[name];
}

// "cuMemAlloc" means cuMemAlloc_v2 too.
bool names(const Fault& fault, std::string_view name) {
  if (fault.name == name) return true;
  const std::size_t version = name.rfind("_v");
  return version != std::string_view::npos && name.substr(0, version) == fault.name;
}

void inject(const char* name, std::uint64_t count, Injected& found) {
  for (const Fault& fault : settings().faults) {
    if (!names(fault, name) || count < fault.from || count > fault.to) continue;
    if (fault.kind == Fault::Kind::kError) found.error = static_cast<CUresult>(fault.error);
    if (fault.kind == Fault::Kind::kHang) found.hang = true;
    if (fault.kind == Fault::Kind::kFlip) found.flip = true;
  }
}

}  // namespace

Injected injected(const char* name, const char* alias) {
  Injected found;
  inject(name, next_count(name), found);
  if (alias != nullptr) inject(alias, next_count(alias), found);
  return found;
}

void add_count(const char* name) { (void)next_count(name); }

std::uint64_t count_of(const char* name) {
  Counts& all = counts();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.of.find(std::string_view(name));
  return found == all.of.end() ? 0 : found->second;
}

void report(const std::string& what) {
  const std::string line = "pid " + std::to_string(::getpid()) + ": " + what + "\n";
  const std::string& path = settings().report;
  if (path.empty()) {
    std::fprintf(stderr, "emulated driver: %s", line.c_str());
    return;
  }
  // One write to a file that is only appended to: lines of several processes do not mix.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || ::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    std::fprintf(stderr, "emulated driver: cannot write to %s: %s", path.c_str(), line.c_str());
  if (fd >= 0) ::close(fd);
}

CUresult misuse(const char* name, CUresult error, const std::string& what) {
  report(std::string(name) + ": " + what);
  return error;
}

std::string hex(std::uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, address);
  return text;
}

CUresult enter(const char* name, Needs needs) {
  const Injected fault = injected(name);
  if (fault.error != CUDA_SUCCESS) return fault.error;
  if (fault.hang) return CUDA_ERROR_NOT_READY;  // of a query: what it asks for never ends
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  State& all = state();
  {
    const std::scoped_lock lock(all.mutex);
    if (all.process != 0 && all.process != ::getpid())
      return misuse(name, CUDA_ERROR_NOT_INITIALIZED,
                    "called in a process that was forked off after cuInit()");
    if (!all.initialized) return misuse(name, CUDA_ERROR_NOT_INITIALIZED, "called before cuInit()");
  }
  if (needs == Needs::kDriver) return CUDA_SUCCESS;
  const auto context = current();
  if (context == nullptr)
    return misuse(name, CUDA_ERROR_INVALID_CONTEXT, "no context is current on this thread");
  if (needs == Needs::kContext) return static_cast<CUresult>(context->error.load());
  return CUDA_SUCCESS;
}

CUresult result_of_release(CUresult own) {
  const auto context = current();
  if (own != CUDA_SUCCESS || context == nullptr) return own;
  return static_cast<CUresult>(context->error.load());
}

}  // namespace emulated_cuda

extern "C" {

void emulated_cuda_report(const char* what) { emulated_cuda::report(what); }

uint64_t emulated_cuda_count(const char* function) { return emulated_cuda::count_of(function); }

}  // extern "C"
