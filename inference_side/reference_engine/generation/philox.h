// Philox4x32-10, a random generator without state: Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011. Each counter gives four numbers that depend on nothing but counter and key.
#pragma once

#include <array>
#include <cstdint>

namespace wsync::engine::generation {

[[nodiscard]] std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                      std::array<std::uint32_t, 2> key) noexcept;

}  // namespace wsync::engine::generation
