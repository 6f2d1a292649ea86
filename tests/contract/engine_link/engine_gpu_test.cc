// The engine library with weights on a GPU, against buffers of another process. Over the emulated
// driver (tests/emulated_cuda), whose copies take their time.
#include <atomic>
#include <filesystem>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <wsync/engine.h>

#include "inference_side/engine_link/engine_link.h"
#include "tests/contract/engine_link/gpu_rank.h"
#include "tests/support/misuse_report.h"
#include "tests/support/run_again.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::AllOf;
using testing::HasSubstr;

[[maybe_unused]] const auto* const kReport = testing::AddGlobalTestEnvironment(new MisuseReport);

TEST(EngineOnGpu, TwoVersionsThroughBuffersThatAreKept) {
  const Model model = with_odd_rows();
  GpuSidecar sidecar(model.plan.largest_bucket());
  for (const std::uint32_t r : {0U, 1U}) {
    GpuRank rank(model, r, 2);
    std::atomic<std::uint64_t> early = 0;
    rank.engine.after_copy = [&] {
      pollfd answer{.fd = rank.peer.socket(), .events = POLLIN, .revents = 0};
      if (::poll(&answer, 1, 0) != 0) ++early;
    };
    rank.start();
    const auto hello = rank.peer.accept();
    EXPECT_EQ(hello.gpu, rank.device->uuid());
    EXPECT_THAT(hello.gpu, testing::StartsWith("GPU-"));
    rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
    const SharedArena first = model.arena(kFirst);
    rank.load(sidecar, first, kFirst);
    // The last acknowledgement may get lost; the bucket then comes again.
    EXPECT_EQ(rank.give(sidecar, first, model.plan.bucket_count() - 1).failure, "");
    rank.commit(kFirst);
    rank.expect_holds(first);
    const SharedArena second = model.arena(kSecond);
    rank.load(sidecar, second, kSecond);
    rank.commit(kSecond);
    rank.expect_holds(second);
    EXPECT_EQ(early, 0U) << "acknowledgements that were there before the copy was complete";
    EXPECT_EQ(rank.link->status().active, kSecond);
  }
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST(EngineOnGpu, BuffersOfALoadAreGivenBackBeforeItIsToldAsLoaded) {
  const Model model = Model::make();
  GpuRank rank(model);
  rank.start();
  rank.peer.accept();
  rank.peer.send(rank.welcome({}));
  for (const Version version : {kFirst, kSecond}) {
    GpuSidecar sidecar(model.plan.largest_bucket());
    const SharedArena arena = model.arena(version);
    const auto before = open_descriptors();
    rank.load(sidecar, arena, version, sidecar.handles());
    // The first load makes the stream. In the emulated driver each mapping holds a descriptor.
    if (version == kSecond) {
      EXPECT_EQ(open_descriptors(), before);
    }
    sidecar.free_buffers();
    rank.commit(version);
    rank.expect_holds(arena);
  }
  // Without any there is nothing to read from.
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kSecond}).failure,
              HasSubstr("received 0 handles of IPC buffers with 0 descriptors, expected 2"));
  EXPECT_EQ(rank.link->status().state, RankState::kPaused);
}

// The sidecar compares the sums, so the rank only has to tell what it has read.
TEST(EngineOnGpu, TheSumsOfALoadAreThoseOfTheBytesThatCame) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  GpuRank rank(model);
  rank.start();
  rank.peer.accept();
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  const SharedArena arena = model.arena(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket) {
    const auto flipped = bucket == 0 ? std::optional<std::size_t>(100'000) : std::nullopt;
    EXPECT_EQ(rank.give(sidecar, arena, bucket, flipped).failure, "");
  }
  const auto wrong = rank.peer.expect<control::Loaded>();
  EXPECT_EQ(wrong.failure, "");
  const auto plan = plan_of(model, rank.engine);
  ASSERT_EQ(wrong.sums.size(), plan.tensors().size());
  for (std::size_t t = 0; t < wrong.sums.size(); ++t) {
    const std::string& name = rank.engine.description.tensors[t].description.name;
    EXPECT_EQ(wrong.sums[t] == reload::expected_sum(plan.tensors()[t], arena.data()),
              name != "model.embed_tokens.weight")
        << name;
  }
  rank.load(sidecar, arena, kFirst);
  rank.commit(kFirst);
  rank.expect_holds(arena);
}

