// Which ranks may attach, and what is known of those that have.
#include "inference_side/sidecar/engine_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/limits.h"

namespace wsync::agent {
namespace {

using reload::EngineId;
using testing::HasSubstr;

const std::string kGpu0 = "GPU-00000000-0000-0000-0000-000000000000";
const std::string kGpu1 = "GPU-00000000-0000-0000-0000-000000000001";

Manifest model() {
  return Manifest::create({{.name = "a", .dtype = DType::kU8, .shape = {64}},
                           {.name = "b", .dtype = DType::kF32, .shape = {10, 3}}})
      .value();
}

std::vector<control::EngineTensor> tensors(const Manifest& manifest) {
  std::vector<control::EngineTensor> out;
  for (std::size_t i = 0; i < manifest.size(); ++i)
    out.push_back({.name = manifest.tensor(i).name,
                   .dtype = manifest.tensor(i).dtype,
                   .shape = manifest.tensor(i).shape});
  return out;
}

class EngineRegistryTest : public testing::Test {
 protected:
  [[nodiscard]] static control::Envelope from(const std::string& replica, std::uint32_t rank = 0,
                                              std::uint64_t fence_epoch = 0) {
    control::Envelope envelope;
    envelope.replica = replica;
    envelope.rank = rank;
    envelope.fence.epoch = fence_epoch;
    return envelope;
  }
  void attach(const std::string& replica, std::uint32_t rank, std::uint32_t world_size = 1,
              std::uint32_t device = 0) {
    registry_.attach(
        {.id = EngineId{++next_},
         .replica = replica,
         .rank = rank,
         .world_size = world_size,
         .device = device,
         .tensors = std::make_shared<const std::vector<control::EngineTensor>>(tensors(model()))});
  }
  [[nodiscard]] std::string reason(const control::Envelope& envelope,
                                   const control::EngineHello& hello) const {
    const auto refusal = registry_.refusal_of(envelope, hello, fence_, nullptr);
    return refusal ? refusal->reason : "";
  }
  control::Fence fence_{.epoch = 5};
  EngineRegistry registry_{RegistryDevices{}};
  std::uint32_t next_ = 0;
};

TEST_F(EngineRegistryTest, ARankOfAGoodHelloMayAttach) {
  EXPECT_FALSE(registry_.refusal_of(from("a", 1, 5), {.world_size = 2}, fence_, nullptr));
}

TEST_F(EngineRegistryTest, ReplicasAndRanksMustAddUp) {
  EXPECT_EQ(reason(from(""), {}), "EngineHello has no replica name");
  EXPECT_THAT(reason(from("a", 0, 6), {}),
              HasSubstr("has seen fence epoch 6, but this sidecar has seen only epoch 5"));
  EXPECT_EQ(reason(from("a", 2), {.world_size = 2}),
            "rank 2 does not exist in a replica of 2 ranks");
  EXPECT_EQ(reason(from("a"), {.world_size = 0}), "rank 0 does not exist in a replica of 0 ranks");
  EXPECT_EQ(reason(from("a"), {.world_size = limits::kReplicaRankCount + 1}),
            "rank 0 does not exist in a replica of 257 ranks");
  attach("a", 0, 2);
  EXPECT_EQ(reason(from("a", 0), {.world_size = 2}),
            "replica 'a' rank 0 is attached already, as a process in another PID namespace: start "
            "this engine under another name of its replica (--replica), or end that process");
  EXPECT_EQ(reason(from("a", 1), {.world_size = 3}), "replica 'a' has 2 ranks, not 3");
  EXPECT_EQ(reason(from("a", 1), {.world_size = 2}), "");
  EXPECT_EQ(reason(from("b", 0), {.world_size = 3}), "");
}

TEST_F(EngineRegistryTest, AnEngineOfAnotherModelThanIsServedIsToldWhichTensorDoesNotFit) {
  const Manifest served = model();
  control::EngineHello hello;
  hello.tensors = tensors(served);
  EXPECT_FALSE(registry_.refusal_of(from("a"), hello, fence_, &served));
  hello.tensors[1].shape[0] = 11;
  attach("b", 0);
  const auto refusal = registry_.refusal_of(from("a"), hello, fence_, &served);
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->reason,
              HasSubstr("replica 'a' rank 0 does not fit the model that is served: b ("));
  ASSERT_EQ(refusal->problems.size(), 1U);
  EXPECT_EQ(refusal->problems[0].tensor, "b");
}

TEST_F(EngineRegistryTest, AModelThatNoAttachedEngineTakesIsNotCompared) {
  const Manifest served = model();
  control::EngineHello hello;
  hello.tensors = tensors(served);
  hello.tensors[1].shape[0] = 11;
  const auto refused = [&] {
    return registry_.refusal_of(from("new"), hello, fence_, &served).has_value();
  };
  EXPECT_FALSE(refused()) << "nobody is attached";
  // A rank of the other model, and a controller, which has no weights.
  registry_.attach(
      {.id = EngineId{11},
       .replica = "c",
       .world_size = 2,
       .has_controller = true,
       .tensors = std::make_shared<const std::vector<control::EngineTensor>>(hello.tensors)});
  registry_.attach({.id = EngineId{12},
                    .replica = "c",
                    .rank = 1,
                    .world_size = 2,
                    .has_controller = true,
                    .tensors = std::make_shared<const std::vector<control::EngineTensor>>()});
  EXPECT_FALSE(refused());
  EXPECT_FALSE(registry_.fits_any(served));
  attach("old", 0);
  EXPECT_TRUE(refused());
  EXPECT_TRUE(registry_.detach(EngineId{next_}));
  EXPECT_FALSE(refused()) << "the last engine of the old model has ended";
  registry_.attach({.id = EngineId{13},
                    .replica = "any",
                    .any_layout = true,
                    .tensors = std::make_shared<const std::vector<control::EngineTensor>>()});
  EXPECT_TRUE(refused()) << "it takes what is served, as it takes any layout";
}

TEST_F(EngineRegistryTest, AControllerLeadsAndHasNoWeightsAndEveryRankKnowsOfIt) {
  const control::EngineHello worker{.world_size = 2, .leader = false, .has_controller = true};
  const control::EngineHello controller{.world_size = 2, .leader = true, .has_controller = true};
  EXPECT_EQ(registry_.controller_of("a"), control::ControllerState::kNone);
  EXPECT_EQ(reason(from("a", 0), worker), "");
  EXPECT_EQ(reason(from("a", 1), controller), "");
  registry_.attach({.id = EngineId{11},
                    .replica = "a",
                    .rank = 0,
                    .world_size = 2,
                    .has_controller = true,
                    .tensors = std::make_shared<const std::vector<control::EngineTensor>>()});
  EXPECT_EQ(registry_.controller_of("a"), control::ControllerState::kMissing);
  // Another rank that was told of no controller: of the same size, and of the size without it.
  for (const std::uint32_t size : {1U, 2U})
    EXPECT_EQ(reason(from("a", size - 1), {.world_size = size}),
              "replica 'a' rank " + std::to_string(size - 1) +
                  " says that the replica has no controller, but rank 0, which is attached, says "
                  "that it has a controller: set has_controller on all ranks of the replica and on "
                  "its controller, or on none");
  registry_.attach({.id = EngineId{12},
                    .replica = "a",
                    .rank = 1,
                    .world_size = 2,
                    .has_controller = true,
                    .tensors = std::make_shared<const std::vector<control::EngineTensor>>()});
  EXPECT_EQ(registry_.controller_of("a"), control::ControllerState::kAttached);
  EXPECT_TRUE(registry_.invariants().has_value());
  // Two ranks without a controller are another replica than one rank with a controller.
  attach("b", 0, 2);
  EXPECT_EQ(registry_.controller_of("b"), control::ControllerState::kNone);
  EXPECT_THAT(reason(from("b", 1), controller),
              HasSubstr("says that the replica has a controller"));
  registry_.attach(
      {.id = EngineId{9}, .replica = "b", .rank = 1, .world_size = 2, .has_controller = true});
  EXPECT_THAT(registry_.invariants().error().message(), HasSubstr("about a controller"));
}

TEST_F(EngineRegistryTest, AHelloThatContradictsItselfAboutTheControllerIsRefused) {
  control::EngineHello hello{.world_size = 1, .has_controller = true};
  EXPECT_EQ(reason(from("a"), hello),
            "replica 'a' is a controller alone; it needs ranks that have weights");
  hello.world_size = 2;
  EXPECT_EQ(reason(from("a", 0), hello),
            "replica 'a' rank 0 leads, but the controller of the replica must");
  hello.tensors = tensors(model());
  EXPECT_EQ(reason(from("a", 1), hello),
            "replica 'a' rank 1 is the controller of the replica, but it takes tensors");
  hello.leader = false;
  EXPECT_EQ(reason(from("a", 1), hello),
            "replica 'a' rank 1 is the controller of the replica, but it does not lead");
}

TEST_F(EngineRegistryTest, AReplicaIsWholeWhenEveryRankIsAttached) {
  EXPECT_FALSE(registry_.whole("a"));
  attach("a", 1, 2);
  EXPECT_FALSE(registry_.whole("a"));
  attach("b", 0);
  attach("a", 0, 2);
  EXPECT_TRUE(registry_.whole("a"));
  EXPECT_TRUE(registry_.whole("b"));
  EXPECT_EQ(registry_.replica_count(), 2U);
  EXPECT_EQ(registry_.ranks_of("a").size(), 2U);
  ASSERT_NE(registry_.find("a", 1), nullptr);
  EXPECT_EQ(registry_.find("a", 1)->id, EngineId{1});
  EXPECT_EQ(registry_.find("a", 2), nullptr);
  const auto gone = registry_.detach(EngineId{1});
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->rank, 1U);
  EXPECT_FALSE(registry_.detach(EngineId{1}));
  EXPECT_FALSE(registry_.whole("a"));
  EXPECT_TRUE(registry_.invariants().has_value());
}

