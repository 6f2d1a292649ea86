// The arithmetic of one granule of a PieceDigest (piece_digest.h), shared by the host and the
// kernels. It consists of plain integer functions that both a C++ compiler and nvcc accept.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define WSYNC_HOST_DEVICE __host__ __device__
#else
#define WSYNC_HOST_DEVICE
#endif

namespace wsync::device::granule {

// Computes k(i) = splitmix64(i) (reference in piece_digest.h).
WSYNC_HOST_DEVICE constexpr std::uint64_t key(std::uint64_t i) noexcept {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

// Computes k'(i) from k(i).
WSYNC_HOST_DEVICE constexpr std::uint64_t second_key(std::uint64_t key) noexcept {
  return ((key << 32U) | (key >> 32U)) ^ 0x9e3779b97f4a7c15U;
}

__extension__ using Wide = unsigned __int128;

// Adds the contribution of granule `i` with the words a and b to the sum (low, high).
WSYNC_HOST_DEVICE inline void add(std::uint64_t i, std::uint64_t a, std::uint64_t b,
                                  std::uint64_t& low, std::uint64_t& high) noexcept {
  const std::uint64_t k = key(i);
  const Wide sum = ((static_cast<Wide>(high) << 64U) | low) +
                   static_cast<Wide>(a + k) * static_cast<Wide>(b + second_key(k));
  low = static_cast<std::uint64_t>(sum);
  high = static_cast<std::uint64_t>(sum >> 64U);
}

}  // namespace wsync::device::granule
