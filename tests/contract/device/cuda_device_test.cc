// The suite on GPUs, and what is CUDA's own. Run twice: on the emulated driver, which is strict and
// writes down every misuse, and on a real GPU where there is one (label gpu).
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "shared/base/units.h"
#include "tests/contract/device/child_process.h"
#include "tests/contract/device/device_suite.h"
#include "tests/contract/device/pieces_suite.h"
#include "tests/contract/device/words_suite.h"
#include "tests/support/bytes.h"
#include "tests/support/misuse_report.h"

namespace wsync::device {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, ::testing::Values(DeviceKind::kCuda), kind_of);
INSTANTIATE_TEST_SUITE_P(Cuda, PieceContract, ::testing::Values(DeviceKind::kCuda), kind_of);
INSTANTIATE_TEST_SUITE_P(Cuda, WordContract, ::testing::Values(DeviceKind::kCuda), kind_of);

[[maybe_unused]] const auto* const kNoMisuse =
    ::testing::AddGlobalTestEnvironment(new MisuseReport);

constexpr std::size_t kExported = 4096;  // of DISABLED_ExportingProcess
constexpr std::string_view kWithout = "came without its file descriptor";

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class CudaDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu_for_tests(); !why.empty()) GTEST_SKIP() << why;
    device_ = open(0);
    ASSERT_NE(device_, nullptr);
  }
  static std::unique_ptr<Device> open(std::uint32_t gpu) {
    auto made = make_device({.kind = DeviceKind::kCuda, .index = DeviceIndex{gpu}, .gpu = gpu});
    EXPECT_TRUE(made.has_value()) << made.error().message();
    return made ? std::move(*made) : nullptr;
  }
  static std::size_t gpus() { return (*cuda_backend())->facts()->gpus.size(); }
  std::unique_ptr<Memory> filled(const Bytes& data) {
    auto memory = device_->allocate(data.size());
    EXPECT_TRUE(memory.has_value()) << memory.error().message();
    auto work = device_->create_stream(StreamRole::kHostToDevice);
    EXPECT_TRUE((*work)->copy_to_device(whole(**memory), data));
    EXPECT_TRUE(drained(*device_, **work));
    return std::move(*memory);
  }
  static Result<> drained(Device& device, Stream& work) {
    auto end = device.create_event();
    WSYNC_TRY(work.record(**end));
    return (*end)->wait(far_deadline());
  }
  static Result<Bytes> read(Device& device, Memory& memory) {
    auto work = device.create_stream(StreamRole::kReload);
    if (!work) return fail(work.error());
    Bytes back(memory.bytes());
    WSYNC_TRY((*work)->copy_to_host(back, whole(memory)));
    WSYNC_TRY(drained(device, **work));
    return back;
  }

  std::unique_ptr<Device> device_;
};

TEST_F(CudaDevice, AGpuThatIsNotThereIsRefused) {
  const auto none = make_device({.kind = DeviceKind::kCuda, .gpu = 99});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kRefused);
  EXPECT_NE(none.error().message().find("GPU 99 does not exist: this process sees"),
            std::string::npos)
      << none.error().message();
}

