// Memory that belongs to this process alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "shared/base/error.h"

namespace wsync {

// Anonymous private memory. All pages are touched when it is allocated.
class PrivateMemory {
 public:
  PrivateMemory() noexcept = default;
  // kResourceExhausted if there is not enough memory. `use` names the purpose in the error sentence
  // ("the weights of a rank").
  [[nodiscard]] static Result<PrivateMemory> allocate(std::uint64_t bytes, std::string_view use);
  PrivateMemory(PrivateMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  PrivateMemory& operator=(PrivateMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PrivateMemory();
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace wsync
