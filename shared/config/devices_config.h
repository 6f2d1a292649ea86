// The devices of a sidecar: the keys devices.*.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/kinds.h"

namespace wsync::config {

struct DevicesConfig {
  DeviceKind kind = DeviceKind::kUnified;
  std::uint32_t count = 1;
  // cuda: the GPU of each device, `count` of them; one may be there several times. Empty on others.
  std::vector<std::uint32_t> gpus;
  bool gpus_named = false;         // by devices.gpus
  std::uint64_t buffer_bytes = 0;  // of each buffer of a separate device or GPU; 0: auto
  bool keep_buffers = true;        // cuda: between updates
  Collective collective = Collective::kAuto;
  friend bool operator==(const DevicesConfig&, const DevicesConfig&) = default;
};

}  // namespace wsync::config
