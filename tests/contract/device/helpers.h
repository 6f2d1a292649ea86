// Small helpers of the device and communicator suites.
#pragma once

#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <string>

#include "shared/base/bytes.h"
#include "shared/base/clock.h"
#include "shared/device/cuda_library.h"
#include "shared/device/device.h"
#include "tests/support/bytes.h"

namespace wsync::device {

// Far enough that only a hang reaches it.
inline TimePoint far_deadline() { return now() + std::chrono::seconds(60); }

// Bytes that differ between seeds and between places.
inline Bytes pattern(std::size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes data(bytes);
  fill_random(random, data);
  return data;
}

inline Region whole(Memory& memory) { return {.memory = &memory, .bytes = memory.bytes()}; }

// Why tests of a real GPU (the label gpu, which sets WSYNC_TEST_GPU) are skipped here; empty where
// they are not. Tests on the emulated driver never are: there a device that is missing is a
// failure.
inline std::string no_gpu_for_tests() {
  if (std::getenv("WSYNC_TEST_GPU") == nullptr) return {};
  constexpr const char* kSkipped = "no GPU for the tests: ";
  const auto backend = cuda_backend();
  if (!backend) return kSkipped + backend.error().message();
  const auto facts = (*backend)->facts();
  if (!facts) return kSkipped + facts.error().message();
  return facts->gpus.empty() ? std::string(kSkipped) + "the driver shows none" : std::string();
}

// Name of a suite's instantiation.
inline std::string kind_of(const ::testing::TestParamInfo<DeviceKind>& info) {
  return std::string(device_kind_name(info.param));
}

}  // namespace wsync::device
