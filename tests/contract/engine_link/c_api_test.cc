// The C API, and the C example as a process of its own, against a sidecar's end with real frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <wsync/engine.h>

#include "shared/base/weight_limits.h"
#include "tests/contract/engine_link/attached_rank.h"
#include "tests/support/bytes.h"

namespace wsync::engine::test {
namespace {

using testing::HasSubstr;

// One BF16 tensor [rows, 64].
Model one_tensor(std::uint64_t rows) {
  Model model;
  model.manifest =
      Manifest::create({{.name = "model.w", .dtype = DType::kBF16, .shape = {rows, 64}}}).value();
  model.plan = BucketPlan::create(model.manifest, limits::kBucketBytesMin).value();
  return model;
}

struct Recorder {
  wsync_engine* engine = nullptr;
  std::vector<std::string> calls;
  int commit_code = 0;
};

wsync_engine_options options_of(const std::string& path, Recorder& recorder) {
  wsync_engine_options options{};
  options.socket_path = path.c_str();
  options.replica = "r0";
  options.world_size = 1;
  options.leader = 1;
  options.user = &recorder;
  options.callbacks.pause = [](void* user, const wsync_pause*) {
    auto& r = *static_cast<Recorder*>(user);
    r.calls.emplace_back("pause");
    wsync_engine_report_paused(r.engine, 3);
    return 0;
  };
  options.callbacks.load_layer = [](void* user, wsync_version version, std::uint32_t,
                                    const wsync_layer_tensor* tensors, std::size_t count) {
    static_cast<Recorder*>(user)->calls.push_back("layer of " + std::to_string(version.step) +
                                                  ": " + std::to_string(count) + " tensor, " +
                                                  std::to_string(tensors[0].bytes) + " bytes");
    return 0;
  };
  options.callbacks.commit = [](void* user, wsync_version) {
    static_cast<Recorder*>(user)->calls.emplace_back("commit");
    return static_cast<Recorder*>(user)->commit_code;
  };
  options.callbacks.resume = [](void* user) {
    static_cast<Recorder*>(user)->calls.emplace_back("resume");
    return 0;
  };
  return options;
}

wsync_tensor tensor_of(const std::uint64_t* shape, void* destination) {
  wsync_tensor tensor{};
  tensor.name = "model.w";
  tensor.dtype = "BF16";
  tensor.shape = shape;
  tensor.shape_count = 2;
  tensor.destination = destination;
  return tensor;
}

TEST(EngineCApi, LoadsServesAndReportsItsState) {
  const Model model = one_tensor(4096);
  SidecarPeer peer;
  Recorder recorder;
  const std::string path = peer.path();
  const auto options = options_of(path, recorder);
  recorder.engine = wsync_engine_create(&options);
  const std::uint64_t shape[2] = {4096, 64};
  std::vector<std::byte> weights(4096 * 64 * 2);
  const auto tensor = tensor_of(shape, weights.data());
  ASSERT_EQ(wsync_engine_add_tensor(recorder.engine, &tensor), 0);
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0);
  EXPECT_NE(wsync_engine_add_tensor(recorder.engine, &tensor), 0);
  EXPECT_THAT(wsync_engine_error(recorder.engine), HasSubstr("after wsync_engine_attach"));
  EXPECT_GE(wsync_engine_fd(recorder.engine), 0);
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  const auto hello = peer.accept();
  ASSERT_EQ(hello.tensors.size(), 1U);
  EXPECT_EQ(hello.tensors[0].shape, (std::vector<std::uint64_t>{4096, 64}));
  peer.welcome_unified();

