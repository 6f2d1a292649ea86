// Memory of this process alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "shared/base/error.h"

namespace wsync {

// Anonymous private memory, touched when it is made.
class PrivateMemory {
 public:
  PrivateMemory() noexcept = default;
  // kResourceExhausted when there is not that much; `use` names it in the sentence ("the weights of
  // a rank").
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
