// What every backend of process groups promises, and the collectives on it (process_group_test.cc).
// A backend instantiates the suite with a function that makes all ranks in this process; each is a
// thread.
#pragma once

#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/process_group/process_group.h"
#include "tests/support/bytes.h"

namespace wsync::collective {

using Groups = std::vector<std::unique_ptr<ProcessGroup>>;

struct GroupBackend {
  std::string name;
  std::function<Groups(std::uint32_t size)> make;
  bool tells_reason = true;  // every rank of a broken group fails with the first reason
  int seeds = 20;
};
inline void PrintTo(const GroupBackend& backend, std::ostream* out) { *out << backend.name; }
inline std::string backend_name(const ::testing::TestParamInfo<GroupBackend>& info) {
  return info.param.name;
}

inline TimePoint in(std::chrono::milliseconds time) { return now() + time; }
inline TimePoint far_off() { return in(std::chrono::minutes(1)); }

// Bytes that only this message has.
inline Bytes message_of(std::uint64_t sender, std::uint64_t number, std::size_t bytes) {
  Bytes message(bytes);
  std::mt19937_64 random(sender * 1'000'003 + number);
  fill_random(random, message);
  return message;
}

class ProcessGroupContract : public ::testing::TestWithParam<GroupBackend> {
 protected:
  using Part = std::function<Result<>(ProcessGroup&)>;

  void make(std::uint32_t size) {
    groups_ = GetParam().make(size);
    ASSERT_EQ(groups_.size(), size);
  }
  // Every rank does its part, in a thread of its own; what each of them returned.
  std::vector<Result<>> on_each(const Part& part) {
    std::vector<Result<>> results(groups_.size());
    std::vector<std::jthread> threads;
    for (auto& group : groups_)
      threads.emplace_back([&, rank = group->rank()] { results[rank] = part(*groups_[rank]); });
    threads.clear();
    return results;
  }
  void all_succeed(const Part& part) {
    const auto results = on_each(part);
    for (std::size_t rank = 0; rank < results.size(); ++rank)
      EXPECT_TRUE(results[rank].has_value()) << rank << ": " << results[rank].error().message();
  }
  // Every rank fails, with this reason if the backend can tell it.
  void all_are_broken(ErrorCode code, const std::string& sentence) {
    for (const auto& group : groups_) {
      const std::uint32_t peer = group->rank() == 0 ? 1 : 0;
      const auto result =
          group->exchange({}, std::vector<Receive>{{.from = peer, .bytes = {}}}, far_off());
      ASSERT_FALSE(result.has_value()) << group->rank();
      EXPECT_FALSE(group->health().has_value()) << group->rank();
      if (!GetParam().tells_reason) continue;
      EXPECT_EQ(result.error().code(), code);
      EXPECT_EQ(result.error().message(), sentence);
    }
  }

  Groups groups_;
};

}  // namespace wsync::collective
