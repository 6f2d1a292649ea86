// What the backend does when the driver fails: the emulated driver, with single functions of its
// table replaced.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <future>
#include <gtest/gtest.h>
#include <memory>
#include <sys/mman.h>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/device/cuda/device.h"
#include "shared/device/cuda/driver.h"
#include "shared/device/cuda/memory.h"
#include "shared/device/cuda/registration.h"
#include "tests/support/misuse_report.h"

namespace wsync::device::cuda {
namespace {

[[maybe_unused]] const auto* const kReport = ::testing::AddGlobalTestEnvironment(new MisuseReport);

constexpr std::size_t kPage = 4096;

// What a replaced function finds; functions of the driver have no other argument for it.
const Driver* real = nullptr;
std::atomic<int> calls = 0;
std::atomic<int> undone = 0;

TimePoint far() { return now() + std::chrono::seconds(60); }

class CudaFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto cuda = driver();
    ASSERT_TRUE(cuda.has_value()) << cuda.error().message();
    real = *cuda;
    cuda_ = **cuda;
    calls = 0;
    undone = 0;
    unreleased_ = release_failures().count;
  }
  // Whatever fails, what was made is given back.
  void TearDown() override { EXPECT_EQ(release_failures().count, unreleased_); }
  Result<std::unique_ptr<Device>> open(std::chrono::nanoseconds settle_limit = kSettleLimit) {
    return make_cuda_device(cuda_, {.kind = DeviceKind::kCuda}, settle_limit);
  }
  static Result<> drained(Device& device, Stream& work) {
    auto end = device.create_event();
    WSYNC_TRY(work.record(**end));
    return (*end)->wait(far());
  }
  static void expect(const Error& error, ErrorCode code, std::string_view text) {
    EXPECT_EQ(error.code(), code) << error.message();
    EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
  }

  Driver cuda_;
  std::uint64_t unreleased_ = 0;
};

TEST_F(CudaFaults, AContextThatCannotBeHadIsSaid) {
  cuda_.cuDevicePrimaryCtxRetain = [](CUcontext*, CUdevice) { return CUDA_ERROR_UNKNOWN; };
  const auto device = open();
  ASSERT_FALSE(device);
  expect(device.error(), ErrorCode::kIo, "GPU 0: the GPU's primary context cannot be retained");
}

// What the next driver says of the compute capability.
int capability_of_gpu = 0;
decltype(Driver::cuDeviceGetAttribute) emulated_attribute = nullptr;
CUresult attribute_of_gpu(int* value, CUdevice_attribute which, CUdevice device) {
  if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    return *value = capability_of_gpu / 10, CUDA_SUCCESS;
  if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    return *value = capability_of_gpu % 10, CUDA_SUCCESS;
  return emulated_attribute(value, which, device);
}

TEST_F(CudaFaults, AGpuThatTheKernelsAreNotBuiltForIsRefused) {
  emulated_attribute = cuda_.cuDeviceGetAttribute;
  cuda_.cuDeviceGetAttribute = attribute_of_gpu;
  capability_of_gpu = 75;
  const auto old = open();
  ASSERT_FALSE(old);
  expect(old.error(), ErrorCode::kRefused,
         "its compute capability is 7.5, but the kernels are built for 8.0 and newer");
  capability_of_gpu = 120;
  cuda_.cuModuleLoadData = [](CUmodule*, const void*) {
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  };
  const auto newer = open();
  ASSERT_FALSE(newer);
  expect(newer.error(), ErrorCode::kRefused,
         "its compute capability is 12.0, for which the driver has to compile PTX of CUDA");
  capability_of_gpu = 86;
  cuda_.cuModuleLoadData = [](CUmodule*, const void*) { return CUDA_ERROR_NO_BINARY_FOR_GPU; };
  const auto refused = open();
  ASSERT_FALSE(refused);
  expect(refused.error(), ErrorCode::kRefused,
         "the machine code for compute capability 8.0 cannot be loaded on a GPU of 8.6: "
         "CUDA_ERROR_NO_BINARY_FOR_GPU");
}