  const SharedArena arena = model.arena(kFirst);
  ByteWriter layout;
  model.manifest.encode(layout);
  const auto plan = reload::LoadPlan::make(model.manifest, model.plan, hello.tensors).value();
  const control::Prepare prepare{.version = kFirst,
                                 .layout_digest = model.manifest.layout_digest(),
                                 .layout = std::move(layout).take(),
                                 .bucket_bytes = model.plan.bucket_bytes(),
                                 .arena_bytes = model.plan.arena_bytes()};
  EXPECT_EQ(peer.ask<control::Prepared>(prepare, share(arena)).failure, "");
  EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = kFirst}).bytes, weights.size());
  EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
  peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(peer.ask<control::Paused>(control::Pause{}).step, 3U);
  EXPECT_TRUE(same_bytes(weights, arena.data().first(weights.size())));
  const auto state = wsync_engine_status(recorder.engine);
  EXPECT_EQ(state.state, WSYNC_STATE_PAUSED);
  EXPECT_EQ(state.active.step, 1U);
  EXPECT_EQ(state.attached, 1);
  // A callback that fails is told to the sidecar.
  EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
  recorder.commit_code = 9;
  EXPECT_THAT(peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure,
              HasSubstr("failed with 9"));
  wsync_engine_destroy(recorder.engine);
  EXPECT_THAT(recorder.calls,
              testing::ElementsAre("layer of 1: 1 tensor, 524288 bytes", "commit", "resume",
                                   "pause", "layer of 1: 1 tensor, 524288 bytes", "commit"));
}

// An engine that waits for its first version compares the number after each poll.
TEST(EngineCApi, ARefusalOfTheSidecarIsToldAndHeals) {
  SidecarPeer peer;
  Recorder recorder;
  const std::string path = peer.path();
  const auto options = options_of(path, recorder);
  recorder.engine = wsync_engine_create(&options);
  wsync_refusal refusal{};
  EXPECT_NE(wsync_engine_refusal(recorder.engine, &refusal), 0) << "it is not attached";
  const std::uint64_t shape[2] = {16, 64};
  std::vector<std::byte> weights(16 * 64 * 2);
  const auto tensor = tensor_of(shape, weights.data());
  ASSERT_EQ(wsync_engine_add_tensor(recorder.engine, &tensor), 0);
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0);
  EXPECT_NE(wsync_engine_refusal(recorder.engine, nullptr), 0);
  ASSERT_EQ(wsync_engine_refusal(recorder.engine, &refusal), 0);
  EXPECT_EQ(refusal.number, 0U);
  EXPECT_STREQ(refusal.sentence, "");
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  const auto refused = [&](std::uint64_t attempts) {
    const TimePoint end = soon();
    while (wsync_engine_status(recorder.engine).refusals < attempts && now() < end)
      std::this_thread::yield();
    EXPECT_EQ(wsync_engine_status(recorder.engine).refusals, attempts);
    EXPECT_EQ(wsync_engine_refusal(recorder.engine, &refusal), 0);
    return refusal.number;
  };
  const control::Refuse misfit{.reason = "it does not fit",
                               .problems = {{.kind = control::ProblemKind::kDtype,
                                             .tensor = "model.w",
                                             .detail = "another dtype",
                                             .expected = "BF16 [16, 64]",
                                             .found = "F32 [16, 64]"}}};
  for (const std::uint64_t attempt : {1U, 2U}) {
    peer.accept();
    peer.send(misfit);
    EXPECT_EQ(refused(attempt), 1U) << "the second one repeats the first";
    EXPECT_EQ(refusal.holds, 1);
    EXPECT_THAT(refusal.sentence, HasSubstr("the sidecar refuses this engine: it does not fit"));
    EXPECT_STREQ(refusal.problem.tensor, "model.w");
    EXPECT_STREQ(refusal.problem.expected, "BF16 [16, 64]");
    EXPECT_STREQ(refusal.problem.found, "F32 [16, 64]");
    peer.hang_up();
  }
  peer.accept();
  peer.send(control::Refuse{.reason = "it is attached already", .problems = {}});
  EXPECT_EQ(refused(3), 2U);
  EXPECT_STREQ(refusal.problem.tensor, "");
  EXPECT_STREQ(refusal.problem.expected, "");
  peer.hang_up();
  peer.accept();
  peer.welcome_unified();
  peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(refused(3), 2U);
  EXPECT_EQ(refusal.holds, 0);
  wsync_engine_destroy(recorder.engine);
}

