// What a training run says of the events of its rank 0.
#include "trainer_side/run/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/captured_log.h"

namespace wsync::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// What is logged about a publish of step 3 that has ended in this state.
std::string said_of_publish(const std::string& state) {
  TrainReport report(false);
  wsync::test::capture_log();
  report.take(
      {{"event", "publish"}, {"step", 3}, {"state", state}, {"reason", "step 4 replaces it"}});
  return wsync::test::captured_log();
}

// A trainer that is faster than its fleet does nothing wrong.
TEST(TrainReport, AStepThatGivesWayToANewerOneIsNoWarning) {
  EXPECT_THAT(said_of_publish("superseded"),
              AllOf(HasSubstr("step 3 is not served (superseded): step 4 replaces it"),
                    Not(HasSubstr("warning"))));
  EXPECT_THAT(
      said_of_publish("failed"),
      AllOf(HasSubstr("step 3 is not served (failed): step 4 replaces it"), HasSubstr("warning")));
}

}  // namespace
}  // namespace wsync::cli