TEST_F(EngineRegistryTest, ALayoutIsComparedWithEveryRankAndItsCoverageWithWholeReplicas) {
  const Manifest larger = Manifest::create({{.name = "a", .dtype = DType::kU8, .shape = {64}},
                                            {.name = "b", .dtype = DType::kF32, .shape = {10, 3}},
                                            {.name = "c", .dtype = DType::kU8, .shape = {1}}})
                              .value();
  attach("half", 0, 2);
  EXPECT_TRUE(registry_.check_layout(model()).empty());
  EXPECT_TRUE(registry_.check_layout(larger).empty()) << "the other rank may take tensor c";
  attach("full", 0);
  const auto problems = registry_.check_layout(larger);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].tensor, "c");
  EXPECT_THAT(problems[0].detail, HasSubstr("replica 'full': "));
}

TEST_F(EngineRegistryTest, ARankThatTakesAnyLayoutFitsEveryModelAndCoversIt) {
  const Manifest served = model();
  control::EngineHello hello{.world_size = 1, .take = control::TakeMode::kBorrow};
  hello.any_layout = true;
  EXPECT_FALSE(registry_.refusal_of(from("r"), hello, fence_, &served));
  registry_.attach({.id = EngineId{7},
                    .replica = "r",
                    .copies = false,
                    .any_layout = true,
                    .tensors = std::make_shared<const std::vector<control::EngineTensor>>()});
  EXPECT_TRUE(registry_.check_layout(served).empty());
  EXPECT_EQ(registry_.copied_bytes(), 0U);
  hello.take = control::TakeMode::kWhole;
  EXPECT_THAT(registry_.refusal_of(from("q"), hello, fence_, nullptr)->reason,
              HasSubstr("'q' rank 0 takes any layout, but it does not read the staged version"));
  hello.take = control::TakeMode::kAdopt;
  hello.tensors = tensors(served);
  EXPECT_THAT(registry_.refusal_of(from("q"), hello, fence_, nullptr)->reason,
              HasSubstr("takes any layout, but it names tensors of one layout"));
}