TEST(EngineCApi, BadArgumentsAreRefusedWithASentence) {
  EXPECT_EQ(wsync_engine_create(nullptr), nullptr);
  Recorder recorder;
  auto options = options_of("/nowhere/engine.sock", recorder);
  const std::string path = "/nowhere/engine.sock";
  options.socket_path = path.c_str();
  options.callbacks.resume = nullptr;
  EXPECT_EQ(wsync_engine_create(&options), nullptr);
  options = options_of(path, recorder);
  options.rank = 4;
  wsync_engine* engine = wsync_engine_create(&options);
  EXPECT_NE(wsync_engine_report_starting(engine), 0);
  EXPECT_THAT(wsync_engine_error(engine), HasSubstr(path));
  const std::uint64_t shape[2] = {4, 64};
  auto tensor = tensor_of(shape, nullptr);
  EXPECT_NE(wsync_engine_add_tensor(engine, &tensor), 0);
  EXPECT_THAT(wsync_engine_error(engine), HasSubstr("destination is NULL"));
  tensor.dtype = "bf16";
  EXPECT_NE(wsync_engine_add_tensor(engine, &tensor), 0);
  EXPECT_THAT(wsync_engine_error(engine), HasSubstr("dtype bf16 is unknown"));
  std::byte memory[8];
  const wsync_range range{.dim = 1, .begin = 60, .length = 8};
  tensor = tensor_of(shape, memory);
  tensor.ranges = &range;
  tensor.range_count = 1;
  EXPECT_NE(wsync_engine_add_tensor(engine, &tensor), 0);
  EXPECT_THAT(wsync_engine_error(engine), HasSubstr("dimension 1"));
  EXPECT_NE(wsync_engine_attach(engine), 0);
  EXPECT_THAT(wsync_engine_error(engine), HasSubstr("rank 4 of 1"));
  EXPECT_NE(wsync_engine_poll(engine, 0), 0);
  wsync_engine_destroy(engine);
  wsync_engine_destroy(nullptr);
}

TEST(EngineCApi, ARefusalOfAVersionIsTheSentenceOfTheEngine) {
  const Model model = one_tensor(4096);
  SidecarPeer peer;
  Recorder recorder;
  const std::string path = peer.path();
  auto options = options_of(path, recorder);
  options.take = WSYNC_TAKE_BORROW;
  options.any_layout = 1;
  options.callbacks.load_layer = [](void*, wsync_version, std::uint32_t, const wsync_layer_tensor*,
                                    std::size_t) -> int { return 0; };
  options.callbacks.check_version = [](void* user, wsync_version version) {
    if (version.step == 1)
      wsync_engine_fail(static_cast<Recorder*>(user)->engine, "there is no place for model.w");
    return 5;
  };
  recorder.engine = wsync_engine_create(&options);
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0) << wsync_engine_error(recorder.engine);
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  peer.accept();
  peer.welcome_unified();
  const SharedArena first = model.arena(kFirst);
  const auto refused = peer.ask<control::Prepared>(prepare_of(model, kFirst), share(first));
  EXPECT_TRUE(refused.is_refused);
  EXPECT_EQ(refused.failure, "there is no place for model.w");
  const Version second{.epoch = 1, .step = 2};
  const SharedArena other = model.arena(second);
  EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, second), share(other)).failure,
            "the engine gives no reason (code 5)");
  wsync_engine_destroy(recorder.engine);
}

