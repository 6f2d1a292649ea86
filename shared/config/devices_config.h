// The devices of a sidecar: the keys devices.*.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/base/kinds.h"

namespace wsync::config {

struct DevicesConfig {
  DeviceKind kind = DeviceKind::kUnified;
  std::uint32_t count = 1;
  // GPU of each device (`count` entries) if the devices are of kind cuda; a GPU may occur several
  // times. Empty for other kinds.
  std::vector<std::uint32_t> gpus;
  bool gpus_named = false;         // true if set by devices.gpus
  std::uint64_t buffer_bytes = 0;  // size of each buffer of a separate device or GPU; 0 = auto
  bool keep_buffers = true;        // cuda: keep the buffers between updates
  Collective collective = Collective::kAuto;
  Transfer transfer = Transfer::kAuto;
  friend bool operator==(const DevicesConfig&, const DevicesConfig&) = default;
};

}  // namespace wsync::config