TEST_F(EngineRegistryTest, ItsRulesNameWhatIsBroken) {
  attach("a", 0);
  attach("a", 0);
  ASSERT_FALSE(registry_.invariants());
  EXPECT_EQ(registry_.invariants().error().message(), "replica 'a' rank 0 is attached twice");
  (void)registry_.detach(EngineId{2});
  attach("a", 1, 2);
  EXPECT_EQ(registry_.invariants().error().message(),
            "replica 'a' rank 1 names another world size");
  (void)registry_.detach(EngineId{3});
  attach("b", 4, 3);
  EXPECT_EQ(registry_.invariants().error().message(),
            "replica 'b' rank 4 is not below its world size");
}

// ---- GPUs ----

class GpuRegistryTest : public EngineRegistryTest {
 protected:
  GpuRegistryTest() : gpus_({.kind = DeviceKind::kCuda, .devices = {}}) {
    gpus_ = {.kind = DeviceKind::kCuda,
             .devices = {{.uuid = kGpu0, .name = "GPU 0"}, {.uuid = kGpu1, .name = "GPU 1"}}};
  }
  [[nodiscard]] std::string gpu_reason(const control::EngineHello& hello) const {
    EngineRegistry registry(gpus_);
    registry.attach({.id = EngineId{1}, .replica = "x", .rank = 3, .device = 0, .tensors = {}});
    const auto refusal = registry.refusal_of(from("a"), hello, fence_, nullptr);
    return refusal ? refusal->reason : "";
  }
  RegistryDevices gpus_;
};