TEST(EngineCApi, TheSentenceOfTheEngineIsWhatTheFleetReads) {
  const Model model = one_tensor(4096);
  SidecarPeer peer;
  Recorder recorder;
  const std::string path = peer.path();
  auto options = options_of(path, recorder);
  options.take = WSYNC_TAKE_BORROW;
  options.any_layout = 1;
  options.callbacks.check_version = [](void* user, wsync_version version) {
    auto& r = *static_cast<Recorder*>(user);
    std::uint32_t count = 0;
    wsync_tensor_info info{};
    EXPECT_EQ(wsync_engine_tensor_count(r.engine, version, &count), 0);
    EXPECT_EQ(wsync_engine_tensor_info(r.engine, version, 0, &info), 0);
    r.calls.push_back(std::to_string(count) + " tensor: " + info.name + " " + info.dtype + " [" +
                      std::to_string(info.shape[0]) + ", " + std::to_string(info.shape[1]) + "], " +
                      std::to_string(info.bytes) + " bytes");
    EXPECT_NE(wsync_engine_tensor_info(r.engine, version, 1, &info), 0);
    EXPECT_THAT(wsync_engine_error(r.engine), HasSubstr("1 tensors for this rank, so number 1"));
    EXPECT_NE(wsync_engine_tensor_count(r.engine, {.epoch = 9, .step = 9}, &count), 0);
    EXPECT_THAT(wsync_engine_error(r.engine), HasSubstr("9.9 is neither staged nor served here"));
    return 0;
  };
  options.callbacks.load_layer = [](void*, wsync_version, std::uint32_t, const wsync_layer_tensor*,
                                    std::size_t) -> int { return WSYNC_LATER; };
  options.callbacks.commit = [](void* user, wsync_version) {
    auto& r = *static_cast<Recorder*>(user);
    wsync_engine_fail(r.engine, "the head could not be packed");
    return r.commit_code;
  };
  recorder.engine = wsync_engine_create(&options);
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0) << wsync_engine_error(recorder.engine);
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  EXPECT_TRUE(peer.accept().any_layout);
  peer.welcome_unified();
  const SharedArena arena = model.arena(kFirst);
  EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  EXPECT_THAT(recorder.calls,
              testing::ElementsAre("1 tensor: model.w BF16 [4096, 64], 524288 bytes"));
  const auto load = [&](int code, const char* why) {
    peer.send(control::Load{.version = kFirst});
    const auto request = peer.envelope.request;
    peer.ask<control::Pong>(control::Ping{});
    wsync_engine_fail(recorder.engine, why);
    wsync_engine_report_loaded(recorder.engine, {.epoch = 1, .step = 1}, code);
    const auto loaded = peer.expect<control::Loaded>();
    EXPECT_EQ(peer.last_envelope.request, request);
    return loaded.failure;
  };
  EXPECT_EQ(load(5, "expert 7 does not fit"), "the engine's load failed: expert 7 does not fit");
  EXPECT_EQ(load(5, nullptr), "the engine's load failed with 5");
  EXPECT_EQ(load(0, "of a call that has succeeded"), "");
  recorder.commit_code = 9;
  EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure,
            "the engine's commit callback failed: the head could not be packed");
  EXPECT_EQ(load(0, nullptr), "");
  recorder.commit_code = WSYNC_LATER;
  peer.send(control::Commit{.version = kFirst});
  peer.ask<control::Pong>(control::Ping{});
  wsync_engine_fail(recorder.engine, nullptr);
  wsync_engine_report_committed(recorder.engine, {.epoch = 1, .step = 1}, 0);
  EXPECT_EQ(peer.expect<control::Committed>().failure, "");
  EXPECT_EQ(wsync_engine_status(recorder.engine).active.step, 1U);
  wsync_engine_destroy(recorder.engine);
}

