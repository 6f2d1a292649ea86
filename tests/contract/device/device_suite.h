// What every device backend promises. A backend instantiates the suite with its own factory:
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceContract, testing::Values(DeviceKind::kSeparate));
#pragma once

#include <algorithm>
#include <future>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/device/device.h"
#include "tests/contract/device/helpers.h"

namespace wsync::device {

class DeviceContract : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (const auto why = no_gpu_for_tests(); GetParam() == DeviceKind::kCuda && !why.empty())
      GTEST_SKIP() << why;
    auto made = make_device({.kind = GetParam(), .index = DeviceIndex{1}});
    ASSERT_TRUE(made.has_value()) << made.error().message();
    device_ = std::move(*made);
  }
  std::unique_ptr<Memory> memory(std::uint64_t bytes) {
    auto made = device_->allocate(bytes);
    EXPECT_TRUE(made.has_value()) << made.error().message();
    return std::move(*made);
  }
  std::unique_ptr<Stream> stream(StreamRole role = StreamRole::kHostToDevice) {
    return std::move(*device_->create_stream(role));
  }
  std::unique_ptr<Event> event() { return std::move(*device_->create_event()); }
  // Waits for everything on the stream.
  Result<> drain(Stream& stream) {
    auto end = event();
    WSYNC_TRY(stream.record(*end));
    return end->wait(far_deadline());
  }
  // Work that does not end before the promise is set: closes the stream's gate for what follows.
  static void close_gate(Stream& stream, std::shared_future<void> open) {
    ASSERT_TRUE(stream.notify([open](const Result<>&) { open.wait(); }));
  }

  std::unique_ptr<Device> device_;
};

TEST_P(DeviceContract, SaysWhatItIs) {
  EXPECT_EQ(device_->kind(), GetParam());
  EXPECT_EQ(device_->index(), DeviceIndex{1});
  EXPECT_FALSE(device_->name().empty());
  EXPECT_EQ(device_->uuid().empty(), GetParam() != DeviceKind::kCuda);
  const auto info = device_->memory_info();
  ASSERT_TRUE(info.has_value());
  EXPECT_GT(info->free_bytes, 0U);
  EXPECT_LE(info->free_bytes, info->total_bytes);
}

TEST_P(DeviceContract, BytesGoToTheDeviceAndComeBack) {
  const auto data = pattern(5 * limits::kMiB + 13, 1);
  auto on_device = memory(data.size());
  auto work = stream();
  Bytes back(data.size());
  ASSERT_TRUE(work->copy_to_device(whole(*on_device), data));
  ASSERT_TRUE(work->copy_to_host(back, whole(*on_device)));
  ASSERT_TRUE(drain(*work));
  EXPECT_EQ(back, data);
}

TEST_P(DeviceContract, CopiesReachExactlyTheirRegion) {
  auto on_device = memory(4096);
  auto work = stream();
  const auto base = pattern(4096, 1);
  const auto inner = pattern(100, 2);
  Bytes back(4096);
  ASSERT_TRUE(work->copy_to_device(whole(*on_device), base));
  ASSERT_TRUE(
      work->copy_to_device({.memory = on_device.get(), .offset = 1000, .bytes = 100}, inner));
  ASSERT_TRUE(work->copy_to_host(back, whole(*on_device)));
  ASSERT_TRUE(drain(*work));
  auto expected = base;
  std::copy(inner.begin(), inner.end(), expected.begin() + 1000);
  EXPECT_EQ(back, expected);
}