// As a driver may answer of addresses that are only reserved.
TEST_F(CudaFaults, AddressesWithoutMemoryAreNotBorrowed) {
  auto device = open();
  ASSERT_TRUE(device.has_value()) << device.error().message();
  const auto memory = (*device)->allocate(limits::kMiB).value();
  const std::span<std::byte> range{memory->address(), limits::kMiB};
  EXPECT_TRUE((*device)->borrow(range).has_value());
  cuda_.cuPointerGetAttribute = [](void* value, CUpointer_attribute which, CUdeviceptr at) {
    const CUresult code = real->cuPointerGetAttribute(value, which, at);
    if (which == CU_POINTER_ATTRIBUTE_MAPPED) *static_cast<int*>(value) = 0;
    return code;
  };
  device = open();
  ASSERT_TRUE(device.has_value()) << device.error().message();
  const auto borrowed = (*device)->borrow(range);
  ASSERT_FALSE(borrowed);
  expect(borrowed.error(), ErrorCode::kInvalidInput, "cannot be borrowed: no memory is mapped at");
}

TEST_F(CudaFaults, MemoryThatIsNotThereIsSaidWithWhatIsFree) {
  cuda_.cuMemCreate = [](CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*,
                         unsigned long long) { return CUDA_ERROR_OUT_OF_MEMORY; };
  auto device = open();
  ASSERT_TRUE(device.has_value()) << device.error().message();
  const auto memory = (*device)->allocate(limits::kMiB);
  ASSERT_FALSE(memory);
  expect(memory.error(), ErrorCode::kResourceExhausted, "2097152 bytes cannot be allocated");
  expect(memory.error(), ErrorCode::kResourceExhausted, "are free");
}

TEST_F(CudaFaults, MoreMemoryThanThereIsIsRefused) {
  auto device = open();
  ASSERT_TRUE(device.has_value());
  const auto free = (*device)->memory_info()->free_bytes;
  const auto memory = (*device)->allocate(limits::kBucketBytesMax);
  ASSERT_LT(free, limits::kBucketBytesMax) << "of the emulated GPU";
  ASSERT_FALSE(memory);
  expect(memory.error(), ErrorCode::kResourceExhausted, "GPU 0");
  EXPECT_EQ((*device)->memory_info()->free_bytes, free);
}

TEST_F(CudaFaults, AStreamThatCannotBeMadeIsAnError) {
  auto device = open();
  ASSERT_TRUE(device.has_value());
  cuda_.cuStreamCreateWithPriority = [](CUstream*, unsigned int, int) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  const auto work = (*device)->create_stream(StreamRole::kReload);
  ASSERT_FALSE(work);
  expect(work.error(), ErrorCode::kResourceExhausted, "reload stream: cannot create a stream");
}

TEST_F(CudaFaults, AnErrorOfACopyReachesEverythingBehindIt) {
  cuda_.cuMemcpyHtoDAsync = [](CUdeviceptr, const void*, std::size_t, CUstream) {
    return CUDA_ERROR_INVALID_VALUE;
  };
  auto device = open();
  ASSERT_TRUE(device.has_value());
  auto memory = (*device)->allocate(kPage);
  auto work = (*device)->create_stream(StreamRole::kHostToDevice);
  const Bytes data(kPage);
  Bytes back(kPage);
  std::promise<Result<>> told;
  ASSERT_TRUE((*work)->copy_to_device({.memory = memory->get(), .bytes = kPage}, data));
  ASSERT_TRUE((*work)->copy_to_host(back, {.memory = memory->get(), .bytes = kPage}));
  ASSERT_TRUE((*work)->notify([&](const Result<>& r) { told.set_value(r); }));
  const auto result = told.get_future().get();
  ASSERT_FALSE(result);
  expect(result.error(), ErrorCode::kInvalidInput, "H2D stream: a copy to the GPU");
  EXPECT_FALSE((*work)->status());
  EXPECT_FALSE(drained(**device, **work));
}

