// Virtual time and random numbers of one simulated run. The same seed gives the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "shared/base/clock.h"

namespace wsync::simulation {

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : random_(seed) {}

  [[nodiscard]] TimePoint now() const noexcept { return now_; }
  void at(TimePoint time, std::function<void()> action) {
    queue_.emplace(std::pair(time < now_ ? now_ : time, ++order_), std::move(action));
  }
  void after(std::chrono::nanoseconds delay, std::function<void()> action) {
    at(now_ + delay, std::move(action));
  }
  // Runs the next action. Returns false if no action is due before `end`.
  bool run_one(TimePoint end) {
    if (queue_.empty() || queue_.begin()->first.first > end) {
      now_ = end;
      return false;
    }
    auto node = queue_.extract(queue_.begin());
    now_ = node.key().first;
    node.mapped()();
    return true;
  }

  // Returns a number that is uniform in [low, high].
  [[nodiscard]] std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
    return low + random_() % (high - low + 1);
  }
  [[nodiscard]] bool chance(double probability) {
    return static_cast<double>(random_() % 1'000'000) < probability * 1e6;
  }
  [[nodiscard]] std::chrono::microseconds micros(std::uint64_t low, std::uint64_t high) {
    return std::chrono::microseconds(pick(low, high));
  }

 private:
  std::mt19937_64 random_;
  TimePoint now_{1'000'000'000};
  std::uint64_t order_ = 0;
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> queue_;
};

}  // namespace wsync::simulation