TEST_P(DeviceContract, CopiesOfRowsReachExactlyThoseRows) {
  // From memory that is registered in chunks, from memory that is not, and from both.
  constexpr std::uint64_t kBytes = 3 * limits::kMiB + 40;
  const auto data = pattern(kBytes, 5);
  const auto base = pattern(kBytes, 6);
  const auto part = device_->register_host(std::span(data).first(kBytes / 2));
  ASSERT_TRUE(part.has_value());
  auto on_device = memory(kBytes);
  auto work = stream();
  Bytes back(kBytes);
  const auto begins = {std::uint64_t{0}, std::uint64_t{kBytes / 4}, std::uint64_t{kBytes / 2 + 7}};
  for (const std::uint64_t begin : begins)
    for (const RowShape rows :
         {RowShape{.row_bytes = 40, .stride = 104}, RowShape{.row_bytes = 4096, .stride = 4096},
          RowShape{.row_bytes = 3000, .stride = 70'001},
          RowShape{.row_bytes = 1, .stride = 900'000}}) {
      const std::uint64_t count = (kBytes - begin - rows.row_bytes) / rows.stride + 1;
      const std::uint64_t bytes = (count - 1) * rows.stride + rows.row_bytes;
      ASSERT_TRUE(work->copy_to_device(whole(*on_device), base));
      ASSERT_TRUE(
          work->copy_rows_to_device({.memory = on_device.get(), .offset = begin, .bytes = bytes},
                                    std::span(data).subspan(begin, bytes), rows));
      ASSERT_TRUE(work->copy_to_host(back, whole(*on_device)));
      ASSERT_TRUE(drain(*work));
      EXPECT_TRUE(std::equal(back.begin(), back.begin() + std::ptrdiff_t(begin), base.begin()));
      EXPECT_TRUE(std::equal(back.begin() + std::ptrdiff_t(begin + bytes), back.end(),
                             base.begin() + std::ptrdiff_t(begin + bytes)));
      for (std::uint64_t row = 0; row < bytes; row += rows.stride) {
        const auto at = std::ptrdiff_t(begin + row);
        ASSERT_TRUE(std::equal(back.begin() + at,
                               back.begin() + at + std::ptrdiff_t(rows.row_bytes),
                               data.begin() + at))
            << "the row at " << at << " of rows of " << rows.row_bytes << " bytes";
      }
    }
}

TEST_P(DeviceContract, SizesThatAreNotThoseOfRowsAreRefused) {
  auto on_device = memory(4096);
  auto work = stream();
  const Bytes host(4096);
  const auto refused = [&](std::uint64_t bytes, const RowShape& rows) {
    const auto copied =
        work->copy_rows_to_device({.memory = on_device.get(), .offset = 0, .bytes = bytes},
                                  std::span(host).first(bytes), rows);
    return !copied && copied.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(refused(4096, {.row_bytes = 0, .stride = 8}));
  EXPECT_TRUE(refused(4096, {.row_bytes = 9, .stride = 8}));
  EXPECT_TRUE(refused(4096, {.row_bytes = 8, .stride = 9}));
  EXPECT_TRUE(refused(7, {.row_bytes = 8, .stride = 9}));
  EXPECT_FALSE(refused(17, {.row_bytes = 8, .stride = 9}));
  EXPECT_TRUE(work->status().has_value()) << "a refused call must not break the stream";
  EXPECT_TRUE(drain(*work));
}

TEST_P(DeviceContract, CopiesBetweenMemories) {
  const auto data = pattern(70'000, 3);
  auto from = memory(data.size());
  auto to = memory(data.size());
  auto work = stream();
  Bytes back(data.size());
  ASSERT_TRUE(work->copy_to_device(whole(*from), data));
  ASSERT_TRUE(work->copy_on_device(whole(*to), whole(*from)));
  ASSERT_TRUE(work->copy_to_host(back, whole(*to)));
  ASSERT_TRUE(drain(*work));
  EXPECT_EQ(back, data);
}

TEST_P(DeviceContract, RegionsOutsideTheirMemoryAndUnequalSizesAreRefused) {
  auto on_device = memory(4096);
  auto work = stream();
  Bytes host(4096);
  const auto refused = [](const Result<>& r) {
    return !r && r.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_TRUE(
      refused(work->copy_to_device({.memory = on_device.get(), .offset = 1, .bytes = 4096}, host)));
  EXPECT_TRUE(refused(
      work->copy_to_host(host, {.memory = on_device.get(), .offset = ~0ULL, .bytes = 4096})));
  EXPECT_TRUE(refused(work->copy_to_device({.memory = on_device.get(), .bytes = 100}, host)));
  EXPECT_TRUE(refused(work->copy_to_device({.memory = nullptr, .bytes = 4096}, host)));
  EXPECT_TRUE(work->status().has_value()) << "a refused call must not break the stream";
}

TEST_P(DeviceContract, ImpossibleAllocationsAreRefused) {
  ASSERT_FALSE(device_->allocate(0));
  EXPECT_EQ(device_->allocate(0).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(device_->allocate(limits::kBucketBytesMax + 1).error().code(),
            ErrorCode::kInvalidInput);
}

TEST_P(DeviceContract, AnEventIsCompleteOnlyAfterTheWorkBeforeIt) {
  std::promise<void> open;
  auto work = stream();
  auto done = event();
  ASSERT_EQ(done->query(), true) << "never recorded: nothing to wait for";
  close_gate(*work, open.get_future().share());
  ASSERT_TRUE(work->record(*done));
  EXPECT_EQ(done->query(), false);
  const auto late = done->wait(now());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadline);
  open.set_value();
  EXPECT_TRUE(done->wait(far_deadline()));
  EXPECT_EQ(done->query(), true);
}

TEST_P(DeviceContract, AnEventIsUsedAgain) {
  auto work = stream();
  auto done = event();
  ASSERT_TRUE(work->record(*done));
  ASSERT_TRUE(done->wait(far_deadline()));
  std::promise<void> open;
  close_gate(*work, open.get_future().share());
  ASSERT_TRUE(work->record(*done));
  EXPECT_EQ(done->query(), false);
  open.set_value();
  EXPECT_TRUE(done->wait(far_deadline()));
}

TEST_P(DeviceContract, AStreamWaitsForAnotherStreamsEvent) {
  const auto data = pattern(4096, 4);
  auto on_device = memory(data.size());
  auto first = stream(StreamRole::kHostToDevice);
  auto second = stream(StreamRole::kBroadcast);
  auto filled = event();
  auto read = event();
  std::promise<void> open;
  Bytes back(data.size());
  close_gate(*first, open.get_future().share());
  ASSERT_TRUE(first->copy_to_device(whole(*on_device), data));
  ASSERT_TRUE(first->record(*filled));
  ASSERT_TRUE(second->wait(*filled));
  ASSERT_TRUE(second->copy_to_host(back, whole(*on_device)));
  ASSERT_TRUE(second->record(*read));
  EXPECT_EQ(read->query(), false);
  open.set_value();
  ASSERT_TRUE(read->wait(far_deadline()));
  EXPECT_EQ(back, data);
}

TEST_P(DeviceContract, StreamsRunBesideEachOther) {
  std::promise<void> open;
  auto held = stream(StreamRole::kHostToDevice);
  auto other = stream(StreamRole::kBroadcast);
  close_gate(*held, open.get_future().share());
  EXPECT_TRUE(drain(*other)) << "a stream must not wait for another one";
  open.set_value();
  EXPECT_TRUE(drain(*held));
}

TEST_P(DeviceContract, CallbacksComeOnceInOrderAfterTheirWork) {
  const auto data = pattern(3 * limits::kMiB, 5);
  auto on_device = memory(data.size());
  auto work = stream();
  Bytes back(data.size());
  std::vector<int> order;
  std::promise<bool> equal;
  ASSERT_TRUE(work->notify([&](const Result<>& r) { order.push_back(r ? 1 : -1); }));
  ASSERT_TRUE(work->copy_to_device(whole(*on_device), data));
  ASSERT_TRUE(work->copy_to_host(back, whole(*on_device)));
  ASSERT_TRUE(work->notify([&](const Result<>& r) {
    order.push_back(r ? 2 : -2);
    equal.set_value(back == data);
  }));
  EXPECT_TRUE(equal.get_future().get());
  ASSERT_TRUE(drain(*work));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_P(DeviceContract, DestroyingAStreamCancelsItsWorkAndTellsSo) {
  std::promise<void> open;
  auto held = stream();
  auto never = event();
  close_gate(*held, open.get_future().share());
  ASSERT_TRUE(held->record(*never));
  auto waiting = stream();
  std::promise<Result<>> told;
  ASSERT_TRUE(waiting->wait(*never));
  ASSERT_TRUE(waiting->notify([&](const Result<>& r) { told.set_value(r); }));
  auto behind = event();
  ASSERT_TRUE(waiting->record(*behind));
  waiting.reset();
  const auto result = told.get_future().get();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
  ASSERT_FALSE(behind->query());
  EXPECT_EQ(behind->query().error().code(), ErrorCode::kCancelled);
  open.set_value();
}

TEST_P(DeviceContract, ExportedMemoryIsTheSameMemory) {
  const auto data = pattern(2 * limits::kMiB, 6);
  auto own = memory(data.size());
  auto handle = own->export_handle();
  ASSERT_TRUE(handle.has_value()) << handle.error().message();
  EXPECT_EQ(handle->bytes, data.size());
  auto other = make_device({.kind = GetParam(), .index = DeviceIndex{1}});
  auto imported = (*other)->import_memory(std::move(*handle));
  ASSERT_TRUE(imported.has_value()) << imported.error().message();
  auto work = stream();
  ASSERT_TRUE(work->copy_to_device(whole(*own), data));  // after the import
  Bytes back(data.size());
  ASSERT_TRUE(work->copy_to_host(back, whole(**imported)));
  ASSERT_TRUE(drain(*work));
  EXPECT_EQ(back, data);
  own.reset();  // the importer's mapping stays valid
  ASSERT_TRUE(work->copy_to_host(back, whole(**imported)));
  ASSERT_TRUE(drain(*work));
  EXPECT_EQ(back, data);
}

TEST_P(DeviceContract, ImportedMemoryIsReadOnlyAndNotExportedAgain) {
  auto own = memory(4096);
  auto imported = device_->import_memory(std::move(*own->export_handle()));
  ASSERT_TRUE(imported.has_value());
  EXPECT_FALSE((*imported)->writable());
  auto work = stream();
  const Bytes data(4096);
  const auto written = work->copy_to_device(whole(**imported), data);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kInvalidInput);
  ASSERT_FALSE((*imported)->export_handle());
  EXPECT_EQ((*imported)->export_handle().error().code(), ErrorCode::kRefused);
}

TEST_P(DeviceContract, HandlesThatDoNotFitAreRefused) {
  auto own = memory(4096);
  const auto refused = [&](MemoryHandle handle) {
    const auto imported = device_->import_memory(std::move(handle));
    return !imported && imported.error().code() == ErrorCode::kInvalidInput;
  };
  auto wrong_size = *own->export_handle();
  wrong_size.bytes = 8192;
  EXPECT_TRUE(refused(std::move(wrong_size)));
  auto wrong_kind = *own->export_handle();
  wrong_kind.kind = GetParam() == DeviceKind::kCuda ? DeviceKind::kSeparate : DeviceKind::kCuda;
  EXPECT_TRUE(refused(std::move(wrong_kind)));
  EXPECT_TRUE(refused({.kind = GetParam(), .bytes = 4096}));
}

TEST_P(DeviceContract, HostMemoryIsRegisteredOrSaysWhyNot) {
  const auto data = pattern(limits::kMiB, 7);
  const auto registration = device_->register_host(data);
  ASSERT_TRUE(registration.has_value());
  EXPECT_EQ((*registration)->registered(), (*registration)->fallback().empty());
  ASSERT_TRUE(device_->register_host({}));
}

TEST_P(DeviceContract, OnlyUnifiedDevicesUseHostBytesInPlace) {
  const auto data = pattern(4096, 8);
  const auto aliased = device_->alias_host(data);
  if (GetParam() != DeviceKind::kUnified) {
    ASSERT_FALSE(aliased);
    EXPECT_EQ(aliased.error().code(), ErrorCode::kRefused);
    return;
  }
  ASSERT_TRUE(aliased.has_value());
  EXPECT_EQ((*aliased)->host_view().data(), data.data());
  EXPECT_EQ((*aliased)->bytes(), data.size());
  EXPECT_FALSE((*aliased)->writable());
}

}  // namespace wsync::device
