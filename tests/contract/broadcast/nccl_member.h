// One rank of an NCCL group on a GPU, for tests of faults and of several processes.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <utility>

#include "shared/broadcast/communicator.h"
#include "tests/contract/device/helpers.h"

namespace wsync::collective {

inline constexpr std::uint64_t kMemberBytes = 3 * 1024 * 1024 + 5;

struct NcclMember {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Memory> memory;
  std::unique_ptr<device::Event> done;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<device::Stream> stream;  // destroyed first

  explicit NcclMember(std::uint32_t gpu)
      : device(std::move(*device::make_device(
            {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{gpu}, .gpu = gpu}))),
        memory(std::move(*device->allocate(kMemberBytes))),
        done(std::move(*device->create_event())),
        stream(std::move(*device->create_stream(device::StreamRole::kBroadcast))) {}

  // Leaves its group; the memory stays.
  void leave() {
    stream.reset();
    communicator.reset();
    stream = std::move(*device->create_stream(device::StreamRole::kBroadcast));
  }
  void write(const Bytes& data) {
    ASSERT_TRUE(stream->copy_to_device(device::whole(*memory), data));
    ASSERT_TRUE(stream->record(*done));
    ASSERT_TRUE(done->wait(device::far_deadline()));
  }
  [[nodiscard]] Bytes read() {
    Bytes back(kMemberBytes);
    EXPECT_TRUE(stream->copy_to_host(back, device::whole(*memory)));
    EXPECT_TRUE(stream->record(*done));
    EXPECT_TRUE(done->wait(device::far_deadline()));
    return back;
  }
  // In place.
  void begin(std::uint32_t root, TimePoint deadline = device::far_deadline()) {
    const auto region = device::whole(*memory);
    ASSERT_TRUE(communicator->broadcast(
        {.source = region, .destination = region, .root = Rank{root}, .deadline = deadline},
        *stream));
    ASSERT_TRUE(stream->record(*done));
  }
  [[nodiscard]] Result<> end() const { return done->wait(device::far_deadline()); }
};

}  // namespace wsync::collective