// A handle in the welcome ends the connection, whose end the rank tells with its reason first; the
// weights that it serves are left alone.
void expect_refused(const Model& model, const control::EngineWelcome& welcome,
                    std::vector<UniqueFd> fds, const testing::Matcher<std::string>& reason) {
  GpuRank rank(model);
  rank.start(true);
  EXPECT_EQ(rank.peer.accept().state, RankState::kServing);
  rank.peer.send(welcome, std::move(fds));
  EXPECT_THAT(rank.peer.expect<control::ErrorReply>().message, reason);
  rank.peer.expect_closed();
  EXPECT_THAT(rank.link->status().last_error, reason);
  EXPECT_EQ(rank.peer.accept().state, RankState::kServing) << "it does not attach again";
  EXPECT_TRUE(rank.engine.calls.empty());
}

// Descriptors of something else than GPU memory.
std::vector<UniqueFd> plain_files() {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 2; ++i) fds.emplace_back(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  return fds;
}

TEST(EngineOnGpu, BuffersThatCannotBeMappedAreRefusedWithTheReason) {
  const Model model = Model::make();
  const std::uint64_t bytes = model.plan.largest_bucket();
  GpuSidecar sidecar(bytes);
  control::EngineWelcome welcome{.generation = GpuSidecar::kGeneration,
                                 .device_kind = DeviceKind::kCuda,
                                 .buffer_bytes = bytes,
                                 .buffers = sidecar.handles()};
  auto bad = welcome;
  bad.buffer_bytes = bytes / 2;
  expect_refused(model, bad, sidecar.fds(),
                 AllOf(HasSubstr("IPC buffer 0"), HasSubstr("imported GPU memory: expected")));
  bad = welcome;
  bad.buffer_bytes = 0;
  expect_refused(model, bad, sidecar.fds(), HasSubstr("IPC buffers of 0 bytes are announced"));
  bad = welcome;
  bad.buffers.pop_back();
  expect_refused(model, bad, sidecar.fds(),
                 HasSubstr("received 1 handles of IPC buffers with 2 descriptors, expected 2"));
  bad = welcome;
  bad.buffers[1].opaque.resize(40);
  expect_refused(model, bad, sidecar.fds(), HasSubstr("IPC buffer 1"));
  bad = welcome;
  bad.device_kind = DeviceKind::kUnified;
  expect_refused(model, bad, {},
                 AllOf(HasSubstr("is a host device"), HasSubstr("devices.kind: cuda")));
  bad.device_kind = DeviceKind::kCuda;
  bad.generation = GpuSidecar::kGeneration + 1;
  expect_refused(model, bad, sidecar.fds(),
                 AllOf(HasSubstr("IPC buffer 0: its handle is stale"),
                       HasSubstr("000000005eed1e55"), HasSubstr("000000005eed1e56")));
  bad = welcome;
  bad.buffers[1].generation = 0;
  expect_refused(model, bad, sidecar.fds(), HasSubstr("IPC buffer 1: its handle is stale"));
  const GpuSidecar other(bytes, 1);
  bad.buffers = other.handles();
  expect_refused(model, bad, other.fds(),
                 AllOf(HasSubstr("is on GPU"), HasSubstr("this device is GPU")));
  expect_refused(model, welcome, {}, HasSubstr("2 handles of IPC buffers with 0 descriptors"));
  expect_refused(
      model, welcome, plain_files(),
      HasSubstr(fmt::format("the GPU memory of process {} cannot be mapped", sidecar.pid())));
}

TEST(EngineOnGpu, HandlesInALoadThatCannotBeMappedLeaveTheOldWeights) {
  const Model model = Model::make();
  GpuRank rank(model);
  rank.start();
  rank.peer.accept();
  rank.peer.send(rank.welcome({}));
  const SharedArena first = model.arena(kFirst);
  GpuSidecar sidecar(model.plan.largest_bucket());
  rank.load(sidecar, first, kFirst, sidecar.handles());
  rank.commit(kFirst);
  const SharedArena second = model.arena(kSecond);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
  const control::Load load{.version = kSecond, .buffers = sidecar.handles()};
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load, plain_files()).failure,
              HasSubstr("cannot be mapped"));
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load).failure, HasSubstr("with 0 descriptors"));
  EXPECT_EQ(rank.link->status().state, RankState::kPaused);
  rank.expect_holds(first);
  rank.peer.ask<control::Resumed>(control::Resume{});
}

