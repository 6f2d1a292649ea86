// Small helpers of the device and communicator suites.
#pragma once

#include <chrono>
#include <gtest/gtest.h>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/clock.h"
#include "shared/device/device.h"

namespace wsync::device {

// Far enough that only a hang reaches it.
inline TimePoint far_deadline() { return now() + std::chrono::seconds(60); }

inline Bytes pattern(std::size_t bytes, unsigned seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>((i * 131 + seed * 29 + (i >> 8U)) & 0xffU);
  return data;
}

inline Region whole(Memory& memory) { return {.memory = &memory, .bytes = memory.bytes()}; }

// Name of a suite's instantiation.
inline std::string kind_of(const ::testing::TestParamInfo<DeviceKind>& info) {
  return std::string(device_kind_name(info.param));
}

}  // namespace wsync::device
