// The ceilings of a GPU (shared/device/ceilings.h).
#pragma once

#include <cstdint>
#include <memory>

#include "shared/base/error.h"
#include "shared/device/ceilings.h"
#include "shared/device/cuda/driver.h"

namespace wsync::device::cuda {

// Allocates each of the three memories with `bytes` bytes. kInvalidInput unless `bytes` is a
// positive multiple of 16; kResourceExhausted if the memories do not fit; kRefused without that
// GPU. Thread: any.
[[nodiscard]] Result<std::unique_ptr<Ceilings>> make_ceilings(const Driver& cuda, std::uint32_t gpu,
                                                              std::uint64_t bytes);

}  // namespace wsync::device::cuda