TEST_F(CudaDevice, FactsAreThoseOfTheDevice) {
  const auto facts = (*cuda_backend())->facts();
  ASSERT_TRUE(facts.has_value()) << facts.error().message();
  EXPECT_GE(facts->driver_cuda, 11'000U);
  EXPECT_TRUE(facts->library.ends_with("libwsync_cuda.so")) << facts->library;
  ASSERT_FALSE(facts->gpus.empty());
  const auto& gpu = facts->gpus[0];
  EXPECT_EQ(gpu.uuid, device_->uuid());
  EXPECT_EQ(gpu.uuid.size(), 40U) << gpu.uuid;
  EXPECT_EQ(device_->name(), "GPU 0 (" + gpu.name + ")");
  EXPECT_GE(gpu.compute_major, 8U);
  EXPECT_EQ(gpu.pci.size(), 12U) << gpu.pci;
  EXPECT_GE(gpu.total_bytes, device_->memory_info()->free_bytes);
}

TEST_F(CudaDevice, LogicalDevicesOnOneGpuReachEachOthersMemory) {
  const auto data = pattern(limits::kMiB, 1);
  auto first = filled(data);
  auto other = open(0);
  EXPECT_EQ(other->uuid(), device_->uuid());
  auto second = other->allocate(data.size());
  ASSERT_TRUE(second.has_value());
  auto work = other->create_stream(StreamRole::kBroadcast);
  ASSERT_TRUE((*work)->copy_on_device(whole(**second), whole(*first)));
  ASSERT_TRUE(drained(*other, **work));
  EXPECT_EQ(read(*other, **second), data);
}

TEST_F(CudaDevice, CopiesReachTheMemoryOfAnotherGpu) {
  if (gpus() < 2) GTEST_SKIP() << "this machine has one GPU";
  const auto data = pattern(limits::kMiB, 2);
  auto first = filled(data);
  auto other = open(1);
  ASSERT_NE(other->uuid(), device_->uuid());
  auto second = other->allocate(data.size());
  ASSERT_TRUE(second.has_value()) << second.error().message();
  auto work = other->create_stream(StreamRole::kBroadcast);
  ASSERT_TRUE((*work)->copy_on_device(whole(**second), whole(*first)));
  ASSERT_TRUE(drained(*other, **work));
  EXPECT_EQ(read(*other, **second), data);

  const auto handle = other->import_memory(std::move(*first->export_handle()));
  ASSERT_FALSE(handle);
  EXPECT_EQ(handle.error().code(), ErrorCode::kInvalidInput);
  EXPECT_NE(handle.error().message().find(device_->uuid()), std::string::npos);
  EXPECT_NE(handle.error().message().find(other->uuid()), std::string::npos);
}

// A range that is pinned in part cannot be pinned as a whole. What is not pinned goes through
// pinned buffers.
TEST_F(CudaDevice, BytesThatCannotBePinnedArriveAllTheSame) {
  constexpr std::size_t kBytes = 150 * limits::kMiB + 4097;  // more than the buffers have
  Bytes data = pattern(kBytes, 9);
  const auto inside = std::span(data).subspan(kBytes / 2, 100);
  const auto part = device_->register_host(inside);
  ASSERT_TRUE((*part)->registered()) << (*part)->fallback();
  const auto all = device_->register_host(data);
  ASSERT_TRUE(all.has_value());
  ASSERT_FALSE((*all)->registered());
  EXPECT_NE((*all)->fallback().find("goes through wsync's own pinned buffers"), std::string::npos)
      << (*all)->fallback();
  auto memory = std::move(*device_->allocate(kBytes));
  auto work = device_->create_stream(StreamRole::kHostToDevice);
  for (const std::size_t skipped : {0U, 3U}) {
    const auto source = std::span(data).subspan(skipped);
    Bytes back(source.size());
    ASSERT_TRUE((*work)->copy_to_device(
        {.memory = memory.get(), .offset = skipped, .bytes = source.size()}, source));
    ASSERT_TRUE((*work)->copy_to_host(
        back, {.memory = memory.get(), .offset = skipped, .bytes = source.size()}));
    const auto done = drained(*device_, **work);
    ASSERT_TRUE(done.has_value()) << done.error().message();
    EXPECT_TRUE(same_bytes(back, source));
    std::ranges::copy(pattern(kBytes, 10), data.begin());  // where the registration is
  }
}

TEST_F(CudaDevice, CopiesCrossTheEndsOfRegistrations) {
  // Three pages registered apart, with one between them that is not.
  const auto data = pattern(5 * 4096, 3);
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(4096, data.size()));
  const std::unique_ptr<std::byte, decltype(&std::free)> owner(pages, &std::free);
  std::ranges::copy(data, pages);
  auto memory = device_->allocate(data.size());
  auto work = device_->create_stream(StreamRole::kHostToDevice);
  {
    const auto first = device_->register_host({pages, 4096});
    const auto second = device_->register_host({pages + 4096, 4096});
    const auto fourth = device_->register_host({pages + std::size_t{3} * 4096, 4096});
    const auto again = device_->register_host({pages + std::size_t{3} * 4096, 4096});
    for (const auto* one : {&first, &second, &fourth, &again})
      EXPECT_TRUE((**one)->registered()) << (**one)->fallback();
    ASSERT_TRUE((*work)->copy_to_device(whole(**memory), {pages, data.size()}));
    ASSERT_TRUE(drained(*device_, **work));
    std::ranges::fill_n(pages, static_cast<std::ptrdiff_t>(data.size()), std::byte{0});
    ASSERT_TRUE((*work)->copy_to_host({pages, data.size()}, whole(**memory)));
    ASSERT_TRUE(drained(*device_, **work));
    EXPECT_TRUE(same_bytes(std::span(pages, data.size()), data));
  }
  EXPECT_EQ(read(*device_, **memory), data);
}

