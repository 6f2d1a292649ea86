// Random numbers that are the same on every machine and with every library.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace wsync::training {

// SplitMix64 (Steele et al. 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
  // Uniform in (0, 1], so that the logarithm is finite.
  double unit() { return (static_cast<double>(next() >> 11U) + 1) * 0x1.0p-53; }
  // Normal with mean 0 and standard deviation 1 (Box-Muller).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }

 private:
  std::uint64_t state_;
};

}  // namespace wsync::training
