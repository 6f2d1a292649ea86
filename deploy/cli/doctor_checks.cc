#include "deploy/cli/doctor_checks.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <thread>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/huge_pages.h"
#include "shared/base/memory_limit.h"
#include "shared/base/unique_fd.h"
#include "shared/command/context.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::cli {
namespace {

constexpr std::uint64_t kLittleMemory = 1ULL << 30U;
constexpr rlim_t kFewDescriptors = 1024;
// Linux 5.1 introduced F_SEAL_FUTURE_WRITE.
constexpr int kKernelMajor = 5;
constexpr int kKernelMinor = 1;

std::string reason() { return std::strerror(errno); }

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/', path.find_last_not_of('/'));
  return slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
}

// Returns the nearest existing directory above `path`.
std::string existing_parent(std::string path) {
  struct stat info{};
  do path = parent_of(path);
  while (path != "/" && ::stat(path.c_str(), &info) != 0);
  return path;
}

Check check_directory(std::string name, const std::string& path, bool is_private) {
  Check check{.name = std::move(name), .status = CheckStatus::kFail, .found = "", .advice = ""};
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    const std::string parent = existing_parent(path);
    if (errno == ENOENT && ::access(parent.c_str(), W_OK | X_OK) == 0)
      return {check.name, CheckStatus::kOk,
              fmt::format("{} does not exist yet; wsync creates it at the first start", path), ""};
    check.found = fmt::format("{} does not exist and cannot be created in {}", path, parent);
    check.advice = fmt::format(
        "create it as the user that runs wsync, or set {} to another directory", check.name);
    return check;
  }
  const unsigned mode = info.st_mode & 0777U;
  if (!S_ISDIR(info.st_mode)) {
    check.found = path + " is not a directory";
    check.advice = fmt::format("set {} to a directory", check.name);
  } else if (info.st_uid != ::getuid()) {
    check.found = fmt::format("{} belongs to user {}, not to {}", path, info.st_uid, ::getuid());
    check.advice = fmt::format("set {} to a directory of the user that runs wsync", check.name);
  } else if (is_private ? mode != 0700 : (mode & 0022U) != 0) {
    check.found = fmt::format("{} has mode {:04o}", path, mode);
    check.advice = fmt::format("chmod {} {}", is_private ? "0700" : "go-w", path);
  } else if (::access(path.c_str(), W_OK | X_OK) != 0) {
    check.found = fmt::format("{}: {}", path, reason());
    check.advice = "make it writable for the user that runs wsync";
  } else {
    check.status = CheckStatus::kOk;
    check.found = fmt::format("{} (mode {:04o})", path, mode);
  }
  return check;
}

}  // namespace

std::string_view check_status_name(CheckStatus status) noexcept {
  switch (status) {
    case CheckStatus::kOk:
      return "ok";
    case CheckStatus::kWarn:
      return "warn";
    case CheckStatus::kFail:
      return "fail";
  }
  return "fail";
}

nlohmann::json to_json(const std::vector<Check>& checks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"status", check_status_name(check.status)},
                    {"found", check.found},
                    {"advice", check.advice}});
    if (!check.facts.is_null()) list.back()["facts"] = check.facts;
  }
  return list;
}

Check check_kernel() {
  utsname name{};
  ::uname(&name);
  int major = 0;
  int minor = 0;
  const bool parsed = std::sscanf(name.release, "%d.%d", &major, &minor) == 2;
  const std::string found = fmt::format("{} {}", name.sysname, name.release);
  if (parsed && (major > kKernelMajor || (major == kKernelMajor && minor >= kKernelMinor)))
    return {"kernel", CheckStatus::kOk, found, ""};
  return {"kernel", CheckStatus::kFail, found,
          fmt::format("upgrade to Linux {}.{} or newer, which sealed shared memory needs",
                      kKernelMajor, kKernelMinor)};
}

Check check_memory(std::uint64_t host_memory_bytes) {
  const Result<AvailableMemory> memory = available_memory();
  if (!memory) return {"memory", CheckStatus::kFail, memory.error().message(), "mount /proc"};
  const std::string found =
      fmt::format("{} available (limited by {})", human_bytes(memory->bytes), memory->limited_by);
  if (host_memory_bytes > memory->bytes)
    return {"memory", CheckStatus::kFail,
            fmt::format("{}; host_memory is {}", found, human_bytes(host_memory_bytes)),
            "lower host_memory, or raise the memory limit of the control group"};
  if (memory->bytes < kLittleMemory)
    return {"memory", CheckStatus::kWarn, found,
            "a host needs three models beside those of its engines, six over TCP: see `wsync plan "
            "DIR`"};
  return {"memory", CheckStatus::kOk, found, ""};
}