TEST_F(CudaFaults, AKernelThatDoesNotStartIsAnErrorAndItsSumsAreNotRead) {
  auto device = open();
  ASSERT_TRUE(device.has_value());
  auto memory = (*device)->allocate(kPage);
  auto work = (*device)->create_stream(StreamRole::kReload);
  cuda_.cuLaunchKernel = [](CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                            unsigned int, unsigned int, unsigned int, CUstream, void**,
                            void**) { return CUDA_ERROR_LAUNCH_FAILED; };
  const auto another = (*device)->create_stream(StreamRole::kBroadcast);
  ASSERT_FALSE(another) << "a stream launches the kernel once when it is made";
  expect(another.error(), ErrorCode::kIo, "CUDA_ERROR_LAUNCH_FAILED");
  const Piece piece{
      .from = memory->get(), .row_bytes = kPage, .sum = 0, .place = {.tensor_bytes = kPage}};
  const SplitSum unread{.words = {.product = 7, .sum = 8}, .edges = {}};
  std::vector<SplitSum> sums(1, unread);
  ASSERT_TRUE((*work)->copy_pieces(std::span(&piece, 1), sums));
  const auto result = drained(**device, **work);
  ASSERT_FALSE(result);
  expect(result.error(), ErrorCode::kIo, "the kernel of a batch: CUDA_ERROR_LAUNCH_FAILED");
  EXPECT_EQ(sums[0], unread);
}

// A fault of a kernel or of the hardware comes with a later call, and with every one after it.
TEST_F(CudaFaults, AFaultOfTheGpuSticksToTheStream) {
  cuda_.cuStreamQuery = [](CUstream) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  auto device = open();
  ASSERT_TRUE(device.has_value());
  auto work = (*device)->create_stream(StreamRole::kReload);
  for (int turn = 0; turn < 3; ++turn) {
    const auto result = drained(**device, **work);
    ASSERT_FALSE(result);
    expect(result.error(), ErrorCode::kIo, "CUDA_ERROR_ILLEGAL_ADDRESS");
  }
  expect((*work)->status().error(), ErrorCode::kIo, "reload stream: work of the GPU failed");
}

TEST_F(CudaFaults, WorkThatDoesNotEndIsGivenUpAtItsLimit) {
  cuda_.cuStreamQuery = [](CUstream) {
    ++calls;
    return CUDA_ERROR_NOT_READY;
  };
  auto device = open(std::chrono::milliseconds(20));
  ASSERT_TRUE(device.has_value());
  auto memory = (*device)->allocate(kPage);
  auto work = (*device)->create_stream(StreamRole::kBroadcast);
  const Bytes data(kPage);
  ASSERT_TRUE((*work)->copy_to_device({.memory = memory->get(), .bytes = kPage}, data));
  const auto result = drained(**device, **work);
  ASSERT_FALSE(result);
  expect(result.error(), ErrorCode::kDeadline, "has not completed its work");
  const int asked = calls;
  EXPECT_GT(asked, 0);
  EXPECT_FALSE(drained(**device, **work));
  EXPECT_EQ(calls, asked) << "what was given up is not waited for again";
  // Nothing is released any more, because the driver would wait for the work.
  cuda_.cuMemFree = [](CUdeviceptr) {
    ++undone;
    return CUDA_SUCCESS;
  };
  cuda_.cuMemUnmap = [](CUdeviceptr, std::size_t) {
    ++undone;
    return CUDA_SUCCESS;
  };
  cuda_.cuMemRelease = [](CUmemGenericAllocationHandle) {
    ++undone;
    return CUDA_SUCCESS;
  };
  cuda_.cuStreamDestroy = [](CUstream) {
    ++undone;
    return CUDA_SUCCESS;
  };
  cuda_.cuDevicePrimaryCtxRelease = [](CUdevice) {
    ++undone;
    return CUDA_SUCCESS;
  };
  const auto another = open();
  ASSERT_FALSE(another);
  expect(another.error(), ErrorCode::kRefused,
         "is no longer used by this process, because the GPU did not complete its work within");
  work->reset();
  memory->reset();
  device->reset();
  EXPECT_EQ(undone, 0);
}

