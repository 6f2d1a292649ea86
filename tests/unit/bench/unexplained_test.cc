#include "bench/publishers/unexplained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr int kCoordinator = 1;
constexpr int kSidecar = 2;

class Unexplained : public testing::Test {
 protected:
  void span(int process, const std::string& lane, const std::string& name, int begin, int end) {
    const int thread = ++threads_;
    events_.push_back({{"ph", "M"},
                       {"name", "thread_name"},
                       {"pid", process},
                       {"tid", thread},
                       {"args", {{"name", lane}}}});
    events_.push_back({{"ph", "X"},
                       {"name", name},
                       {"pid", process},
                       {"tid", thread},
                       {"ts", begin},
                       {"dur", end - begin}});
  }
  [[nodiscard]] Result<double> percent() const {
    return unexplained_percent(json{{"traceEvents", events_}});
  }
  json events_ = json::array();
  int threads_ = 0;
};

TEST_F(Unexplained, TheGapsBetweenSpansOfAllProcesses) {
  span(kCoordinator, "snapshot", "snapshot of 1.2", 1000, 1500);
  span(kCoordinator, "snapshot of buckets", "snapshot of bucket 0", 1010, 1300);
  span(kCoordinator, "snapshot of buckets (2)", "snapshot of bucket 1", 1200, 1500);
  span(kSidecar, "staging", "staging of 1.2", 1480, 1600);
  span(kSidecar, "switch of r", "load", 1650, 1900);
  span(kSidecar, "switch of r", "resume", 1900, 2000);
  EXPECT_NEAR(percent().value(), 6, 1e-9) << "10 at the beginning and 50 before the load, of 1000";
}

TEST_F(Unexplained, WaitingForOthersExplainsNothing) {
  span(kCoordinator, "snapshot", "snapshot of 1.2", 0, 400);
  span(kCoordinator, "round", "switch 1.2", 400, 1000);
  span(kCoordinator, "sidecar s0", "switch 1.2", 400, 1000);
  span(kSidecar, "switch of r", "resume", 900, 1000);
  EXPECT_NEAR(percent().value(), 90, 1e-9);
}

TEST_F(Unexplained, TheTimeOfEachKindOfWork) {
  span(kCoordinator, "snapshot of buckets", "snapshot of bucket 7", 0, 900);  // of an older update
  span(kCoordinator, "snapshot", "snapshot of 1.2", 1000, 5000);
  span(kCoordinator, "snapshot of buckets", "snapshot of bucket 0", 1000, 3000);
  span(kCoordinator, "snapshot of buckets (2)", "snapshot of bucket 1", 2000, 5000);
  span(kCoordinator, "round", "switch 1.2", 5000, 9000);
  span(kSidecar, "staging", "staging of 1.2", 5000, 5500);
  span(kSidecar, "records", "record with target 1.2", 5500, 6000);
  span(kSidecar, "switch of r", "load", 6000, 8000);
  span(kSidecar, "switch of r", "resume", 8000, 9000);
  const json trace{{"traceEvents", events_}};
  EXPECT_EQ(work_times(trace).value(), (std::vector<WorkTime>{{"snapshot of bucket", 4},
                                                              {"staging", 0.5},
                                                              {"record", 0.5},
                                                              {"load", 2},
                                                              {"resume", 1}}));
  EXPECT_EQ(work_times(json::object()).error().code(), ErrorCode::kInvalidInput);
}

TEST_F(Unexplained, OnlyTheNewestUpdateCounts) {
  span(kCoordinator, "snapshot", "snapshot of 1.1", 0, 100);
  span(kSidecar, "switch of r", "resume", 100, 200);
  span(kCoordinator, "snapshot", "snapshot of 1.2", 1000, 1100);
  span(kSidecar, "switch of r", "resume", 1050, 1100);
  EXPECT_NEAR(percent().value(), 50, 1e-9);
}

TEST_F(Unexplained, ATraceWithoutAnUpdateIsRefused) {
  span(kSidecar, "switch of r", "resume", 0, 100);
  EXPECT_EQ(percent().error().code(), ErrorCode::kNotFound);
  span(kCoordinator, "snapshot", "snapshot of 1.2", 200, 300);
  EXPECT_EQ(percent().error().code(), ErrorCode::kNotFound) << "it has not been resumed";
  EXPECT_EQ(unexplained_percent(json::object()).error().code(), ErrorCode::kInvalidInput);
  events_.push_back({{"ph", "X"}});
  EXPECT_EQ(percent().error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::bench
