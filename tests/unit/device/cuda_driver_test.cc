// Finding and starting the driver, its errors in words, handles, facts from the system's files.
// With the emulated driver of tests/emulated_cuda.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/device/cuda/allocation_description.h"
#include "shared/device/cuda/context.h"
#include "shared/device/cuda/driver.h"
#include "shared/device/cuda/facts.h"

namespace wsync::device::cuda {
namespace {

constexpr const char* kEmulated = "libcuda.so.1";

bool says(const Error& error, std::string_view text) {
  return error.message().find(text) != std::string::npos;
}

TEST(CudaDriver, ALibraryThatIsNotThereIsRefused) {
  const auto none = load_driver("libwsync-no-such-driver.so.1");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kRefused);
  EXPECT_TRUE(says(none.error(), "no NVIDIA driver: libwsync-no-such-driver.so.1"))
      << none.error().message();
}

TEST(CudaDriver, ALibraryThatLacksAFunctionIsRefusedByName) {
  const auto other = load_driver("libc.so.6");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kRefused);
  EXPECT_TRUE(says(other.error(), "libc.so.6 has no cuInit")) << other.error().message();
}

// In a process of its own, because a driver is started once.
[[noreturn]] void start_in_mode(const char* mode) {
  ::setenv("WSYNC_EMULATED_CUDA_MODE", mode, 1);
  const auto started = load_driver(kEmulated);
  if (!started) {
    std::fprintf(stderr, "%s\n", started.error().message().c_str());
    ::_exit(1);
  }
  const auto gpu = Gpu::open(*started, 0);
  const auto facts = read_facts(*started);
  std::fprintf(stderr, "%s; %zu GPUs\n", gpu ? "" : gpu.error().message().c_str(),
               facts ? facts->gpus.size() : 99);
  ::_exit(2);
}

TEST(CudaDriverDeathTest, WhatKeepsADriverFromStartingIsSaid) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_in_mode("mismatch"), ::testing::ExitedWithCode(1),
              "cannot be initialised: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.*kernel module");
  EXPECT_EXIT(start_in_mode("old"), ::testing::ExitedWithCode(1),
              "too old: it supports CUDA 11.4, but wsync was built with CUDA");
}

TEST(CudaDriverDeathTest, AMachineWithoutGpusHasNoneAndSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(start_in_mode("none"), ::testing::ExitedWithCode(2),
              "this process sees no GPU.*; 0 GPUs");
}

TEST(CudaDriver, ErrorsHaveNamesAndCodes) {
  const auto cuda = load_driver(kEmulated);
  ASSERT_TRUE(cuda.has_value()) << cuda.error().message();
  EXPECT_TRUE(check(*cuda, CUDA_SUCCESS, "nothing").has_value());
  const auto code = [&](CUresult result) { return check(*cuda, result, "it").error().code(); };
  EXPECT_EQ(code(CUDA_ERROR_OUT_OF_MEMORY), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code(CUDA_ERROR_NO_DEVICE), ErrorCode::kRefused);
  EXPECT_EQ(code(CUDA_ERROR_NO_BINARY_FOR_GPU), ErrorCode::kRefused);
  EXPECT_EQ(code(CUDA_ERROR_INVALID_VALUE), ErrorCode::kInvalidInput);
  EXPECT_EQ(code(CUDA_ERROR_ILLEGAL_ADDRESS), ErrorCode::kIo);
  EXPECT_EQ(code(CUDA_ERROR_MPS_SERVER_NOT_READY), ErrorCode::kRefused);
  EXPECT_EQ(code(CUDA_ERROR_MPS_CLIENT_TERMINATED), ErrorCode::kIo);
  for (const auto& [result, advice] :
       {std::pair{CUDA_ERROR_MPS_CONNECTION_FAILED, "CUDA_MPS_PIPE_DIRECTORY is its directory"},
        {CUDA_ERROR_MPS_SERVER_NOT_READY, "stop every process that uses it"},
        {CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "fewer processes can share a GPU"},
        {CUDA_ERROR_MPS_CLIENT_TERMINATED, "restart this process"}})
    EXPECT_TRUE(says(check(*cuda, result, "it").error(), advice)) << advice;
  const auto error = check(*cuda, CUDA_ERROR_OUT_OF_MEMORY, "16 bytes of GPU memory").error();
  EXPECT_TRUE(error.message().starts_with("16 bytes of GPU memory: CUDA_ERROR_OUT_OF_MEMORY ("))
      << error.message();
  EXPECT_TRUE(says(check(*cuda, static_cast<CUresult>(997), "it").error(), "CUDA error 997"));
  EXPECT_EQ(describe(Driver{}, CUDA_ERROR_OUT_OF_MEMORY), "CUDA error 2");
}