TEST(EngineCApi, APauseSaysWhatItIsFor) {
  SidecarPeer peer;
  Recorder recorder;
  const std::string path = peer.path();
  auto options = options_of(path, recorder);
  options.serving = 1;
  options.callbacks.pause = [](void* user, const wsync_pause* pause) {
    auto& r = *static_cast<Recorder*>(user);
    r.calls.push_back(std::to_string(pause->mode) + " for " + std::to_string(pause->version.step) +
                      ": " + std::to_string(pause->bytes) + " bytes in " +
                      std::to_string(pause->deadline_ms));
    wsync_engine_report_paused(r.engine, 3);
    return 0;
  };
  recorder.engine = wsync_engine_create(&options);
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0);
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  peer.accept();
  peer.welcome_unified();
  peer.ask<control::Paused>(control::Pause{
      .mode = PauseMode::kKeep, .deadline_ms = 250, .version = kFirst, .bytes = 1'000});
  wsync_engine_destroy(recorder.engine);
  EXPECT_THAT(recorder.calls, testing::ElementsAre("2 for 1: 1000 bytes in 250"));
}

TEST(EngineCApi, AControllerIsTheLastRankAndHasNoWeights) {
  const Model model = one_tensor(4096);
  SidecarPeer peer;
  Recorder recorder;
  const std::string path = peer.path();
  auto options = options_of(path, recorder);
  options.rank = 99;  // ignored
  options.world_size = 2;
  options.has_controller = 1;
  options.callbacks.commit = nullptr;
  options.callbacks.load_layer = nullptr;
  EXPECT_NE(recorder.engine = wsync_engine_create(&options), nullptr);
  const std::uint64_t shape[2] = {4, 64};
  std::byte memory[4 * 64 * 2];
  const wsync_tensor tensor = tensor_of(shape, memory);
  EXPECT_NE(wsync_engine_add_tensor(recorder.engine, &tensor), 0);
  EXPECT_THAT(wsync_engine_error(recorder.engine), HasSubstr("a controller has no weights"));
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0);
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  const auto hello = peer.accept();
  EXPECT_EQ(peer.last_envelope.rank, 2U);
  EXPECT_EQ(hello.world_size, 3U);
  EXPECT_TRUE(hello.leader);
  EXPECT_TRUE(hello.has_controller);
  EXPECT_TRUE(hello.tensors.empty());
  peer.envelope.rank = 2;
  peer.welcome_unified();
  SharedArena arena = model.arena(kFirst);
  EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
  EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
  peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(peer.ask<control::Paused>(control::Pause{}).step, 3U);
  const auto state = wsync_engine_status(recorder.engine);
  EXPECT_EQ(state.active.step, 1U);
  wsync_engine_destroy(recorder.engine);
  EXPECT_THAT(recorder.calls, testing::ElementsAre("resume", "pause"));

  // A rank of the same replica.
  options = options_of(path, recorder);
  options.leader = 0;
  options.rank = 1;
  options.world_size = 2;
  options.has_controller = 1;
  recorder.engine = wsync_engine_create(&options);
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0);
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  const auto of_rank = peer.accept();
  EXPECT_EQ(of_rank.world_size, 3U);
  EXPECT_FALSE(of_rank.leader);
  EXPECT_TRUE(of_rank.has_controller);
  EXPECT_EQ(peer.last_envelope.rank, 1U);
  wsync_engine_destroy(recorder.engine);
}

TEST(EngineCApi, AnEngineWithoutReadTensorIsUnreadableAndOneWhoseReadFailsIsNot) {
  const Model model = one_tensor(4096);
  for (const bool can_read : {false, true}) {
    SidecarPeer peer;
    Recorder recorder;
    const std::string path = peer.path();
    auto options = options_of(path, recorder);
    options.take = WSYNC_TAKE_WHOLE;
    if (can_read)
      options.callbacks.read_tensor = [](void* user, std::uint32_t, std::uint64_t, void*,
                                         std::size_t) {
        wsync_engine_fail(static_cast<Recorder*>(user)->engine, "this tensor cannot be read back");
        return 1;
      };
    recorder.engine = wsync_engine_create(&options);
    const std::uint64_t shape[2] = {4096, 64};
    const auto tensor = tensor_of(shape, nullptr);
    ASSERT_EQ(wsync_engine_add_tensor(recorder.engine, &tensor), 0);
    ASSERT_EQ(wsync_engine_attach(recorder.engine), 0);
    ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
    peer.accept();
    peer.welcome_unified();
    const SharedArena arena = model.arena(kFirst);
    EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
    EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
    EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
    const auto digests = peer.ask<control::Digests>(control::ReadDigests{});
    EXPECT_TRUE(digests.tensors.empty());
    EXPECT_EQ(digests.failure,
              can_read ? "the engine's read_tensor callback failed: this tensor cannot be read back"
                       : "this engine gives no read_tensor, so its tensors cannot be read back");
    EXPECT_EQ(digests.is_unreadable, !can_read);
    wsync_engine_destroy(recorder.engine);
  }
}

