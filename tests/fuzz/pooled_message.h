// Well-formed messages and other values out of a fuzzer's bytes. Each value comes from a small
// pool, so that the values of two messages often meet.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "shared/control/codec.h"
#include "shared/control/fields.h"

namespace wsync::fuzz {

// Reads the bytes one by one; all zero when they are used up.
class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::size_t below(std::size_t count) { return byte() % count; }
  // True for one byte of `count`, and not for those that are used up.
  bool one_in(std::size_t count) { return byte() % count == count - 1; }
  template <class T, std::size_t N>
  T from(const std::array<T, N>& pool) {
    return pool.at(below(N));
  }
  // One of the last few of a list that is not empty, the last one most often.
  template <class T>
  T& recent(std::vector<T>& list) {
    return list[list.size() - 1 - std::min(list.size() - 1, below(8) / 2)];
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

inline constexpr std::array<control::FleetId, 3> kFleets{{{}, {.high = 7, .low = 1}, {.low = 9}}};

// A visitor of fields.h that replaces one field of `every`: with 1 it makes a message, with more it
// spoils one.
class Pooled {
 public:
  // `fence`: one that is taken often.
  Pooled(Input& in, const control::Fence& fence, std::size_t every = 1)
      : in_(in), fence_(fence), every_(every) {}

  [[nodiscard]] static bool has(control::Capability) { return true; }
  template <class T>
  void number(std::string_view, T& value) {
    if (keeps()) return;
    static constexpr std::array<std::uint64_t, 8> kPool{0, 1, 2, 3, 4, 5, 1U << 20U, ~0ULL};
    value = static_cast<T>(in_.from(kPool));
  }
  template <class T>
  void bounded(std::string_view, T& value, std::uint64_t greatest) {
    if (!keeps()) value = static_cast<T>(std::min<std::uint64_t>(in_.below(4), greatest));
  }
  void flag(std::string_view, bool& value) {
    if (!keeps()) value = in_.one_in(2);
  }
  template <class T>
  void choice(std::string_view, T& value, T last) {
    if (!keeps()) value = static_cast<T>(in_.below(static_cast<std::size_t>(last) + 1));
  }
  void label(std::string_view, std::string& value, std::uint64_t) {
    static const std::array<std::string, 5> pool{"a", "b", "c", "tcp://h:1", ""};
    if (!keeps()) value = in_.from(pool);
  }
  void sentence(std::string_view, std::string& value) {
    if (!keeps()) value = in_.one_in(2) ? "why" : "";
  }
  void blob(std::string_view name, SharedBytes& value) {
    Bytes bytes(value.span().begin(), value.span().end());
    blob(name, bytes);
    value = std::move(bytes);
  }
  void blob(std::string_view, Bytes& value) {
    if (!keeps()) value.assign(in_.below(3), std::byte{1});
  }
  void digest(std::string_view, Digest& value) {
    if (!keeps()) value = {.low = in_.below(4)};
  }
  void version(std::string_view, Version& value) {
    if (keeps()) return;
    static constexpr std::array<Version, 9> kPool{{{},
                                                   {.epoch = 1, .step = 1},
                                                   {.epoch = 1, .step = 2},
                                                   {.epoch = 1, .step = 3},
                                                   {.epoch = 2, .step = 1},
                                                   {.epoch = 2, .step = 4},
                                                   {.epoch = 3, .step = 5},
                                                   {.epoch = 1, .step = limits::kStepMax},
                                                   {.epoch = 1, .step = ~0ULL}}};
    value = in_.from(kPool);
  }
  template <class T>
  void part(std::string_view, T& value) {
    if constexpr (std::same_as<T, control::Fence>)
      fence(value);
    else
      control::fields(*this, value);
  }
  template <class T>
  void list(std::string_view name, std::vector<T>& values, std::uint64_t) {
    if (!keeps()) values.resize(in_.below(4));
    for (T& value : values) {
      if constexpr (std::integral<T>)
        number(name, value);
      else if constexpr (std::same_as<T, Version>)
        version(name, value);
      else
        control::fields(*this, value);
    }
  }

  void fence(control::Fence& value) {
    if (keeps()) return;
    value = fence_;
    if (!in_.one_in(2)) return;
    static constexpr std::array<std::uint64_t, 8> kEpochs{
        0, 1, 2, 3, 4, limits::kEpochMax, limits::kEpochMax + 1, ~0ULL};
    value.epoch = in_.from(kEpochs);
    value.run_id = {in_.below(3), 1};
    value.fleet = in_.from(kFleets);
  }
  void envelope(control::Envelope& value) {
    fence(value.fence);
    number("round", value.round);
    number("request", value.request);
    label("replica", value.replica, limits::kReplicaNameBytes);
    number("rank", value.rank);
  }
  // Of any type.
  [[nodiscard]] control::Message message() {
    return make(in_.below(std::variant_size_v<control::AnyMessage>),
                std::make_index_sequence<std::variant_size_v<control::AnyMessage>>());
  }

 private:
  bool keeps() { return every_ > 1 && !in_.one_in(every_); }
  template <std::size_t... I>
  control::Message make(std::size_t index, std::index_sequence<I...>) {
    control::Message message;
    const auto fill = [&]<class T>(T value) {
      control::fields(*this, value);
      message = std::move(value);
    };
    ((index == I ? fill(std::variant_alternative_t<I, control::AnyMessage>()) : void()), ...);
    return message;
  }

  Input& in_;
  control::Fence fence_;
  std::size_t every_;
};

// One input in four is spoilt in some of its fields.
inline void spoil(Input& in, const control::Fence& fence, control::Envelope& envelope,
                  control::Message& message) {
  if (!in.one_in(4)) return;
  Pooled spoiler(in, fence, 6);
  spoiler.envelope(envelope);
  std::visit([&](auto& what) { control::fields(spoiler, what); }, message);
}

// As it comes out of the wire; none: it cannot be put on it.
inline std::optional<control::Decoded> over_the_wire(const control::Envelope& envelope,
                                                     const control::Message& message) {
  const Result<Bytes> encoded = control::encode(envelope, message);
  if (!encoded) return std::nullopt;
  auto decoded = control::decode(*encoded);
  WSYNC_CHECK(decoded.has_value(), "what is encoded can be decoded");
  return std::move(*decoded);
}

}  // namespace wsync::fuzz
