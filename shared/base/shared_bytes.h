// Bytes that several owners share and nobody changes, so that a copy costs nothing. Thread: any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "shared/base/bytes.h"

namespace wsync {

class SharedBytes {
 public:
  SharedBytes() = default;  // no bytes
  // Implicit, because both are the same bytes.
  SharedBytes(Bytes bytes)
      : bytes_(bytes.empty() ? nullptr : std::make_shared<const Bytes>(std::move(bytes))) {}

  [[nodiscard]] bool empty() const noexcept { return bytes_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return empty() ? 0 : bytes_->size(); }
  [[nodiscard]] std::span<const std::byte> span() const noexcept {
    return empty() ? std::span<const std::byte>() : std::span<const std::byte>(*bytes_);
  }
  operator std::span<const std::byte>() const noexcept { return span(); }
  // Whether both have the same memory, which is known at once.
  [[nodiscard]] bool is_same(const SharedBytes& other) const noexcept {
    return bytes_ == other.bytes_;
  }
  friend bool operator==(const SharedBytes& a, const SharedBytes& b) noexcept {
    return a.is_same(b) || (!a.empty() && !b.empty() && *a.bytes_ == *b.bytes_);
  }

 private:
  std::shared_ptr<const Bytes> bytes_;  // null if there are none
};

}  // namespace wsync
