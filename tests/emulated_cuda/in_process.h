// For tests of the emulated driver: its functions, and a process for each test, because what the
// environment asks is read once and what has leaked is known at the end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <semaphore>
#include <spawn.h>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/emulated_cuda/emulated_cuda.h"

extern char** environ;

namespace emulated_cuda_test {

// clang-format off
#define EMULATED_CUDA_CALLS(CALL)                                                                 \
  CALL(cuInit) CALL(cuDriverGetVersion) CALL(cuGetErrorName) CALL(cuGetErrorString)               \
  CALL(cuDeviceGetCount) CALL(cuDeviceGet) CALL(cuDeviceGetName) CALL(cuDeviceGetUuid_v2)         \
  CALL(cuDeviceTotalMem) CALL(cuDeviceGetAttribute) CALL(cuDeviceGetPCIBusId)                     \
  CALL(cuDeviceCanAccessPeer) CALL(cuDevicePrimaryCtxRetain) CALL(cuDevicePrimaryCtxRelease)      \
  CALL(cuCtxPushCurrent) CALL(cuCtxPopCurrent) CALL(cuCtxSetCurrent) CALL(cuCtxGetCurrent)        \
  CALL(cuCtxEnablePeerAccess) CALL(cuCtxGetStreamPriorityRange) CALL(cuModuleLoadData)            \
  CALL(cuModuleUnload) CALL(cuModuleGetFunction) CALL(cuLaunchKernel) CALL(cuFuncGetAttribute)    \
  CALL(cuMemGetInfo) CALL(cuMemAlloc) CALL(cuMemFree) CALL(cuMemAllocHost) CALL(cuMemHostAlloc)   \
  CALL(cuMemFreeHost) CALL(cuMemHostRegister) CALL(cuMemHostUnregister)                           \
  CALL(cuMemGetAddressRange) CALL(cuPointerGetAttribute) CALL(cuMemcpyHtoDAsync)                  \
  CALL(cuMemcpyDtoHAsync) CALL(cuMemcpyDtoDAsync) CALL(cuMemcpyAsync) CALL(cuMemcpyPeerAsync)     \
  CALL(cuMemcpy2DAsync)                                                                           \
  CALL(cuMemGetAllocationGranularity) CALL(cuMemCreate) CALL(cuMemRelease)                        \
  CALL(cuMemAddressReserve) CALL(cuMemAddressFree) CALL(cuMemMap) CALL(cuMemUnmap)                \
  CALL(cuMemSetAccess) CALL(cuMemExportToShareableHandle)                                         \
  CALL(cuMemImportFromShareableHandle) CALL(cuMemsetD8Async)                                      \
  CALL(cuMemsetD32Async) CALL(cuStreamCreate) CALL(cuStreamCreateWithPriority)                    \
  CALL(cuStreamDestroy) CALL(cuStreamQuery) CALL(cuStreamSynchronize) CALL(cuStreamWaitEvent)     \
  CALL(cuEventCreate) CALL(cuEventDestroy) CALL(cuEventRecord) CALL(cuEventQuery)                 \
  CALL(cuEventSynchronize)                                                                        \
  CALL(emulated_cuda_enqueue) CALL(emulated_cuda_view) CALL(emulated_cuda_stream_device)          \
  CALL(emulated_cuda_is_retained)                                                                 \
  CALL(emulated_cuda_report) CALL(emulated_cuda_count) CALL(emulated_cuda_stopping)
// clang-format on

// The library's path is a word of the build.
inline void* library() {
  static void* const handle = ::dlopen(EMULATED_CUDA, RTLD_NOW | RTLD_LOCAL);
  return handle;
}

// The names of cuda.h are macros that carry a version; one step more has them expanded.
#define EMULATED_CUDA_TEXT(name) #name
#define EMULATED_CUDA_NAME(name) EMULATED_CUDA_TEXT(name)
struct Cuda {
#define EMULATED_CUDA_MEMBER(name) \
  decltype(&::name) name =         \
      reinterpret_cast<decltype(&::name)>(::dlsym(library(), EMULATED_CUDA_NAME(name)));
  EMULATED_CUDA_CALLS(EMULATED_CUDA_MEMBER)
#undef EMULATED_CUDA_MEMBER
};

// What became of a test's process.
struct Ended {
  int status = 0;  // of waitpid()
  std::vector<std::string> report;
};

inline constexpr const char* kInside = "EMULATED_CUDA_TEST_INSIDE";

// In the test: runs it once more, in a process of its own, and says how that ended. In that
// process: nothing. So a test is
//   if (const auto ended = in_process({...})) { EXPECT_...; return; }
//   what the process does
inline std::optional<Ended> in_process(const std::map<std::string, std::string>& environment = {}) {
  if (std::getenv(kInside) != nullptr) return std::nullopt;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  const auto report =
      std::filesystem::temp_directory_path() / ("emulated_cuda." + std::to_string(::getpid()));
  std::filesystem::remove(report);
  auto all = environment;
  all[kInside] = "1";
  all["WSYNC_EMULATED_CUDA_REPORT"] = report.string();
  std::vector<std::string> words;
  for (char** at = ::environ; *at != nullptr; ++at) {
    const std::string word = *at;
    if (!word.starts_with("WSYNC_EMULATED") && !word.starts_with("CUDA_VISIBLE"))
      words.push_back(word);
  }
  for (const auto& [key, value] : all) words.push_back(key + "=" + value);
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::string self = "/proc/self/exe";
  std::string filter = "--gtest_filter=" + name;
  char* arguments[] = {self.data(), filter.data(), nullptr};
  Ended ended;
  pid_t process = 0;
  if (::posix_spawn(&process, self.c_str(), nullptr, nullptr, arguments, pointers.data()) != 0 ||
      ::waitpid(process, &ended.status, 0) != process) {
    ADD_FAILURE() << "the test's process cannot be started";
    return ended;
  }
  std::ifstream lines(report);
  for (std::string line; std::getline(lines, line);) ended.report.push_back(line);
  std::filesystem::remove(report);
  return ended;
}

// Most tests: the process succeeds.
inline bool succeeded(const Ended& ended) {
  return WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0;
}

// In the test's process: the lines of the error file so far.
inline std::vector<std::string> report_lines() {
  std::vector<std::string> lines;
  std::ifstream file(std::getenv("WSYNC_EMULATED_CUDA_REPORT"));
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Waits until it is so; false when a minute has gone by.
template <class Condition>
bool soon(Condition&& is_so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Holds up a stream until it is opened.
class Gate {
 public:
  Gate(const Cuda& cuda, CUstream stream) {
    EXPECT_EQ(cuda.emulated_cuda_enqueue(stream, &wait, nullptr, this, "gate"), CUDA_SUCCESS);
  }
  void open() { open_.release(); }

 private:
  static CUresult wait(void* self) {
    static_cast<Gate*>(self)->open_.acquire();
    return CUDA_SUCCESS;
  }
  std::binary_semaphore open_{0};
};

// A device with its context current and a stream; all is given back at the end.
class Session {
 public:
  explicit Session(int device = 0) : device_(device) {
    EXPECT_EQ(cuda.cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuCtxPushCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    (void)cuda.cuStreamDestroy(stream);
    (void)cuda.cuCtxPopCurrent(nullptr);
    (void)cuda.cuDevicePrimaryCtxRelease(device_);
  }

  [[nodiscard]] CUdeviceptr allocate(std::size_t bytes) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda.cuMemAlloc(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  // What is in device memory, when the stream has come to it.
  [[nodiscard]] std::vector<unsigned char> read(CUdeviceptr from, std::size_t bytes) const {
    std::vector<unsigned char> to(bytes);
    EXPECT_EQ(cuda.cuMemcpyDtoHAsync(to.data(), from, bytes, stream), CUDA_SUCCESS);
    return to;
  }
  void write(CUdeviceptr to, const std::vector<unsigned char>& bytes) const {
    EXPECT_EQ(cuda.cuMemcpyHtoDAsync(to, bytes.data(), bytes.size(), stream), CUDA_SUCCESS);
  }

  Cuda cuda;
  CUcontext context = nullptr;
  CUstream stream = nullptr;

 private:
  int device_;
};

// Bytes of which no two neighbours are equal.
inline std::vector<unsigned char> some_bytes(std::size_t count, unsigned first = 1) {
  std::vector<unsigned char> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<unsigned char>(first + i * 7U + i / 256U);
  return bytes;
}

}  // namespace emulated_cuda_test
