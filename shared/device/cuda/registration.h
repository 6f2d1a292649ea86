// Host memory that is pinned in place, so that copies read it directly. It is pinned in chunks: a
// failure is undone chunk by chunk, and no driver call blocks the process for a whole arena.
//
// Pinned chunks are recorded for the whole process. A range that several devices register is pinned
// once, for all contexts (CU_MEMHOSTREGISTER_PORTABLE), until the last device releases it. A copy
// must lie in one registration or in none, or the driver refuses it. Streams split their copies
// accordingly (first_part()).
//
// Thread: any.
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
  // If the range cannot be pinned, the registration is made nevertheless and states the reason.
  // `chunk_bytes` must be a multiple of the page size.
  [[nodiscard]] static std::unique_ptr<Registration> make(
      const Gpu& gpu, std::span<const std::byte> range,
      std::uint64_t chunk_bytes = kRegistrationChunkBytes);
  ~Registration() override;

  [[nodiscard]] bool registered() const noexcept override { return fallback_.empty(); }
  [[nodiscard]] std::string_view fallback() const noexcept override { return fallback_; }

 private:
  Registration() = default;
  std::vector<std::uintptr_t> chunks_;  // first addresses
  std::string fallback_;
};

// The beginning of a range of host memory, as far as it lies in one chunk, or in none.
struct HostPart {
  std::uint64_t bytes = 0;
  bool is_pinned = false;
};
// Of the `bytes` bytes (at least 1) starting at `at`.
[[nodiscard]] HostPart first_part(const std::byte* at, std::uint64_t bytes);

// Returns true if this process may write every page of the range, or if `maps`, the text of
// /proc/self/maps, does not list it.
[[nodiscard]] bool writable_in(std::string_view maps, std::span<const std::byte> range);

}  // namespace wsync::device::cuda
