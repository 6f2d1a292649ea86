// The ceilings of a GPU (shared/device/ceilings.h).
#pragma once

#include <cstdint>
#include <memory>

#include "shared/base/error.h"
#include "shared/device/ceilings.h"
#include "shared/device/cuda/driver.h"

namespace wsync::device::cuda {

// `bytes` (a multiple of 16, not 0; kInvalidInput otherwise) for each of the three memories.
// kResourceExhausted when they do not fit; kRefused without that GPU. Any thread.
[[nodiscard]] Result<std::unique_ptr<Ceilings>> make_ceilings(const Driver& cuda, std::uint32_t gpu,
                                                              std::uint64_t bytes);

}  // namespace wsync::device::cuda