TEST_F(CudaFaults, WhatCannotBeSharedIsNotExported) {
  auto device = open();
  ASSERT_TRUE(device.has_value());
  auto memory = (*device)->allocate(kPage);
  cuda_.cuMemExportToShareableHandle = [](void*, CUmemGenericAllocationHandle,
                                          CUmemAllocationHandleType,
                                          unsigned long long) { return CUDA_ERROR_NOT_SUPPORTED; };
  const auto handle = (*memory)->export_handle();
  ASSERT_FALSE(handle);
  expect(handle.error(), ErrorCode::kRefused, "cannot be shared with other processes");
  expect(handle.error(), ErrorCode::kRefused, "cuMemExportToShareableHandle");
}

TEST_F(CudaFaults, AGpuThatCannotShareMemoryIsRefused) {
  for (const auto missing : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    static std::atomic<int> lacks = 0;
    lacks = missing;
    cuda_.cuDeviceGetAttribute = [](int* value, CUdevice_attribute which, CUdevice device) {
      if (which != lacks) return real->cuDeviceGetAttribute(value, which, device);
      *value = 0;
      return CUDA_SUCCESS;
    };
    const auto device = open();
    ASSERT_FALSE(device);
    expect(device.error(), ErrorCode::kRefused, "GPU 0 (Emulated GPU): it cannot share memory");
  }
}

TEST_F(CudaFaults, AGpuWithOtherBlocksThanWePlanWithIsRefused) {
  cuda_.cuMemGetAllocationGranularity = [](std::size_t* bytes, const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
    *bytes = 2 * kGpuBlockBytes;
    return CUDA_SUCCESS;
  };
  const auto device = open();
  ASSERT_FALSE(device);
  expect(device.error(), ErrorCode::kRefused, "blocks of 4194304 bytes, but wsync plans with 2097");
}

// The driver's own switch for peers (cuCtxEnablePeerAccess) has no effect on this memory.
TEST_F(CudaFaults, PeersThatAreOpenHaveAccessToNewMemory) {
  static std::vector<int> devices;
  devices.clear();
  cuda_.cuMemSetAccess = [](CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                            std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      devices.push_back(access[i].location.id);
      undone += access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? 0 : 1;
    }
    return real->cuMemSetAccess(address, bytes, access, count);
  };
  auto first = open();
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE((*first)->allocate(kPage).has_value());
  EXPECT_EQ(devices, std::vector{0});
  {
    const auto second = make_cuda_device(cuda_, {.kind = DeviceKind::kCuda, .gpu = 1});
    ASSERT_TRUE(second.has_value()) << second.error().message();
    devices.clear();
    EXPECT_TRUE((*first)->allocate(kPage).has_value());
    EXPECT_EQ(devices, (std::vector{0, 1}));
    devices.clear();
    EXPECT_TRUE((*second)->allocate(kPage).has_value());
    EXPECT_EQ(devices, (std::vector{1, 0}));
  }
  devices.clear();
  EXPECT_TRUE((*first)->allocate(kPage).has_value());
  EXPECT_EQ(devices, std::vector{0}) << "the other one is closed";
  EXPECT_EQ(undone, 0);
}

// Whatever step fails, what the steps before it made is given back: the emulated driver reports
// what is left at the end, and the free memory is what it was.
TEST_F(CudaFaults, AStepThatFailsUndoesTheStepsBeforeIt) {
  auto device = open();
  ASSERT_TRUE(device.has_value());
  const auto free = (*device)->memory_info()->free_bytes;
  const auto failed = [&](std::string_view step) {
    const auto memory = (*device)->allocate(kPage);
    ASSERT_FALSE(memory) << step;
    expect(memory.error(), ErrorCode::kIo, step);
    EXPECT_EQ((*device)->memory_info()->free_bytes, free) << step;
  };
  cuda_.cuMemAddressReserve = [](CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr,
                                 unsigned long long) { return CUDA_ERROR_UNKNOWN; };
  failed("cuMemAddressReserve: CUDA_ERROR_UNKNOWN");
  cuda_.cuMemAddressReserve = real->cuMemAddressReserve;
  cuda_.cuMemMap = [](CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                      unsigned long long) { return CUDA_ERROR_UNKNOWN; };
  failed("cuMemMap: CUDA_ERROR_UNKNOWN");
  cuda_.cuMemMap = real->cuMemMap;
  cuda_.cuMemSetAccess = [](CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
    return CUDA_ERROR_UNKNOWN;
  };
  failed("cuMemSetAccess: CUDA_ERROR_UNKNOWN");
  cuda_.cuMemSetAccess = real->cuMemSetAccess;
  EXPECT_TRUE((*device)->allocate(kPage).has_value());
}