TEST_F(GpuRegistryTest, AnEngineIsToldWhichDeviceItsGpuIs) {
  EXPECT_EQ(gpu_reason({.device = 1, .gpu = kGpu1}), "");
  EXPECT_THAT(gpu_reason({.device = 1}), HasSubstr("the engine's weights are in host memory"));
  EXPECT_THAT(gpu_reason({.device = 2, .gpu = kGpu1}), HasSubstr("this sidecar has 2 devices"));
  EXPECT_EQ(gpu_reason({.device = 0, .gpu = kGpu1}),
            "the engine's weights are on " + kGpu1 + ", but device 0 of this sidecar is " + kGpu0 +
                " (GPU 0): start the engine with --device-index 1");
  EXPECT_THAT(gpu_reason({.device = 0, .gpu = "GPU-other"}),
              HasSubstr("add that GPU to devices.gpus of the sidecar"));
  EXPECT_EQ(gpu_reason({.device = 1, .take = control::TakeMode::kAdopt, .gpu = kGpu1}),
            "buffers of GPUs do not support adoption: load pieces or whole tensors");
}

TEST_F(GpuRegistryTest, ARankThatBorrowsIsGivenACopyAndReturnsItsSums) {
  control::EngineHello hello{.device = 1, .take = control::TakeMode::kBorrow, .gpu = kGpu1};
  EXPECT_EQ(gpu_reason(hello), "");
  EXPECT_FALSE(reads_staged_version(hello));
  hello.any_layout = true;
  EXPECT_EQ(gpu_reason(hello), "");
  hello.gpu.clear();
  EXPECT_THAT(gpu_reason(hello), HasSubstr("the engine's weights are in host memory"));
  EXPECT_TRUE(reads_staged_version(hello));
}

TEST_F(GpuRegistryTest, ADeviceServesOneRank) {
  EXPECT_THAT(gpu_reason({.device = 0, .gpu = kGpu0}),
              HasSubstr("device 0 of this sidecar already serves replica 'x' rank 3"));
  EngineRegistry registry(gpus_);
  for (const std::uint32_t id : {1U, 2U})
    registry.attach({.id = EngineId{id},
                     .replica = id == 1 ? "a" : "b",
                     .rank = 0,
                     .device = 1,
                     .tensors = {}});
  ASSERT_FALSE(registry.invariants());
  EXPECT_THAT(registry.invariants().error().message(), HasSubstr("shares its GPU device"));
}

}  // namespace
}  // namespace wsync::agent
