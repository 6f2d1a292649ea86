// Versions that tests use.
#pragma once

#include "shared/weights/version.h"

namespace wsync {

inline constexpr Version kV1{.epoch = 1, .step = 1};
inline constexpr Version kV2{.epoch = 1, .step = 2};
inline constexpr Version kV3{.epoch = 1, .step = 3};

}  // namespace wsync
