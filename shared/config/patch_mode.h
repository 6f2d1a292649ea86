// Whether something is done by what changes between versions.
#pragma once

#include <cstdint>

namespace wsync::config {

enum class PatchMode : std::uint8_t { kAuto, kOff };

}  // namespace wsync::config
