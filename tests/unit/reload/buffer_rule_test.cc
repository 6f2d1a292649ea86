#include "inference_side/reload/buffer_rule.h"

#include <gtest/gtest.h>
#include <vector>

#include "inference_side/reload/buffer_limits.h"
#include "shared/base/units.h"

namespace wsync::reload {
namespace {

TEST(BufferRule, GpusThatAreSharedCountForEachOfTheirDevices) {
  const auto kGpu = DeviceKind::kCuda;
  const auto auto_of = [](std::vector<BufferRoom> rooms) {
    return choose_buffer_bytes(DeviceKind::kCuda, rooms, 0);
  };
  const BufferRoom large{.name = "GPU 0", .devices = 1, .free_bytes = 80 * limits::kGiB};
  const BufferRoom shared{.name = "GPU 1", .devices = 4, .free_bytes = 4 * limits::kGiB};
  EXPECT_EQ(auto_of({large}).value(), limits::kGpuBufferBytesDefault);
  // 90 % of 4 GiB, for 12 buffers: 307.2 MiB, in blocks of 2 MiB.
  EXPECT_EQ(auto_of({large, shared}).value(), 306 * limits::kMiB);
  EXPECT_LE(buffers_take(kGpu, 4, 5, 306 * limits::kMiB), shared.free_bytes / 10 * 9);
  EXPECT_GT(buffers_take(kGpu, 4, 5, 308 * limits::kMiB), shared.free_bytes / 10 * 9);
  // A block is the least that the driver hands out.
  EXPECT_EQ(buffers_take(kGpu, 2, 2, 3 * limits::kMiB), 24 * limits::kMiB);
  EXPECT_EQ(buffers_take(DeviceKind::kSeparate, 2, 2, 3 * limits::kMiB), 18 * limits::kMiB);
  // A device that is alone has no H2D buffer.
  EXPECT_EQ(buffers_take(kGpu, 1, 1, 3 * limits::kMiB), 8 * limits::kMiB);
}

TEST(BufferRule, WhatIsReservedIsLeft) {
  const auto kGpu = DeviceKind::kCuda;
  EXPECT_EQ(streams_take(kGpu, 2, false), 2 * kTablesBytes);
  EXPECT_EQ(streams_take(kGpu, 1, true), kTablesBytes + kNcclBytes);
  EXPECT_EQ(streams_take(DeviceKind::kSeparate, 4, false), 0U);
  BufferRoom room{.name = "GPU 0",
                  .devices = 1,
                  .free_bytes = 1000 * limits::kMiB,
                  .reserved_bytes = streams_take(kGpu, 1, true)};
  // 900 MiB less 388, for 2 buffers.
  EXPECT_EQ(choose_buffer_bytes(kGpu, {&room, 1}, 0).value(), 256 * limits::kMiB);
  const auto too_much = choose_buffer_bytes(kGpu, {&room, 1}, 258 * limits::kMiB);
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().message(),
            "GPU 0: 2 buffers of 258 MiB do not fit beside the 388 MiB that streams, "
            "communicators and contexts need: 1000 MiB are free, of which 90 % may be used; set "
            "devices.buffer_bytes to at most 256MiB");
  room.reserved_bytes = room.free_bytes;
  EXPECT_EQ(choose_buffer_bytes(kGpu, {&room, 1}, 0).error().code(), ErrorCode::kResourceExhausted);
}

TEST(BufferRule, WhatDoesNotFitIsRefusedWithWhatIsFreeAndWhatToSet) {
  const BufferRoom room{.name = "GPU 0", .devices = 2, .free_bytes = 100 * limits::kMiB};
  const auto kGpu = DeviceKind::kCuda;
  EXPECT_EQ(choose_buffer_bytes(kGpu, {&room, 1}, 0).value(), 14 * limits::kMiB);
  EXPECT_EQ(choose_buffer_bytes(kGpu, {&room, 1}, 13 * limits::kMiB).value(), 13 * limits::kMiB);
  const auto too_much = choose_buffer_bytes(kGpu, {&room, 1}, 64 * limits::kMiB);
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(too_much.error().message(),
            "GPU 0: 6 buffers of 64.0 MiB do not fit: 100 MiB are free, of which 90 % may be "
            "used; set devices.buffer_bytes to at most 14MiB");
  const BufferRoom full{.name = "GPU 0", .devices = 1, .free_bytes = 2 * limits::kMiB};
  const auto none = choose_buffer_bytes(kGpu, {&full, 1}, 0);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message(),
            "GPU 0: 2 buffers of 1.00 MiB do not fit: 2.00 MiB are free, of which 90 % may be "
            "used; free memory there, for example by giving the engines less");
  EXPECT_EQ(choose_buffer_bytes(DeviceKind::kSeparate, {&full, 1}, 0).error().code(),
            ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace wsync::reload