TEST(EngineOnGpu, StaleHandlesInALoadLeaveTheOldWeightsAndTheNextLoadIsTaken) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  for (const bool kept : {false, true}) {
    GpuRank rank(model);
    rank.start();
    rank.peer.accept();
    const std::vector<control::BufferHandle> none;
    rank.peer.send(rank.welcome(kept ? sidecar.handles() : none),
                   kept ? sidecar.fds() : std::vector<UniqueFd>());
    const SharedArena first = model.arena(kFirst);
    rank.load(sidecar, first, kFirst, kept ? none : sidecar.handles());
    rank.commit(kFirst);
    const SharedArena second = model.arena(kSecond);
    EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
    // The driver would open them: the process lives.
    auto stale = sidecar.handles();
    stale[1].generation += 7;
    EXPECT_THAT(
        rank.peer
            .ask<control::Loaded>(control::Load{.version = kSecond, .buffers = std::move(stale)},
                                  sidecar.fds())
            .failure,
        HasSubstr("IPC buffer 1: its handle is stale"));
    EXPECT_EQ(rank.link->status().state, RankState::kPaused);
    EXPECT_EQ(rank.link->status().active, kFirst);
    rank.expect_holds(first);
    rank.load(sidecar, second, kSecond, kept ? none : sidecar.handles());
    rank.commit(kSecond);
    rank.expect_holds(second);
  }
}

// A sidecar that has ended, by itself or not, takes nothing from under a copy that runs.
TEST(EngineOnGpu, BuffersOfASidecarThatIsGoneCanStillBeRead) {
  const Model model = Model::make();
  GpuRank rank(model);
  rank.start();
  rank.peer.accept();
  const SharedArena arena = model.arena(kFirst);
  GpuSidecar sidecar(model.plan.largest_bucket());
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  for (const std::uint64_t bucket : {0U, 1U})
    sidecar.put(
        static_cast<std::uint32_t>(bucket),
        arena.data().subspan(model.plan.bucket_offset(bucket), model.plan.bucket_size(bucket)));
  sidecar.free_buffers();
  const control::BucketReady first{.bucket = 0, .slot = 0};
  EXPECT_EQ(rank.peer.ask<control::BucketAck>(first).failure, "");
  sidecar.kill();
  const control::BucketReady second{.bucket = 1, .slot = 1};
  EXPECT_EQ(rank.peer.ask<control::BucketAck>(second).failure, "");
}

TEST(EngineOnGpu, ASidecarThatIsLostInsideABucketLeavesTheRankTaintedAndAnotherOneRepairsIt) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  GpuSidecar another(model.plan.largest_bucket());
  GpuRank rank(model);
  rank.start();
  {
    GpuSidecar sidecar(model.plan.largest_bucket());
    rank.peer.accept();
    rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
    EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
    rank.peer.send(control::Load{.version = kFirst});
    EXPECT_EQ(rank.give(sidecar, arena, 0).failure, "");
    sidecar.put(1, arena.data().subspan(model.plan.bucket_offset(1), model.plan.bucket_size(1)));
    rank.peer.send(control::BucketReady{.bucket = 1, .slot = 1});
    sidecar.kill();  // the engine may be reading
    rank.peer.hang_up();
  }
  EXPECT_EQ(rank.peer.accept().state, RankState::kTainted);
  rank.peer.send(rank.welcome(another.handles()), another.fds());
  EXPECT_NE(rank.peer.ask<control::BucketAck>(control::BucketReady{.bucket = 1, .slot = 1}).failure,
            "");
  rank.load(another, arena, kFirst);
  rank.commit(kFirst);
  rank.expect_holds(arena);
}