TEST(CudaDriver, WhatADestructorCannotReportIsCounted) {
  const auto cuda = load_driver(kEmulated);
  ASSERT_TRUE(cuda.has_value());
  const auto before = release_failures().count;
  released(*cuda, CUDA_SUCCESS, "cuMemFree");
  released(*cuda, CUDA_ERROR_DEINITIALIZED, "cuMemFree");
  released(*cuda, CUDA_ERROR_ILLEGAL_ADDRESS, "cuMemFree");
  EXPECT_EQ(release_failures().count, before);
  released(*cuda, CUDA_ERROR_INVALID_VALUE, "cuMemFree");
  EXPECT_EQ(release_failures().count, before + 1);
  EXPECT_TRUE(release_failures().first.starts_with("cuMemFree: CUDA_ERROR_INVALID_VALUE"));
}

TEST(CudaDriver, UuidsAreWrittenAsTheToolsDo) {
  CUuuid uuid{};
  for (int i = 0; i < 16; ++i) uuid.bytes[i] = static_cast<char>(0xf0 + i);
  EXPECT_EQ(uuid_text(uuid, "NVIDIA H200"), "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
  EXPECT_EQ(uuid_text(uuid, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
            "MIG-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
}

// ---- handles ----

AllocationDescription some_handle() {
  return {.pid = 17,
          .process = 0x123456789abcdef0,
          .allocation = 5,
          .bytes = 4096,
          .mapped_bytes = kGpuBlockBytes,
          .uuid = "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"};
}

bool refused(std::span<const std::byte> bytes, std::string_view field) {
  const auto decoded = decode_description(bytes);
  return !decoded && decoded.error().code() == ErrorCode::kInvalidInput &&
         says(decoded.error(), field);
}

TEST(CudaHandle, WhatIsEncodedIsDecoded) {
  const auto handle = some_handle();
  const auto decoded = decode_description(encode(handle));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(decoded->pid, handle.pid);
  EXPECT_EQ(decoded->process, handle.process);
  EXPECT_EQ(decoded->allocation, handle.allocation);
  EXPECT_EQ(decoded->bytes, handle.bytes);
  EXPECT_EQ(decoded->mapped_bytes, handle.mapped_bytes);
  EXPECT_EQ(decoded->uuid, handle.uuid);
}

TEST(CudaHandle, BytesThatAreNoHandleAreRefused) {
  const auto good = encode(some_handle());
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_FALSE(decode_description(std::span(good).first(n)).has_value()) << n;
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refused(longer, "1 bytes left over"));
  auto magic = good;
  magic[0] ^= std::byte{1};
  EXPECT_TRUE(refused(magic, "magic"));
  auto version = good;
  version[8] ^= std::byte{2};
  EXPECT_TRUE(refused(version, "version: 0, expected 2"));
  auto empty = some_handle();
  empty.bytes = 0;
  EXPECT_TRUE(refused(encode(empty), "bytes: 0"));
  auto huge = some_handle();
  huge.bytes = limits::kBucketBytesMax + 1;
  EXPECT_TRUE(refused(encode(huge), "bytes"));
  for (const std::uint64_t mapped : {std::uint64_t{0}, std::uint64_t{4096}, 2 * kGpuBlockBytes}) {
    auto wrong = some_handle();
    wrong.mapped_bytes = mapped;
    EXPECT_TRUE(refused(encode(wrong), "mapped bytes"));
  }
  auto no_gpu = some_handle();
  no_gpu.uuid.clear();
  EXPECT_TRUE(refused(encode(no_gpu), "uuid"));
  auto long_uuid = some_handle();
  long_uuid.uuid.assign(limits::kGpuUuidBytes + 1, 'x');
  EXPECT_TRUE(refused(encode(long_uuid), "uuid"));
}

TEST(CudaHandle, RandomBytesAreRefusedWithoutHarm) {
  std::mt19937_64 random(7);
  const auto good = encode(some_handle());
  for (int turn = 0; turn < 2000; ++turn) {
    auto bytes = good;
    // The counts and lengths too: everything behind the magic number.
    for (int flips = 0; flips < 4; ++flips)
      bytes[8 + random() % (bytes.size() - 8)] = static_cast<std::byte>(random());
    const auto decoded = decode_description(bytes);
    if (decoded) {
      EXPECT_EQ(decoded->mapped_bytes, whole_blocks(decoded->bytes));
      EXPECT_LE(decoded->uuid.size(), limits::kGpuUuidBytes);
    }
  }
}

TEST(CudaHandle, AForkedChildIsAnotherProcess) {
  const auto own = this_process();
  EXPECT_EQ(this_process(), own);
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const char other = this_process() == own ? 'n' : 'y';
    ::_exit(::write(ends[1], &other, 1) == 1 ? 0 : 1);
  }
  // Not by its exit status: a sanitizer may count the parent's threads as the child's leaks.
  ::close(ends[1]);
  char other = '?';
  EXPECT_EQ(::read(ends[0], &other, 1), 1);
  EXPECT_EQ(other, 'y');
  ::close(ends[0]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

// ---- facts ----

class CudaFactsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cuda = load_driver(kEmulated);
    ASSERT_TRUE(cuda.has_value()) << cuda.error().message();
    cuda_ = *cuda;
    root_ = std::filesystem::temp_directory_path() / ("wsync-facts-" + std::to_string(::getpid()));
    std::filesystem::create_directories(root_);
    const auto facts = read_facts(cuda_, root_);
    ASSERT_TRUE(facts.has_value()) << facts.error().message();
    ASSERT_FALSE(facts->gpus.empty());
    folder_ = "sys/bus/pci/devices/" + facts->gpus[0].pci;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& name, const std::string& text) {
    const auto path = root_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  CudaFacts facts() { return *read_facts(cuda_, root_); }

  Driver cuda_;
  std::filesystem::path root_;
  std::string folder_;
};

TEST_F(CudaFactsTest, WithoutFilesTheirFactsAreEmpty) {
  const auto all = facts();
  EXPECT_EQ(all.driver_release, "");
  EXPECT_EQ(all.gpus[0].numa_node, std::nullopt);
  EXPECT_EQ(all.gpus[0].pcie_now, "");
  EXPECT_EQ(all.gpus[0].pcie_max, "");
}

TEST_F(CudaFactsTest, TheSystemsFilesAreRead) {
  put("proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (x)\n"
      "GCC version:  gcc version 12.2.0\n");
  put(folder_ + "/numa_node", "1\n");
  put(folder_ + "/current_link_speed", "16.0 GT/s PCIe\n");
  put(folder_ + "/current_link_width", "8\n");
  put(folder_ + "/max_link_speed", "32.0 GT/s PCIe\n");
  put(folder_ + "/max_link_width", "16\n");
  const auto all = facts();
  EXPECT_EQ(all.driver_release, "580.159.03");
  EXPECT_EQ(all.gpus[0].numa_node, 1U);
  EXPECT_EQ(all.gpus[0].pcie_now, "16.0 GT/s PCIe x8");
  EXPECT_EQ(all.gpus[0].pcie_max, "32.0 GT/s PCIe x16");
  EXPECT_EQ(all.built_with, static_cast<std::uint32_t>(CUDA_VERSION));
  EXPECT_EQ(all.gpus[0].gpu, 0U);
  EXPECT_EQ(all.gpus[0].peers, (std::vector<std::uint32_t>{1}));
  EXPECT_TRUE(all.gpus[0].shares_memory);
}

TEST_F(CudaFactsTest, FilesThatSayNothingLeaveTheirFactsEmpty) {
  put("proc/driver/nvidia/version", "\n");
  put("sys/module/nvidia/version", "560.35.03\n");
  put(folder_ + "/numa_node", "-1\n");
  put(folder_ + "/current_link_speed", "Unknown\n");
  put(folder_ + "/current_link_width", "16\n");
  put(folder_ + "/max_link_speed", "32.0 GT/s PCIe\n");
  put(folder_ + "/max_link_width", "0\n");
  auto all = facts();
  EXPECT_EQ(all.driver_release, "560.35.03");
  EXPECT_EQ(all.gpus[0].numa_node, std::nullopt);
  EXPECT_EQ(all.gpus[0].pcie_now, "");
  EXPECT_EQ(all.gpus[0].pcie_max, "");
  put("sys/module/nvidia/version", "no number . 12 here\n");
  put(folder_ + "/numa_node", "99999999999999999999\n");
  all = facts();
  EXPECT_EQ(all.driver_release, "");
  EXPECT_EQ(all.gpus[0].numa_node, std::nullopt);
}

TEST_F(CudaFactsTest, ErrorsOfTheDriverNameTheGpu) {
  cuda_.cuDeviceTotalMem = [](std::size_t*, CUdevice) { return CUDA_ERROR_UNKNOWN; };
  const auto failed = read_facts(cuda_, root_);
  ASSERT_FALSE(failed);
  EXPECT_TRUE(says(failed.error(), "GPU 0: the memory of a GPU: CUDA_ERROR_UNKNOWN"))
      << failed.error().message();
}

TEST(CudaFacts, GpusOfOneNodeHaveItInCommon) {
  const auto gpu = [](const char* uuid, std::optional<std::uint32_t> node) {
    GpuFacts facts;
    facts.uuid = uuid;
    facts.numa_node = node;
    return facts;
  };
  const std::vector<GpuFacts> gpus = {gpu("GPU-a", 1), gpu("GPU-b", 1), gpu("GPU-c", 0),
                                      gpu("GPU-d", std::nullopt)};
  EXPECT_EQ(common_numa_node(gpus, {"GPU-a", "GPU-b", "GPU-a"}), 1U);
  EXPECT_EQ(common_numa_node(gpus, {"GPU-c"}), 0U);
  EXPECT_EQ(common_numa_node(gpus, {"GPU-a", "GPU-c"}), std::nullopt) << "on two";
  EXPECT_EQ(common_numa_node(gpus, {"GPU-a", "GPU-d"}), std::nullopt) << "not said of one";
  EXPECT_EQ(common_numa_node(gpus, {"GPU-x"}), std::nullopt);
  EXPECT_EQ(common_numa_node(gpus, {}), std::nullopt);
}

}  // namespace
}  // namespace wsync::device::cuda
