// What a training run is refused for before its first step.
#include "trainer_side/run/setup.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

class TrainSetup : public testing::Test {
 protected:
  TrainSetup() { std::ofstream(at("text")) << std::string(100, 'a'); }
  [[nodiscard]] std::string at(const std::string& name) const { return root_.path() + "/" + name; }
  // The sentence of a run that may not begin.
  [[nodiscard]] std::string why(std::vector<std::string> set) const {
    set.push_back("data.files=" + at("text"));
    const auto config = config::parse_train("steps: 9", "t.yaml", {.set = set});
    if (!config) return config.error().message();
    const auto options = training_options(*config);
    if (!options) return options.error().message();
    const auto begin = begin_run(*config, *options);
    return begin ? "begun" : begin.error().message();
  }

 private:
  test::TemporaryDirectory root_;
};

TEST_F(TrainSetup, WhatCannotBeWrittenIsSaidAtTheStart) {
  EXPECT_EQ(why({"trace_file=" + at("trace"), "picture=" + at("p.svg")}), "begun");
  EXPECT_EQ(why({"trace_file=" + at("none/trace")}),
            "trace_file: cannot write to " + at("none") + ": No such file or directory");
  EXPECT_EQ(why({"picture=" + at("none/p.svg")}),
            "picture: cannot write to " + at("none") + ": No such file or directory");
  EXPECT_NE(why({"save.directory=" + at("text")}).find("save.directory: " + at("text")),
            std::string::npos);
}

// Also of a step that no save.every leads to: a run that is asked to stop saves where it is.
TEST_F(TrainSetup, AStateThatARunMayHaveToWriteIsNotThere) {
  const std::string directory = "save.directory=" + at("saved");
  EXPECT_EQ(why({directory}), "begun");
  std::filesystem::create_directory(at("saved/step_10"));
  EXPECT_EQ(why({directory}), "begun");
  std::filesystem::create_directory(at("saved/step_7"));
  EXPECT_EQ(why({directory}), "save.directory: " + at("saved/step_7") +
                                  " exists already, and this run may save step 7 there; continue "
                                  "from it (resume), remove it or give another directory");
}

TEST_F(TrainSetup, AStateOfAnotherModelThanTheConfigurationsIsRefused) {
  const moe::ModelSpec spec{.layers = 4};
  const std::vector<moe::Parameter> all = moe::all_parameters(spec);
  ASSERT_TRUE(training::save_state(at("step_3"), {.spec = spec,
                                                  .facts = {.step = 3, .data_seed = 5},
                                                  .weights = training::ParameterSet(all),
                                                  .mean = training::ParameterSet(all),
                                                  .variance = training::ParameterSet(all)})
                  .has_value());
  const std::string resume = "resume=" + at("step_3");
  EXPECT_EQ(why({resume, "model.heads=8"}), "resume: " + at("step_3") +
                                                ": its model.heads is 4, this run's is 8; leave "
                                                "the model's keys out, or begin a new run");
  EXPECT_NE(why({resume, "model.tied_embeddings=true"}).find("has a head of its own"),
            std::string::npos);
  // What was given and is the same, or not given, is no reason: its text is another one.
  EXPECT_NE(why({resume, "model.expert_hidden=32"}).find("trained on another text"),
            std::string::npos);
}

}  // namespace
}  // namespace wsync::cli