TEST_F(CudaDevice, WhatIsNotItsMemoryIsNotBorrowed) {
  auto memory = device_->allocate(4 * limits::kMiB);
  ASSERT_TRUE(memory.has_value());
  const auto refused = [&](std::span<std::byte> range) {
    const auto borrowed = device_->borrow(range);
    return !borrowed && borrowed.error().code() == ErrorCode::kInvalidInput;
  };
  auto* at = (*memory)->address();
  EXPECT_TRUE(device_->borrow({at, 4 * limits::kMiB}).has_value());
  EXPECT_TRUE(device_->borrow({at + 3, 1}).has_value());
  EXPECT_TRUE(refused({at, std::size_t{1} << 46U}));
  EXPECT_TRUE(refused({at, 0}));
  EXPECT_TRUE(refused({at, ~std::size_t{0} - 8}));
  EXPECT_TRUE(refused({static_cast<std::byte*>(nullptr), 16}));
  Bytes host(4096);
  EXPECT_TRUE(refused(host));
  if (gpus() < 2) return;
  auto other = open(1);
  const auto borrowed = other->borrow({at, 4096});
  ASSERT_FALSE(borrowed);
  EXPECT_NE(borrowed.error().message().find("is on GPU 0"), std::string::npos)
      << borrowed.error().message();
}

TEST_F(CudaDevice, HandlesOfFreedMemoryAndBrokenOnesAreRefused) {
  auto own = device_->allocate(4096);
  auto handle = *(*own)->export_handle();
  for (std::size_t n = 0; n < handle.opaque.size(); ++n) {
    Bytes cut(handle.opaque.begin(), handle.opaque.begin() + static_cast<std::ptrdiff_t>(n));
    const auto imported = device_->import_memory({.kind = DeviceKind::kCuda,
                                                  .bytes = 4096,
                                                  .fd = std::move((*own)->export_handle()->fd),
                                                  .opaque = cut});
    ASSERT_FALSE(imported) << n;
    EXPECT_EQ(imported.error().code(), ErrorCode::kInvalidInput) << n;
  }
  own->reset();
  const auto stale = device_->import_memory(std::move(handle));
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::kPeerLost);
}