TEST(EngineOnGpu, WhatIsNoMemoryOfTheGpuIsRefusedByTheTensorsName) {
  const Model model = Model::make();
  GpuRank rank(model);
  std::vector<std::byte> host(rank.engine.description.tensors[1].destination.size());
  rank.engine.description.tensors[1].destination = host;
  const auto made = EngineLink::create(rank.engine.description, rank.peer.path(), rank.engine);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(),
              HasSubstr("tensor " + rank.engine.description.tensors[1].description.name));
  auto description = rank.engine.description;
  description.take = TakeMode::kAdopt;
  const auto adopting = EngineLink::create(description, rank.peer.path(), rank.engine);
  ASSERT_FALSE(adopting);
  EXPECT_THAT(adopting.error().message(),
              AllOf(HasSubstr("versions cannot be adopted on GPU 0"), HasSubstr("two copies")));
  const auto other = device::make_device({.kind = DeviceKind::kCuda, .gpu = 1}).value();
  GpuRank elsewhere(model);
  elsewhere.engine.description.gpu = other.get();
  EXPECT_FALSE(
      EngineLink::create(elsewhere.engine.description, rank.peer.path(), elsewhere.engine));
}

// Of a process of its own (the test below): a GPU whose kernel has failed does nothing more in it.
TEST(EngineOnFailingGpu, DISABLED_ABucketFailsAndTheLinkStays) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  GpuRank rank(model);
  rank.start();
  rank.peer.accept();
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  const SharedArena arena = model.arena(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  const auto ack = rank.give(sidecar, arena, 0);
  EXPECT_THAT(ack.failure, AllOf(HasSubstr("bucket 0"), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")));
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, ack.failure);
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  // The next one does not begin.
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure,
              HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  EXPECT_THAT(rank.peer.ask<control::Digests>(control::ReadDigests{}).failure,
              HasSubstr("its last load has not ended well"));
}

TEST(EngineOnFailingGpu, ABucketFailsAndTheLinkStays) {
  EXPECT_EQ(run_again("EngineOnFailingGpu.DISABLED_ABucketFailsAndTheLinkStays",
                      {"WSYNC_EMULATED_CUDA_FAULTS=kernel:4:CUDA_ERROR_ILLEGAL_ADDRESS",
                       "WSYNC_EMULATED_CUDA_REPORT="}),  // to the error stream
            0);
}

wsync_engine_options c_options(const std::string& path, int gpu) {
  wsync_engine_options options{};
  options.socket_path = path.c_str();
  options.replica = "r0";
  options.world_size = 1;
  options.leader = 1;
  options.callbacks.pause = [](void*, const wsync_pause*) { return 0; };
  options.callbacks.commit = [](void*, wsync_version) { return 0; };
  options.callbacks.resume = [](void*) { return 0; };
  options.weights_on = WSYNC_DEVICE_CUDA;
  options.gpu = gpu;
  return options;
}

TEST(EngineOnGpu, TheCApiTakesDevicePointersAndNoOthers) {
  SidecarPeer peer;
  const std::string path = peer.path();
  const auto device = device::make_device({.kind = DeviceKind::kCuda, .gpu = 1}).value();
  constexpr std::uint64_t kAllocation = std::uint64_t{2} << 20U;
  const auto memory = device->allocate(kAllocation).value();
  std::vector<std::byte> host(4096);
  const std::uint64_t shape[2] = {32, 64};
  wsync_tensor tensor{};
  tensor.name = "model.w";
  tensor.dtype = "BF16";
  tensor.shape = shape;
  tensor.shape_count = 2;
  const auto attach = [&](int gpu, void* destination) {
    const auto options = c_options(path, gpu);
    wsync_engine* engine = wsync_engine_create(&options);
    tensor.destination = destination;
    EXPECT_EQ(wsync_engine_add_tensor(engine, &tensor), 0);
    const int attached = wsync_engine_attach(engine);
    std::string error = attached == 0 ? "" : wsync_engine_error(engine);
    if (attached == 0) {
      EXPECT_EQ(wsync_engine_start(engine), 0);
      EXPECT_EQ(peer.accept().gpu, device->uuid());
    }
    wsync_engine_destroy(engine);
    return error;
  };
  EXPECT_EQ(attach(1, memory->address()), "");
  EXPECT_THAT(attach(1, host.data()), HasSubstr("tensor model.w"));
  EXPECT_THAT(attach(0, memory->address()), HasSubstr("tensor model.w"));
  EXPECT_THAT(attach(1, memory->address() + kAllocation - 1000), HasSubstr("tensor model.w"));
  EXPECT_THAT(attach(7, memory->address()), HasSubstr("7"));
}

}  // namespace
}  // namespace wsync::engine::test
