#include "shared/config/train_config.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <stdlib.h>

#include "shared/config/document.h"
#include "shared/config/heartbeat_config.h"
#include "shared/config/log_config.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"
#include "trainer_side/schedule/order.h"

namespace wsync::config {
namespace {

std::string example() {
  std::ifstream file(std::string(WSYNC_SOURCE_DIR) + "/deploy/config/train.yaml");
  EXPECT_TRUE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

TrainConfig parsed(std::string_view text, const Sources& sources = {}) {
  const Result<TrainConfig> config = parse_train(text, "t.yaml", sources);
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return config.value_or(TrainConfig{});
}

std::string why(std::string_view text, const Sources& sources = {}) {
  const Result<TrainConfig> config = parse_train(text, "t.yaml", sources);
  if (config) return "taken";
  EXPECT_EQ(config.error().code(), ErrorCode::kInvalidInput);
  return config.error().message();
}

TEST(TrainConfig, ExampleHoldsEveryKeyWithItsDefault) {
  std::vector<std::string> keys;
  const std::vector<Entry> entries = parse_document(example(), "example").value();
  for (const Entry& entry : entries) keys.push_back(entry.key);
  EXPECT_EQ(keys, train_keys());
  EXPECT_EQ(parsed(example()), parsed(""));
  EXPECT_EQ(parsed(""), TrainConfig{});
}

// What the example says of a publisher is what trainer.yaml says of it, with one exception.
TEST(TrainConfig, APublisherHasTheKeysAndDefaultsOfTheTrainer) {
  std::vector<std::string> of_publish;
  for (const std::string& key : train_keys())
    if (key.starts_with("publish."))
      of_publish.push_back(key.substr(std::string("publish.").size()));
  std::vector<std::string> expected{"enabled", "every"};
  for (const std::string& key : trainer_keys())
    if (key != "checkpoint" && key != "watch" && !key.starts_with("follow_") &&
        !key.starts_with("trace_") && !key.starts_with("log."))
      expected.push_back(key);
  EXPECT_EQ(of_publish, expected);

  TrainerConfig trainer = parse_trainer("watch: false", "").value();
  trainer.deadlines.snapshot = std::chrono::seconds(10);  // its last step must be published
  EXPECT_EQ(parsed("publish: {}").publish, (PublishConfig{.every = 1, .trainer = trainer}));
  EXPECT_EQ(parsed(example(), {.set = {"publish.enabled=true"}}).publish,
            (PublishConfig{.every = 1, .trainer = trainer}));
}

TEST(TrainConfig, ReadsEverySection) {
  const TrainConfig c = parsed(
      "model: {vocabulary: 300, hidden: 96, layers: 12, heads: 6, key_value_heads: 3,\n"
      "        head_dim: 32, experts: 16, experts_per_token: 4, expert_hidden: 48,\n"
      "        tied_embeddings: true, seed: 9}\n"
      "data: {files: '/a/b:c d::/e', sequence: 128, micro_batch: 2, seed: 3}\n"
      "parallel: {pp: 4, vpp: 3, ep: 2, dp: 4}\n"
      "schedule: {microbatches: 8, group: 4, overlap: true, extra_warmup: 0,\n"
      "           delay_wgrad: false, offload: true}\n"
      "optimizer: {learning_rate: 0.01, final_learning_rate: 0, warmup_steps: 0, beta1: 0.8,\n"
      "            beta2: 0.99, epsilon: 1e-6, weight_decay: 0, clip_norm: 0}\n"
      "steps: 7\nsave: {directory: out, every: 2}\nresume: out/step_4\n"
      "heartbeat: {interval: 100ms, deadline: 1s}\ndeadline: 10s\n"
      "ranks: {rendezvous: /nfs/run7, address: '::1'}\n"
      "rollout: {engines: 'http://a:1, http://b:2', task: sort, digits: 5, seed: 4, answers: 4,\n"
      "          warm_start_steps: 2, max_staleness: 3, requests: 6, temperature: 0.5,\n"
      "          clip_low: 0.1, clip_high: 0.3, kl: 0.01, deadline: 2s, wait_limit: 20s}\n"
      "publish: {every: 8, run_dir: /run/p, heartbeat: {interval: 50ms}}\n"
      "trace_file: t\npicture: p.svg\nlog: {level: debug, format: json}\n");
  EXPECT_EQ(c.model, (ModelConfig{.vocabulary = 300,
                                  .hidden = 96,
                                  .layers = 12,
                                  .heads = 6,
                                  .key_value_heads = 3,
                                  .head_dim = 32,
                                  .experts = 16,
                                  .experts_per_token = 4,
                                  .expert_hidden = 48,
                                  .tied_embeddings = true,
                                  .seed = 9}));
  EXPECT_EQ(
      c.data,
      (DataConfig{.files = {"/a/b", "c d", "/e"}, .sequence = 128, .micro_batch = 2, .seed = 3}));
  EXPECT_EQ(c.parallel, (ParallelConfig{.pp = 4, .vpp = 3, .ep = 2, .dp = 4}));
  EXPECT_EQ(c.schedule, (ScheduleConfig{.microbatches = 8,
                                        .group = 4,
                                        .overlap = true,
                                        .extra_warmup = 0,
                                        .delay_wgrad = false,
                                        .offload = true}));
  EXPECT_EQ(c.optimizer, (OptimizerConfig{.learning_rate = 0.01,
                                          .final_learning_rate = 0,
                                          .warmup_steps = 0,
                                          .beta1 = 0.8,
                                          .beta2 = 0.99,
                                          .epsilon = 1e-6,
                                          .weight_decay = 0,
                                          .clip_norm = 0}));
  EXPECT_EQ(c.steps, 7U);
  EXPECT_EQ(c.save, (SaveConfig{.directory = "out", .every = 2}));
  EXPECT_EQ(c.resume, "out/step_4");
  EXPECT_EQ(c.heartbeat, (HeartbeatConfig{Milliseconds(100), Milliseconds(1000)}));
  EXPECT_EQ(c.deadline, Milliseconds(10'000));
  EXPECT_EQ(c.ranks, (RanksConfig{.rendezvous = "/nfs/run7", .address = "::1"}));
  EXPECT_EQ(c.rollout, (RolloutConfig{.engines = {"http://a:1", "http://b:2"},
                                      .task = "sort",
                                      .digits = 5,
                                      .seed = 4,
                                      .answers = 4,
                                      .warm_start_steps = 2,
                                      .max_staleness = 3,
                                      .requests = 6,
                                      .temperature = 0.5,
                                      .clip_low = 0.1,
                                      .clip_high = 0.3,
                                      .kl = 0.01,
                                      .deadline = Milliseconds(2'000),
                                      .wait_limit = Milliseconds(20'000)}));
  ASSERT_TRUE(c.publish.has_value());
  EXPECT_EQ(c.publish->every, 8U);
  EXPECT_EQ(c.publish->trainer.listen, "ipc:///run/p/control");
  EXPECT_EQ(c.publish->trainer.heartbeat.interval, Milliseconds(50));
  EXPECT_EQ(c.publish->trainer.log, c.log);
  EXPECT_EQ(c.trace_file, "t");
  EXPECT_EQ(c.picture, "p.svg");
  EXPECT_EQ(c.log, (LogConfig{.level = LogLevel::kDebug, .format = LogFormat::kJson}));
  EXPECT_EQ(parsed("schedule: {order: gpipe}").schedule.order, "gpipe");
}

TEST(TrainConfig, ItsSchedulesCanBePlanned) {
  for (const std::string order : {"interleaved", "1f1b", "zb-h1", "gpipe"}) {
    const TrainConfig c = parsed("parallel: {vpp: 1}\nschedule: {order: " + order + "}");
    EXPECT_EQ(schedule::order_name(schedule::order_of(c.schedule.order).value()), order);
  }
  const TrainConfig c;
  EXPECT_TRUE(schedule::make_schedule({.order = schedule::order_of(c.schedule.order).value(),
                                       .shape = {.pp = c.parallel.pp,
                                                 .vpp = c.parallel.vpp,
                                                 .microbatches = c.schedule.microbatches},
                                       .group = c.schedule.group,
                                       .overlap = c.schedule.overlap,
                                       .extra_warmup = c.schedule.extra_warmup,
                                       .delay_wgrad = c.schedule.delay_wgrad})
                  .has_value());
}

TEST(TrainConfig, RolloutsNeedEnginesAndWholeGroups) {
  EXPECT_FALSE(parsed("rollout: {enabled: false, answers: 7}").rollout);
  EXPECT_TRUE(parsed("rollout: {engines: 'http://a:1'}").rollout);
  EXPECT_THAT(why("rollout: {answers: 8}"), testing::HasSubstr("rollout.engines"));
  EXPECT_THAT(why("rollout: {engines: 'http://a:1', answers: 3}"),
              testing::AllOf(testing::HasSubstr("rollout.answers"), testing::HasSubstr("= 16")));
  EXPECT_THAT(why("rollout: {engines: 'http://a:1', task: poem}"), testing::HasSubstr("reverse"));
  // The weights of each step generate for the next one, or those of none but the first do.
  const std::string_view every = "rollout: {engines: 'http://a:1'}\nsteps: 9\npublish: {every: 9}";
  EXPECT_THAT(why(every), testing::HasSubstr("publish.every"));
  EXPECT_EQ(parsed(every, {.set = {"publish.every=10"}}).publish->every, 10U);
}

TEST(TrainConfig, PublishingIsOnWhenItsSectionIsThere) {
  EXPECT_FALSE(parsed("steps: 3").publish);
  EXPECT_TRUE(parsed("publish: {}").publish);
  EXPECT_TRUE(parsed("publish: {min_replicas: 2}").publish);
  EXPECT_TRUE(parsed("", {.set = {"publish.every=2"}}).publish);
  EXPECT_TRUE(parsed("", {.environment = {{"WSYNC_PUBLISH_RUN_DIR", "/run/p"}}}).publish);
  EXPECT_FALSE(parsed("", {.environment = {{"WSYNC_RUN_DIR", "/run/p"}}}).publish);
  EXPECT_FALSE(parsed("publish: {enabled: false, every: 2}").publish);
  EXPECT_TRUE(parsed("publish: {enabled: false}", {.set = {"publish.enabled=true"}}).publish);
  EXPECT_EQ(
      why("publish: true"),
      "t.yaml:1: publish: expected a section with keys such as publish.enabled, found 'true'");
}

TEST(TrainConfig, SizesThatDoNotGoTogetherAreRefused) {
  EXPECT_EQ(why("parallel: {ep: 3, dp: 4}"),
            "t.yaml:1: parallel.ep: expected a divisor of parallel.dp (4), because the ranks that "
            "share a layer's experts are data-parallel replicas; found 3");
  EXPECT_EQ(why("parallel: {ep: 8, dp: 4}").substr(0, 49),
            "t.yaml:1: parallel.ep: expected a divisor of para");
  EXPECT_EQ(why("parallel: {pp: 16, vpp: 1, dp: 17}"),
            "t.yaml:1: parallel.dp: expected at most 256 ranks, found parallel.pp * parallel.dp = "
            "16 * 17 = 272");
  EXPECT_EQ(
      why("model: {layers: 6}"),
      "t.yaml:1: model.layers: expected a multiple of parallel.pp * parallel.vpp = 2 * 2 = 4, "
      "found 6");
  EXPECT_EQ(why("parallel: {pp: 3}"),
            "default: model.layers: expected a multiple of parallel.pp * parallel.vpp = 3 * 2 = 6, "
            "found 4");
  EXPECT_EQ(why("model: {experts: 3}\nparallel: {ep: 2, dp: 2}"),
            "t.yaml:1: model.experts: expected a multiple of parallel.ep (2), found 3");
  EXPECT_EQ(
      why("schedule: {overlap: true}"),
      "t.yaml:1: schedule.overlap: expected false with parallel.ep: 1, found true: without "
      "expert parallelism no token leaves its rank, and there is no communication to overlap");
  EXPECT_EQ(why("schedule: {overlap: true}\nparallel: {ep: 2, dp: 2}"), "taken");
}

TEST(TrainConfig, TheSizesOfAStateToGoOnFromAreNotKnownHere) {
  EXPECT_EQ(why("resume: /models/a/step_3\nparallel: {pp: 3}"), "taken");
}

TEST(TrainConfig, BesideACheckpointThereAreNoSizes) {
  const TrainConfig c = parsed("model: {checkpoint: /models/a}\nparallel: {pp: 3}");
  EXPECT_EQ(c.model.checkpoint, "/models/a");
  EXPECT_EQ(why("model:\n  checkpoint: /models/a\n  hidden: 64"),
            "t.yaml:3: model.hidden: must be left out when model.checkpoint is set, because its "
            "config.json and weights are used");
  EXPECT_EQ(why("model: {checkpoint: /models/a}", {.environment = {{"WSYNC_MODEL_SEED", "2"}}}),
            "environment WSYNC_MODEL_SEED: model.seed: must be left out when model.checkpoint is "
            "set, because its config.json and weights are used");
}

TEST(TrainConfig, WrongValuesNameFileLineKeyExpectedAndFound) {
  EXPECT_EQ(
      why("model: {vocabulary: 255}"),
      "t.yaml:1: model.vocabulary: expected a whole number from 256 to 16777216, found '255'");
  for (const char* zero :
       {"model: {layers: 0}", "model: {hidden: 0}", "data: {sequence: 0}", "data: {micro_batch: 0}",
        "parallel: {pp: 0}", "parallel: {vpp: 0}", "parallel: {ep: 0}", "parallel: {dp: 0}",
        "schedule: {microbatches: 0}", "schedule: {group: 0}", "steps: 0", "publish: {every: 0}",
        "deadline: 0"})
    EXPECT_NE(why(zero).find("expected"), std::string::npos) << zero << ": " << why(zero);
  EXPECT_EQ(why("schedule: {group: all}"),
            "t.yaml:1: schedule.group: expected a whole number from 1 to 65536, found 'all'");
  EXPECT_EQ(why("schedule: {extra_warmup: 2}"),
            "t.yaml:1: schedule.extra_warmup: expected a whole number from 0 to 1, found '2'");
  EXPECT_EQ(why("schedule: {order: dualpipe}"),
            "t.yaml:1: schedule.order: expected one of interleaved, 1f1b, zb-h1, gpipe, found "
            "'dualpipe'");
  for (const char* bad : {"0", "-1", "nan", "inf", "1e400", "3e-3x", "", " 1", "0x1p3"})
    EXPECT_EQ(why("optimizer: {learning_rate: '" + std::string(bad) + "'}"),
              "t.yaml:1: optimizer.learning_rate: expected a number from 1e-12 to 1000, found '" +
                  std::string(bad) + "'");
  EXPECT_EQ(why("optimizer: {beta2: 1}"),
            "t.yaml:1: optimizer.beta2: expected a number from 0 to 0.999999, found '1'");
  EXPECT_EQ(why("optimizer: {learning_rate: 1e-4}"),
            "default: optimizer.final_learning_rate: expected at most optimizer.learning_rate "
            "(0.0001), found 0.0003");
  EXPECT_EQ(why("save: {every: 5}"),
            "t.yaml:1: save.every: expected 0 without save.directory, found 5: there is no "
            "directory to save to");
  EXPECT_EQ(why("ranks: {address: localhost}"),
            "t.yaml:1: ranks.address: expected an IP address such as 10.0.0.7, found 'localhost'");
  EXPECT_EQ(why("publish: {run_dir: here}"),
            "t.yaml:1: publish.run_dir: expected an absolute path, found 'here'");
  EXPECT_EQ(why("publish: {arenas: 2}"),
            "t.yaml:1: publish.arenas: expected a whole number from 3 to 16, found '2'");
  EXPECT_EQ(why("publish: {checkpoint: /m}"),
            "t.yaml:1: publish.checkpoint: unknown key; did you mean model.checkpoint?");
  EXPECT_EQ(why("optimiser: {beta1: 0}"),
            "t.yaml:1: optimiser.beta1: unknown key; did you mean optimizer.beta1?");
  EXPECT_EQ(why("modle: {}"), "t.yaml:1: modle: unknown section");
}

TEST(TrainConfig, VariablesAreKnown) {
  EXPECT_EQ(
      unknown_variables({{"WSYNC_OPTIMIZER_BETA1", "0"}, {"WSYNC_PUBLISH_MIN_REPLICAS", "1"}}),
      std::vector<std::string>{});
  EXPECT_EQ(unknown_variables({{"WSYNC_PARALELL_PP", "1"}}),
            std::vector<std::string>{
                "the environment sets WSYNC_PARALELL_PP, which is not a configuration key and has "
                "no effect; did you mean WSYNC_PARALLEL_PP?"});
}

TEST(TrainConfig, IsToldFromAPublisherOfDirectories) {
  const auto file = [](std::string_view text) {
    const std::string path = testing::TempDir() + "wsync-train-config.yaml";
    std::ofstream(path) << text;
    return is_train_config({.file = path});
  };
  EXPECT_EQ(file("model: {hidden: 8}"), true);
  EXPECT_EQ(file("parallel: {}\n"), true);
  EXPECT_EQ(file("steps: 3\nlog: {level: debug}"), true);
  EXPECT_EQ(file(example()), true);
  EXPECT_EQ(file(""), false);
  EXPECT_EQ(file("checkpoint: /m\nheartbeat: {interval: 1s}"), false);
  EXPECT_EQ(file("modle: {hidden: 8}"), false);
  EXPECT_EQ(is_train_config({}), false);
  EXPECT_EQ(is_train_config({.set = {"checkpoint=/m"}}), false);
  EXPECT_EQ(is_train_config({.set = {"steps=3"}}), true);
  EXPECT_EQ(file("a: [").error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(is_train_config({.file = "/nonexistent/t.yaml"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(load_train({.file = "/nonexistent/t.yaml"}).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace wsync::config