Check check_sealed_memory() {
  const Check failed{
      "sealed memory", CheckStatus::kFail, "",
      "memfd_create with seals is needed; a container's seccomp profile may forbid it"};
  const auto fail_with = [&](const std::string& what) {
    Check check = failed;
    check.found = what;
    return check;
  };
  const UniqueFd fd(::memfd_create("wsync-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return fail_with("memfd_create: " + reason());
  constexpr std::size_t kBytes = 4096;
  if (::ftruncate(fd.get(), kBytes) != 0) return fail_with("ftruncate: " + reason());
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) != 0)
    return fail_with("F_ADD_SEALS: " + reason());
  void* map = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map != MAP_FAILED) {
    ::munmap(map, kBytes);
    return fail_with("a sealed memfd could be mapped writable");
  }
  return {"sealed memory", CheckStatus::kOk, "the kernel enforces memfd seals", ""};
}

Check check_huge_pages(HugePages wanted, const std::filesystem::path& root) {
  const std::string setting = shared_huge_pages(root);
  const auto pool = huge_page_pool(root);
  Check check{.name = "huge pages",
              .status = CheckStatus::kOk,
              .found = fmt::format("memory.huge_pages: {}; shmem_enabled: {}; ",
                                   huge_pages_name(wanted), setting.empty() ? "unknown" : setting),
              .advice = "",
              .facts = {{"wanted", huge_pages_name(wanted)},
                        {"shmem_enabled", setting},
                        {"pool_pages", pool ? pool->total : 0},
                        {"pool_available", pool ? pool->available() : 0}}};
  check.found += pool ? fmt::format("the pool has {} pages of 2 MiB, {} of them available",
                                    pool->total, pool->available())
                      : std::string("no pool");
  if (wanted == HugePages::kAdvise && !gives_on_request(setting))
    check.found +=
        ". Arenas are in pages of 4 KiB; with `advise` in "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled large ones would be in huge pages";
  if (wanted == HugePages::kExplicit && (!pool || pool->available() == 0)) {
    check.status = CheckStatus::kWarn;
    check.advice =
        "arenas are made without the pool; set vm.nr_hugepages to the pages that `wsync plan DIR "
        "--huge-pages explicit` shows, soon after the system has started";
  }
  return check;
}

Check check_file_locks() {
  const Check failed{"file locks", CheckStatus::kFail, "",
                     "wsync needs /proc and open-file-description locks for its leases; mount "
                     "/proc and use a kernel that enforces these locks"};
  const auto fail_with = [&](const std::string& what) {
    Check check = failed;
    check.found = what;
    return check;
  };
  const UniqueFd writer(::memfd_create("wsync-doctor", MFD_CLOEXEC));
  if (!writer.valid()) return fail_with("memfd_create: " + reason());
  const UniqueFd reader(
      ::open(fmt::format("/proc/self/fd/{}", writer.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader.valid()) return fail_with("open /proc/self/fd: " + reason());
  struct flock lock{};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(reader.get(), F_OFD_SETLK, &lock) != 0) return fail_with("read lock: " + reason());
  lock.l_type = F_WRLCK;
  lock.l_pid = 0;
  if (::fcntl(writer.get(), F_OFD_SETLK, &lock) == 0)
    return fail_with("the kernel granted a write lock while another descriptor had a read lock");
  return {"file locks", CheckStatus::kOk,
          "the kernel enforces open-file-description locks, which leases use", ""};
}

Check check_cpu() {
  const unsigned cores = std::thread::hardware_concurrency();
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  const std::string found = fmt::format("{} cores, widest streaming stores: {}", cores,
                                        avx512 ? "AVX-512" : (avx2 ? "AVX2" : "SSE2"));
  if (!avx2)
    return {"processor", CheckStatus::kWarn, found, "copies at a switch are slower without AVX2"};
#else
  const std::string found = fmt::format("{} cores, plain copies", cores);
  if (cores >= 2)
    return {"processor", CheckStatus::kWarn, found,
            "streaming stores are used on x86-64 only; copies at a switch are slower"};
#endif
  if (cores < 2)
    return {"processor", CheckStatus::kWarn, found,
            "with one core, staging slows the engines down"};
  return {"processor", CheckStatus::kOk, found, ""};
}

Check check_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found =
      limit.rlim_cur == RLIM_INFINITY ? "no limit" : fmt::format("limit {}", limit.rlim_cur);
  if (limit.rlim_cur < kFewDescriptors)
    return {"descriptors", CheckStatus::kWarn, found,
            fmt::format("raise it to {} (ulimit -n {})", kFewDescriptors, kFewDescriptors)};
  return {"descriptors", CheckStatus::kOk, found, ""};
}

Check check_run_dir(const std::string& path) { return check_directory("run_dir", path, true); }

Check check_state_dir(const std::string& path) { return check_directory("state_dir", path, true); }

Check check_trace_setting(const std::string& path) {
  const std::string file = path + ".json";
  if (const auto checked = trace::check_text_file(file); !checked)
    return {"trace_file", CheckStatus::kWarn, checked.error().message(),
            "create the directory, or set trace_file to another one"};
  return {"trace_file", CheckStatus::kOk, file + " can be written", ""};
}

}  // namespace wsync::cli