// The same for memory of another process, which it seems to be when its number is changed.
TEST_F(CudaFaults, AnImportThatFailsLeavesNothing) {
  auto device = open();
  ASSERT_TRUE(device.has_value());
  const auto own = (*device)->allocate(kPage);
  const auto other_process = [&] {
    auto handle = *(*own)->export_handle();
    auto told = *decode_description(handle.opaque);
    told.process ^= 1;
    handle.opaque = encode(told);
    return handle;
  };
  EXPECT_TRUE((*device)->import_memory(other_process()).has_value());
  cuda_.cuMemImportFromShareableHandle = [](CUmemGenericAllocationHandle*, void*,
                                            CUmemAllocationHandleType) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  auto imported = (*device)->import_memory(other_process());
  ASSERT_FALSE(imported);
  expect(imported.error(), ErrorCode::kRefused, "cannot be mapped: cuMemImportFromShareableHandle");
  cuda_.cuMemImportFromShareableHandle = real->cuMemImportFromShareableHandle;
  cuda_.cuMemSetAccess = [](CUdeviceptr, std::size_t, const CUmemAccessDesc* access, std::size_t) {
    undone += access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? 1 : 100;
    return CUDA_ERROR_UNKNOWN;
  };
  imported = (*device)->import_memory(other_process());
  ASSERT_FALSE(imported);
  expect(imported.error(), ErrorCode::kIo, "cannot be mapped: cuMemSetAccess");
  EXPECT_EQ(undone, 1) << "for reading only";
}

// ---- registered host memory ----

class CudaRegistration : public CudaFaults {
 protected:
  void SetUp() override {
    CudaFaults::SetUp();
    pages_ = static_cast<std::byte*>(std::aligned_alloc(kPage, 8 * kPage));
    cuda_.cuMemHostUnregister = [](void* at) {
      ++undone;
      return real->cuMemHostUnregister(at);
    };
    cuda_.cuMemHostRegister = [](void* at, std::size_t bytes, unsigned int flags) {
      ++calls;
      return real->cuMemHostRegister(at, bytes, flags);
    };
  }
  void TearDown() override {
    std::free(pages_);
    CudaFaults::TearDown();
  }
  std::shared_ptr<const Gpu> gpu() { return *Gpu::open(cuda_, 0); }
  std::span<const std::byte> range(std::size_t from, std::size_t bytes) {
    return {pages_ + from, bytes};
  }

  std::byte* pages_ = nullptr;
};

TEST_F(CudaRegistration, ARangeIsPinnedInChunksOfWholePages) {
  const auto all = Registration::make(*gpu(), range(10, 5 * kPage), 2 * kPage);
  EXPECT_TRUE(all->registered()) << all->fallback();
  EXPECT_EQ(calls, 3) << "pages 0 to 5, two at a time";
  EXPECT_EQ(first_part(pages_ + 10, 8 * kPage - 10).bytes, 2 * kPage - 10);
  EXPECT_EQ(first_part(pages_ + 2 * kPage, 100).bytes, 100U);
  EXPECT_EQ(first_part(pages_ + 6 * kPage, 2 * kPage).bytes, 2 * kPage) << "behind what is pinned";
}

TEST_F(CudaRegistration, SeveralUsersOfARangePinItOnce) {
  auto first = Registration::make(*gpu(), range(0, 4 * kPage), 2 * kPage);
  auto second = Registration::make(*gpu(), range(0, 4 * kPage), 2 * kPage);
  EXPECT_TRUE(first->registered() && second->registered());
  EXPECT_EQ(calls, 2);
  first.reset();
  EXPECT_EQ(undone, 0);
  EXPECT_EQ(first_part(pages_, 8 * kPage).bytes, 2 * kPage);
  second.reset();
  EXPECT_EQ(undone, 2);
  EXPECT_EQ(first_part(pages_, 8 * kPage).bytes, 8 * kPage);
}

