// Fixed little-endian encoding of integers, strings and lists, with length checks before every read
// and allocation.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync {

static_assert(std::endian::native == std::endian::little, "wsync runs on little-endian hosts");

using Bytes = std::vector<std::byte>;

// Appends encoded values to a growing buffer. Never fails.
class ByteWriter {
 public:
  template <std::integral T>
  void put(T value) {
    const std::size_t at = buffer_.size();
    buffer_.resize(at + sizeof value);
    std::memcpy(buffer_.data() + at, &value, sizeof value);
  }
  template <class T>
    requires std::is_enum_v<T>
  void put(T value) {
    put(static_cast<std::underlying_type_t<T>>(value));
  }
  // Writes a u32 length, then the bytes.
  void put_string(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_raw(std::as_bytes(std::span(text.data(), text.size())));
  }
  void put_raw(std::span<const std::byte> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::size_t size() const noexcept { return buffer_.size(); }
  [[nodiscard]] Bytes& buffer() noexcept { return buffer_; }
  [[nodiscard]] Bytes take() && { return std::move(buffer_); }

 private:
  Bytes buffer_;
};

// Reads encoded values from a borrowed span. The reader remembers the first violation: later reads
// return zero values, and finish() reports it. A decoder can therefore read all fields and check
// once at the end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <std::integral T>
  [[nodiscard]] T get(std::string_view field) {
    T value{};
    if (!want(sizeof value, field)) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  // Reads an enum stored as its underlying type. A value above `last` is a violation.
  template <class T>
    requires std::is_enum_v<T>
  [[nodiscard]] T get_enum(T last, std::string_view field) {
    using U = std::underlying_type_t<T>;
    const U value = get<U>(field);
    if (value > static_cast<U>(last)) {
      violate(field, "value " + std::to_string(value) + " is unknown");
      return T{};
    }
    return static_cast<T>(value);
  }
  [[nodiscard]] bool get_bool(std::string_view field) {
    const auto value = get<std::uint8_t>(field);
    if (value > 1) violate(field, "a flag must be 0 or 1, found " + std::to_string(value));
    return value == 1;
  }
  // Reads a u32 length of at most max_bytes, then that many bytes.
  [[nodiscard]] std::string get_string(std::uint64_t max_bytes, std::string_view field) {
    const auto n = get<std::uint32_t>(field);
    if (n > max_bytes) {
      violate(field,
              std::to_string(n) + " bytes, at most " + std::to_string(max_bytes) + " allowed");
      return {};
    }
    if (!want(n, field)) return {};
    std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), n);
    at_ += n;
    return text;
  }
  // Reads exactly n bytes and returns a copy of them.
  [[nodiscard]] Bytes get_raw(std::size_t n, std::string_view field) {
    if (!want(n, field)) return {};
    const auto part = bytes_.subspan(at_, n);
    at_ += n;
    return {part.begin(), part.end()};
  }
  // Reads a u32 count of at most max_count. The elements must also fit in the remaining bytes at
  // min_element_bytes each, so that a hostile count cannot make the caller allocate more than the
  // size of the message.
  [[nodiscard]] std::uint32_t get_count(std::uint64_t max_count, std::size_t min_element_bytes,
                                        std::string_view field) {
    const auto n = get<std::uint32_t>(field);
    if (n > max_count) {
      violate(field,
              std::to_string(n) + " entries, at most " + std::to_string(max_count) + " allowed");
      return 0;
    }
    if (static_cast<std::uint64_t>(n) * min_element_bytes > remaining()) {
      violate(field, std::to_string(n) + " entries do not fit in the " +
                         std::to_string(remaining()) + " bytes that are left");
      return 0;
    }
    return n;
  }
  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - at_; }
  [[nodiscard]] bool ok() const noexcept { return violation_.empty(); }
  // Returns "<field>: <what>" of the first violation, or an empty view.
  [[nodiscard]] std::string_view violation() const noexcept { return violation_; }
  // Records a violation found by the caller (a value out of its range).
  void violate(std::string_view field, std::string_view what) {
    if (violation_.empty()) violation_ = std::string(field) + ": " + std::string(what);
  }
  // Returns success if there was no violation and every byte was read.
  [[nodiscard]] Result<> finish(std::string_view what) {
    if (ok() && remaining() != 0)
      violate("end", std::to_string(remaining()) + " bytes left over after the last field");
    if (ok()) return {};
    return fail(ErrorCode::kInvalidInput, std::string(what) + ": " + violation_);
  }

 private:
  bool want(std::uint64_t n, std::string_view field) {
    if (!ok()) return false;
    if (n > remaining()) {
      violate(field,
              "needs " + std::to_string(n) + " bytes, " + std::to_string(remaining()) + " left");
      return false;
    }
    return true;
  }
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::string violation_;
};

}  // namespace wsync