TEST_F(CudaDevice, DescriptorsAreClosedByExecAndDoNotPileUp) {
  auto own = device_->allocate(4096);
  const auto before = open_descriptors();
  {
    std::vector<MemoryHandle> handles;
    for (int i = 0; i < 3; ++i) {
      handles.push_back(std::move(*(*own)->export_handle()));
      ASSERT_TRUE(handles.back().fd.valid());
      EXPECT_NE(::fcntl(handles.back().fd.get(), F_GETFD) & FD_CLOEXEC, 0);
    }
    EXPECT_EQ(open_descriptors(), before + handles.size());
    // In this process, an import is the allocation itself and drops the descriptor.
    for (auto& handle : handles) {
      const auto imported = device_->import_memory(std::move(handle));
      ASSERT_TRUE(imported.has_value()) << imported.error().message();
      EXPECT_EQ((*imported)->address(), (*own)->address());
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

// ---- two processes ----

// What the importing process does: reads a handle, and answers every 'r' with what it reads. 'w'
// tries to write there.
TEST_F(CudaDevice, DISABLED_ImportingProcess) {
  MemoryHandle handle;
  ASSERT_TRUE(receive_handle(kChildSocket, handle));
  {
    const auto first = filled(pattern(4096, 1));  // what the driver opens at its first use
    ASSERT_TRUE(read(*device_, *first).has_value());
  }
  const auto before = open_descriptors();
  auto imported = device_->import_memory(std::move(handle));
  ASSERT_TRUE(imported.has_value()) << imported.error().message();
  EXPECT_FALSE((*imported)->writable());
  auto work = device_->create_stream(StreamRole::kHostToDevice);
  EXPECT_EQ((*work)->copy_to_device(whole(**imported), Bytes((*imported)->bytes())).error().code(),
            ErrorCode::kInvalidInput);
  for (char order = 0; receive_value(kChildSocket, order) && order == 'r';) {
    const auto found = read(*device_, **imported);
    ASSERT_TRUE(found.has_value()) << found.error().message();
    ASSERT_TRUE(send_value(kChildSocket, digest_of(*found)));
  }
  imported->reset();
  EXPECT_LT(open_descriptors(), before) << "the descriptor goes with the import";
}

// Exports, tells, and waits to be killed.
TEST_F(CudaDevice, DISABLED_ExportingProcess) {
  auto own = filled(pattern(kExported, 1));
  const auto handle = own->export_handle();
  ASSERT_TRUE(handle.has_value()) << handle.error().message();
  ASSERT_TRUE(send_handle(kChildSocket, *handle));
  char never = 0;
  EXPECT_FALSE(receive_value(kChildSocket, never));
}

class CudaProcesses : public CudaDevice {
 protected:
  static void notify(ChildProcess& child, const Memory& memory) {
    const auto handle = memory.export_handle();
    ASSERT_TRUE(handle.has_value()) << handle.error().message();
    ASSERT_TRUE(send_handle(child.socket(), *handle));
  }
  static void expect_read(ChildProcess& child, const Bytes& data) {
    Digest found;
    ASSERT_TRUE(send_value(child.socket(), 'r') && receive_value(child.socket(), found));
    EXPECT_EQ(found, digest_of(data));
  }
  // What a process exports that is dead by then.
  static MemoryHandle of_the_dead() {
    ChildProcess exporter("CudaDevice.DISABLED_ExportingProcess");
    MemoryHandle handle;
    EXPECT_TRUE(receive_handle(exporter.socket(), handle));
    EXPECT_TRUE(WIFSIGNALED(exporter.end(SIGKILL)));
    return handle;
  }
};

TEST_F(CudaProcesses, AnotherProcessReadsWhatItIsToldOf) {
  auto data = pattern(3 * limits::kMiB + 40, 1);
  auto own = filled(data);
  ChildProcess importer("CudaDevice.DISABLED_ImportingProcess");
  notify(importer, *own);
  expect_read(importer, data);
  auto work = device_->create_stream(StreamRole::kHostToDevice);
  for (unsigned round = 2; round < 5; ++round) {  // through the same mapping
    data = pattern(data.size(), round);
    ASSERT_TRUE((*work)->copy_to_device(whole(*own), data));
    ASSERT_TRUE(drained(*device_, **work));
    expect_read(importer, data);
  }
  ASSERT_TRUE(send_value(importer.socket(), 'q'));
  EXPECT_EQ(importer.end(0), 0);
}

TEST_F(CudaProcesses, AnImporterReadsOnAfterTheOwnerHasFreedTheMemory) {
  const auto data = pattern(limits::kMiB, 3);
  auto own = filled(data);
  ChildProcess importer("CudaDevice.DISABLED_ImportingProcess");
  notify(importer, *own);
  expect_read(importer, data);
  own.reset();
  auto other = filled(pattern(limits::kMiB, 4));  // it does not get the same memory
  expect_read(importer, data);
  ASSERT_TRUE(send_value(importer.socket(), 'q'));
  EXPECT_EQ(importer.end(0), 0);
}

TEST_F(CudaProcesses, MemoryOfAKilledImporterIsFreedAndUsedAgain) {
  const auto data = pattern(limits::kMiB, 5);
  auto own = filled(data);
  ChildProcess importer("CudaDevice.DISABLED_ImportingProcess");
  notify(importer, *own);
  expect_read(importer, data);
  EXPECT_TRUE(WIFSIGNALED(importer.end(SIGKILL)));
  EXPECT_EQ(read(*device_, *own), data);
  ChildProcess next("CudaDevice.DISABLED_ImportingProcess");
  notify(next, *own);
  expect_read(next, data);
  EXPECT_TRUE(WIFSIGNALED(next.end(SIGKILL)));
  own.reset();
  EXPECT_TRUE(filled(data) != nullptr);
}

TEST_F(CudaProcesses, MemoryOutlivesAnExporterThatIsKilled) {
  // The tables of a stream stay with the device, and each is a descriptor of the emulated driver.
  EXPECT_EQ(read(*device_, *filled(pattern(4096, 2))), pattern(4096, 2));
  const auto before = open_descriptors();
  auto imported = device_->import_memory(of_the_dead());
  ASSERT_TRUE(imported.has_value()) << imported.error().message();
  EXPECT_EQ(read(*device_, **imported), pattern(kExported, 1));
  imported->reset();
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(filled(pattern(4096, 2)) != nullptr) << "the device is as it was";
}

TEST_F(CudaProcesses, HandlesWithoutADescriptorOfGpuMemoryAreRefused) {
  const auto refused = [this](UniqueFd fd, std::string_view text) {
    auto handle = of_the_dead();
    handle.fd = std::move(fd);
    const auto before = open_descriptors();
    const auto imported = device_->import_memory(std::move(handle));
    ASSERT_FALSE(imported);
    EXPECT_EQ(imported.error().code(), ErrorCode::kInvalidInput);
    EXPECT_NE(imported.error().message().find(text), std::string::npos)
        << imported.error().message();
    EXPECT_EQ(open_descriptors(), before - (text == kWithout ? 0 : 1));
  };
  refused({}, kWithout);
  refused(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "cannot be mapped");
  refused(UniqueFd(::memfd_create("other", MFD_CLOEXEC)), "cannot be mapped");
  EXPECT_TRUE(filled(pattern(4096, 2)) != nullptr) << "the device is as it was";
}

TEST_F(CudaProcesses, MoreBytesThanThereAreAreNotMapped) {
  auto handle = of_the_dead();
  auto large = *(*device_->allocate(8 * limits::kMiB))->export_handle();
  large.fd = std::move(handle.fd);   // as if a sidecar had said too much
  large.opaque[16] ^= std::byte{1};  // of another process
  const auto imported = device_->import_memory(std::move(large));
  ASSERT_FALSE(imported);
  EXPECT_NE(imported.error().message().find("cannot be mapped"), std::string::npos)
      << imported.error().message();
}

}  // namespace
}  // namespace wsync::device