TEST(EngineCApi, ADeviceThatDoesNotExistIsRefusedWhenItIsAttached) {
  Recorder recorder;
  const std::string path = "/nowhere/engine.sock";
  const auto refusal = [&](int weights_on, int gpu) {
    auto options = options_of(path, recorder);
    options.weights_on = static_cast<wsync_device>(weights_on);
    options.gpu = gpu;
    wsync_engine* engine = wsync_engine_create(&options);
    EXPECT_NE(wsync_engine_attach(engine), 0);
    const std::string error = wsync_engine_error(engine);
    wsync_engine_destroy(engine);
    return error;
  };
  EXPECT_THAT(refusal(7, 0), HasSubstr("weights_on is 7"));
  EXPECT_THAT(refusal(WSYNC_DEVICE_CUDA, -1), HasSubstr("gpu is -1"));
}

TEST(EngineCApi, ASecondStartIsRefusedAndTheFirstOneServesOn) {
  SidecarPeer peer;
  Recorder recorder;
  const std::string path = peer.path();
  const auto options = options_of(path, recorder);
  recorder.engine = wsync_engine_create(&options);
  ASSERT_NE(recorder.engine, nullptr);
  const std::uint64_t shape[2] = {4, 64};
  std::vector<std::byte> memory(4 * 64 * 2);
  const wsync_tensor tensor = tensor_of(shape, memory.data());
  ASSERT_EQ(wsync_engine_add_tensor(recorder.engine, &tensor), 0);
  ASSERT_EQ(wsync_engine_attach(recorder.engine), 0) << wsync_engine_error(recorder.engine);
  ASSERT_EQ(wsync_engine_start(recorder.engine), 0);
  EXPECT_NE(wsync_engine_start(recorder.engine), 0);
  EXPECT_THAT(wsync_engine_error(recorder.engine), HasSubstr("already been started"));
  peer.accept();
  peer.welcome_unified();
  wsync_engine_stop(recorder.engine);
  EXPECT_NE(wsync_engine_start(recorder.engine), 0);
  EXPECT_THAT(wsync_engine_error(recorder.engine), HasSubstr("has already been stopped"));
  wsync_engine_destroy(recorder.engine);
}

TEST(EngineCApi, TheCExampleTakesAVersionAndServesIt) {
  const Model model = one_tensor(600);
  SidecarPeer peer;
  std::string path = peer.path();
  std::string arguments[] = {WSYNC_EXAMPLE_ENGINE, path, "r0", "model.w", "600", "64"};
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, WSYNC_EXAMPLE_ENGINE, nullptr, nullptr, argv.data(), environ), 0);
  const auto hello = peer.accept();
  peer.welcome_unified();
  const SharedArena arena = model.arena(kFirst);
  ByteWriter layout;
  model.manifest.encode(layout);
  const auto plan = reload::LoadPlan::make(model.manifest, model.plan, hello.tensors).value();
  peer.ask<control::Prepared>(control::Prepare{.version = kFirst,
                                               .layout_digest = model.manifest.layout_digest(),
                                               .layout = std::move(layout).take(),
                                               .bucket_bytes = model.plan.bucket_bytes(),
                                               .arena_bytes = model.plan.arena_bytes()},
                              share(arena));
  EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
  EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
  const auto digests = peer.ask<control::Digests>(control::ReadDigests{});
  ASSERT_EQ(digests.tensors.size(), 1U);
  EXPECT_EQ(digests.tensors[0].digest, reload::expected_digest(plan.tensors()[0], arena.data()));
  peer.ask<control::Resumed>(control::Resume{});
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace wsync::engine::test
