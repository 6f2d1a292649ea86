// What the fuzzers of state machines share: virtual time, and what must hold of every machine.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/control/codec.h"
#include "tests/fuzz/pooled_message.h"

namespace wsync::fuzz {

inline constexpr std::size_t kEvents = 400;  // of one input at most
inline constexpr TimePoint kStart{1'000'000'000'000};

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

inline void must_encode(const control::Envelope& envelope, const control::Message& message) {
  const auto encoded = control::encode(envelope, message);
  WSYNC_CHECK(encoded.has_value(), encoded.error().message());
}

// The clock that a machine is driven by, and its timer.
template <class Machine, class TickEvent>
class Clock {
 public:
  [[nodiscard]] TimePoint now() const { return now_; }
  // Lets some time pass: none, a little, or all until the timer is due.
  template <class Step>
  void pass(Input& in, const Machine& machine, const Step& step) {
    static constexpr std::array<std::chrono::milliseconds, 4> kPauses{
        std::chrono::milliseconds(1), std::chrono::milliseconds(300),
        std::chrono::milliseconds(1'500), std::chrono::milliseconds(20'000)};
    if (const auto wake = machine.next_wake(); wake && in.one_in(2))
      now_ = std::max(now_, *wake);
    else
      now_ = now_ + in.from(kPauses);
    ring(machine, step);
  }
  // Until the timer is due; false when there is none.
  template <class Step>
  bool sleep(const Machine& machine, const Step& step) {
    const auto wake = machine.next_wake();
    if (!wake) return false;
    now_ = std::max(now_, *wake);
    ring(machine, step);
    return true;
  }

 private:
  template <class Step>
  void ring(const Machine& machine, const Step& step) {
    for (int rings = 0; machine.next_wake() && *machine.next_wake() <= now_; ++rings) {
      WSYNC_CHECK(rings < 16, "a timer that is due at once again and again turns in a circle");
      step(TickEvent{});
    }
  }
  TimePoint now_ = kStart;
};

}  // namespace wsync::fuzz
