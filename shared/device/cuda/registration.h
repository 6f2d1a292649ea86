// Host memory pinned in place, so that copies go straight from it. Pinned in chunks: a failure half
// way is undone in steps, and no call of the driver holds the process up for a whole arena.
//
// What is pinned is known to the whole process: a range that several devices register is pinned
// once, by all contexts (CU_MEMHOSTREGISTER_PORTABLE), until the last of them lets go. A copy must
// lie in one registration or in none, or the driver refuses it: streams cut theirs (whole_part()).
//
// Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/device/cuda/context.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {

inline constexpr std::uint64_t kRegistrationChunkBytes = std::uint64_t{1} << 30U;

class Registration final : public HostRegistration {
 public:
  // A range that cannot be pinned gives a registration that says so. `chunk_bytes`: a multiple of
  // the page.
  [[nodiscard]] static std::unique_ptr<Registration> make(
      const Gpu& gpu, std::span<const std::byte> range,
      std::uint64_t chunk_bytes = kRegistrationChunkBytes);
  ~Registration() override;

  [[nodiscard]] bool registered() const noexcept override { return fallback_.empty(); }
  [[nodiscard]] std::string_view fallback() const noexcept override { return fallback_; }

 private:
  Registration() = default;
  std::vector<std::uintptr_t> chunks_;  // where they begin
  std::string fallback_;
};

// How many of the `bytes` bytes (1 at least) from `at` on lie in one chunk, or in none.
[[nodiscard]] std::uint64_t whole_part(const std::byte* at, std::uint64_t bytes);

// Whether every page of the range may be written by this process; `maps` is the text of
// /proc/self/maps. True where it does not say.
[[nodiscard]] bool writable_in(std::string_view maps, std::span<const std::byte> range);

}  // namespace wsync::device::cuda