TEST_F(CudaRegistration, AFailureHalfWayIsUndoneAndSaysWhatItCosts) {
  cuda_.cuMemHostRegister = [](void* at, std::size_t bytes, unsigned int flags) {
    return ++calls == 3 ? CUDA_ERROR_OUT_OF_MEMORY : real->cuMemHostRegister(at, bytes, flags);
  };
  const auto all = Registration::make(*gpu(), range(0, 8 * kPage), 2 * kPage);
  EXPECT_FALSE(all->registered());
  EXPECT_EQ(undone, 2);
  EXPECT_EQ(calls, 3);
  EXPECT_NE(all->fallback().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string_view::npos)
      << all->fallback();
  EXPECT_NE(all->fallback().find("costs the processors one more pass over host memory"),
            std::string_view::npos);
  EXPECT_EQ(first_part(pages_, 8 * kPage).bytes, 8 * kPage);
}

TEST_F(CudaRegistration, RangesThatOverlapInPartFallBack) {
  const auto first = Registration::make(*gpu(), range(0, 4 * kPage));
  cuda_.cuMemHostRegister = [](void*, std::size_t, unsigned int) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  };
  const auto second = Registration::make(*gpu(), range(2 * kPage, 4 * kPage));
  EXPECT_TRUE(first->registered());
  EXPECT_FALSE(second->registered());
  const auto inside = Registration::make(*gpu(), range(kPage, kPage));
  EXPECT_TRUE(inside->registered()) << "what is pinned already needs no call";
}

TEST_F(CudaRegistration, MemoryMappedReadOnlyNeedsAGpuThatReadsIt) {
  auto* mapped = static_cast<std::byte*>(
      ::mmap(nullptr, 2 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(mapped), MAP_FAILED);
  static std::atomic<unsigned int> seen = 0;
  cuda_.cuMemHostRegister = [](void* at, std::size_t bytes, unsigned int flags) {
    ++calls;
    seen = flags;
    return real->cuMemHostRegister(at, bytes, flags);
  };
  {
    const auto pinned = Registration::make(*gpu(), {mapped, 2 * kPage});
    EXPECT_TRUE(pinned->registered()) << pinned->fallback();
    EXPECT_EQ(seen, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY);
  }
  cuda_.cuDeviceGetAttribute = [](int* value, CUdevice_attribute which, CUdevice device) {
    if (which == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
      return CUDA_ERROR_INVALID_VALUE;  // an older driver does not know it
    return real->cuDeviceGetAttribute(value, which, device);
  };
  const auto refused = Registration::make(*gpu(), {mapped, 2 * kPage});
  EXPECT_FALSE(refused->registered());
  EXPECT_NE(refused->fallback().find("mapped read-only"), std::string_view::npos);
  EXPECT_EQ(calls, 1);
  ::munmap(mapped, 2 * kPage);
}

TEST(CudaMaps, ReadOnlyMappingsAreFoundInTheText) {
  const std::string_view maps =
      "1000-3000 rw-p 00000000 00:00 0 \n"
      "3000-4000 r--s 00000000 00:01 77 /memfd:x (deleted)\n"
      "nonsense\n"
      "5000-zz rw-p\n"
      "4000-8000 rw-s 00001000 00:01 77 /memfd:x (deleted)";
  const auto at = [](std::uintptr_t begin, std::size_t bytes) {
    return std::span(reinterpret_cast<const std::byte*>(begin), bytes);
  };
  EXPECT_TRUE(writable_in(maps, at(0x1000, 0x2000)));
  EXPECT_FALSE(writable_in(maps, at(0x1000, 0x2001)));
  EXPECT_FALSE(writable_in(maps, at(0x3800, 16)));
  EXPECT_TRUE(writable_in(maps, at(0x4000, 0x4000)));
  EXPECT_TRUE(writable_in(maps, at(0x9000, 16))) << "not said";
  EXPECT_TRUE(writable_in("", at(0x1000, 16)));
}

}  // namespace
}  // namespace wsync::device::cuda
