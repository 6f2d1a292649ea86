// `wsync demo` in a build without the reference engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

TEST(NoDemo, SaysWhatIsMissingWhateverIsAsked) {
  const auto demo = test::run_command(service_program(), {"demo", "--train", "--steps", "20"});
  EXPECT_EQ(demo.exit_code, 2);
  EXPECT_THAT(demo.err, testing::HasSubstr("wsync-engine"));
  const auto json = test::run_command(service_program(), {"demo", "--size", "1GiB", "--json"});
  EXPECT_EQ(json.exit_code, 2);
  EXPECT_EQ(nlohmann::json::parse(json.out).at("error").at("code"), "not_found");
}

}  // namespace
}  // namespace wsync::cli
