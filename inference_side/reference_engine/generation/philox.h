// Philox4x32-10, a stateless random generator: Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011. The four numbers of a counter depend only on the counter and the key.
#pragma once

#include <array>
#include <cstdint>

namespace wsync::engine::generation {

[[nodiscard]] std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                      std::array<std::uint32_t, 2> key) noexcept;

}  // namespace wsync::engine::generation
