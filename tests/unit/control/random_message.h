// Seeded random messages that use every field, for the tests of the codec and of the frames.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/limits.h"
#include "shared/control/fields.h"
#include "shared/control/messages.h"

namespace wsync::control {

// Fills every field of a message with random values inside its limits.
class Randomiser {
 public:
  explicit Randomiser(std::uint64_t seed) : random_(seed) {}

  [[nodiscard]] static bool has(Capability) { return true; }
  template <class T>
  void number(std::string_view, T& value) {
    value = static_cast<T>(random_());
  }
  template <class T>
  void bounded(std::string_view, T& value, std::uint64_t greatest) {
    value = static_cast<T>(random_() % (greatest + 1));
  }
  void flag(std::string_view, bool& value) { value = random_() % 2 == 0; }
  template <class T>
  void choice(std::string_view, T& value, T last) {
    value = static_cast<T>(random_() % (static_cast<std::uint64_t>(last) + 1));
  }
  void label(std::string_view, std::string& value, std::uint64_t max_bytes) {
    value = text(max_bytes);
  }
  void sentence(std::string_view, std::string& value) { value = text(limits::kSentenceBytes); }
  void blob(std::string_view name, SharedBytes& value) {
    Bytes bytes(value.span().begin(), value.span().end());
    blob(name, bytes);
    value = std::move(bytes);
  }
  void blob(std::string_view, Bytes& value) {
    value.resize(random_() % 40);
    for (std::byte& b : value) b = static_cast<std::byte>(random_());
  }
  void digest(std::string_view, Digest& value) { value = {.low = random_(), .high = random_()}; }
  void version(std::string_view, Version& value) {
    value = {.epoch = static_cast<std::uint32_t>(random_()), .step = random_()};
  }
  template <class T>
  void part(std::string_view, T& value) {
    fields(*this, value);
  }
  template <class T>
  void list(std::string_view name, std::vector<T>& values, std::uint64_t max_count) {
    values.resize(random_() % std::min<std::uint64_t>(max_count + 1, 4));
    for (T& value : values) {
      if constexpr (std::integral<T>)
        number(name, value);
      else if constexpr (std::same_as<T, Version>)
        version(name, value);
      else
        fields(*this, value);
    }
  }

  [[nodiscard]] Envelope envelope() {
    Envelope envelope;
    fields(*this, envelope.fence);
    envelope.round = random_();
    envelope.request = random_();
    envelope.replica = text(limits::kReplicaNameBytes);
    envelope.rank = static_cast<std::uint32_t>(random_() % limits::kReplicaRankCount);
    envelope.capabilities = kCapabilities;
    return envelope;
  }
  // The alternative of this index of Message.
  [[nodiscard]] Message message(std::size_t index) {
    return make(index, std::make_index_sequence<std::variant_size_v<AnyMessage>>());
  }

 private:
  std::string text(std::uint64_t max_bytes) {
    std::string value(random_() % std::min<std::uint64_t>(max_bytes + 1, 24), '\0');
    for (char& c : value) c = static_cast<char>(random_());
    return value;
  }
  template <class T>
  Message make_one() {
    T value;
    fields(*this, value);
    return value;
  }
  template <std::size_t... I>
  Message make(std::size_t index, std::index_sequence<I...>) {
    Message message;
    ((index == I ? void(message = make_one<std::variant_alternative_t<I, AnyMessage>>()) : void()),
     ...);
    return message;
  }
  std::mt19937_64 random_;
};

}  // namespace wsync::control
