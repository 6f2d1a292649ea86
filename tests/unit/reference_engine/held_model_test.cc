// Which part of a tensor a rank takes, and that a step notices weights of another version.
#include "inference_side/reference_engine/held_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::engine::reference {
namespace {

using control::DimRange;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Manifest manifest_of(std::vector<TensorInfo> tensors) {
  return Manifest::create(std::move(tensors)).value();
}

std::vector<DimRange> ranges_of(const std::string& name, std::vector<std::uint64_t> shape,
                                DType dtype = DType::kBF16, std::uint32_t rank = 1,
                                std::uint32_t world_size = 2) {
  const Manifest manifest =
      manifest_of({{.name = name, .dtype = dtype, .shape = std::move(shape)}});
  return rank_tensors(manifest, rank, world_size).front().ranges;
}

TEST(RankTensors, rows_columns_and_whole_tensors_by_name) {
  const DimRange rows{.dim = 0, .begin = 4, .length = 4};
  const DimRange columns{.dim = 1, .begin = 4, .length = 4};
  EXPECT_THAT(ranges_of("model.layers.0.self_attn.q_proj.weight", {8, 6}), ElementsAre(rows));
  EXPECT_THAT(ranges_of("model.layers.0.self_attn.q_proj.bias", {8}), ElementsAre(rows));
  EXPECT_THAT(ranges_of("lm_head.weight", {8, 6}), ElementsAre(rows));
  EXPECT_THAT(ranges_of("model.layers.0.mlp.experts.3.down_proj.weight", {6, 8}),
              ElementsAre(columns));
  EXPECT_THAT(ranges_of("model.layers.0.self_attn.o_proj.bias", {8}), IsEmpty());
  EXPECT_THAT(ranges_of("model.layers.0.mlp.gate.weight", {8, 6}), IsEmpty());
  EXPECT_THAT(ranges_of("model.norm.weight", {8}), IsEmpty());
  EXPECT_THAT(ranges_of("model.q_proj_extra.weight", {8, 6}), IsEmpty());
}

TEST(RankTensors, what_cannot_be_shared_equally_is_taken_whole) {
  EXPECT_THAT(ranges_of("q_proj.weight", {7, 6}), IsEmpty());
  EXPECT_THAT(ranges_of("q_proj.weight", {0, 6}), IsEmpty());
  EXPECT_THAT(ranges_of("q_proj.weight", {}), IsEmpty());
  EXPECT_THAT(ranges_of("o_proj.weight", {2, 6}, DType::kF4), IsEmpty());  // 3 of 4 bits: no byte
  EXPECT_THAT(ranges_of("o_proj.weight", {2, 8}, DType::kF4),
              ElementsAre(DimRange{.dim = 1, .begin = 4, .length = 4}));
  EXPECT_THAT(ranges_of("q_proj.weight", {8, 6}, DType::kBF16, 0, 1), IsEmpty());
}

std::unique_ptr<HeldModel> two_layers(bool mapped) {
  const Manifest manifest =
      manifest_of({{.name = "model.layers.0.a.weight", .dtype = DType::kU8, .shape = {100}},
                   {.name = "model.layers.1.a.weight", .dtype = DType::kU8, .shape = {5000}},
                   {.name = "model.layers.1.empty", .dtype = DType::kU8, .shape = {0}}});
  return HeldModel::create(manifest, 0, 1, mapped).value();
}

TEST(HeldModel, memory_is_aligned_and_zero) {
  const auto model = two_layers(false);
  EXPECT_EQ(model->bytes(), 5100U);
  EXPECT_EQ(model->memory(0).size(), 100U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(model->memory(0).data()) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(model->memory(1).data()) % 4096, 0U);
  EXPECT_THAT(model->memory(1), ::testing::Each(std::byte{0}));
}

TEST(HeldModel, a_step_notices_every_layer_that_is_not_of_its_version) {
  const auto model = two_layers(false);
  const std::vector<LayerTensor> first = {{.tensor = 0, .bytes = model->memory(0)}};
  const std::vector<LayerTensor> second = {{.tensor = 1, .bytes = model->memory(1)}};
  std::string saw;
  model->commit(kV1);
  EXPECT_FALSE(model->read(kV1, 1, saw)->torn);
  EXPECT_TRUE(model->read(kV2, 1, saw)->torn);
  model->begin_load();
  EXPECT_TRUE(model->read(kV1, 1, saw)->torn);
  EXPECT_THAT(saw, HasSubstr("layer 0 of 2 had version none"));
  EXPECT_TRUE(model->take_layer(kV2, first));
  EXPECT_TRUE(model->read(kV2, 1, saw)->torn);
  EXPECT_THAT(saw, HasSubstr("layer 1 of 2"));
  EXPECT_TRUE(model->take_layer(kV2, second));
  saw.clear();
  EXPECT_FALSE(model->read(kV2, 1, saw)->torn);
  EXPECT_EQ(saw, "");
}

TEST(HeldModel, a_step_counts_the_layers_that_it_compares_and_misses_none) {
  const auto model = two_layers(false);
  model->commit(kV1);
  std::string saw;
  EXPECT_EQ(model->read(kV1, 1, saw)->layers, 2U);
  StepReader reader(*model, kV1);
  for (const std::uint32_t layer : {1U, 1U}) {
    reader.begin_layer(layer);
    EXPECT_EQ(reader.tensor(1).size(), 5000U);
    reader.end_layer(layer);
  }
  EXPECT_EQ(reader.layers(), 1U);
  EXPECT_FALSE(reader.torn());
  reader.finish();
  EXPECT_TRUE(reader.torn());
  EXPECT_EQ(reader.saw(), "layer 0 of 2 was not compared; the step has version 1.1");
}

TEST(HeldModel, a_layer_that_changes_while_it_is_read_is_noticed) {
  const auto model = two_layers(false);
  model->commit(kV1);
  StepReader reader(*model, kV1);
  reader.begin_layer(0);
  reader.end_layer(0);
  reader.begin_layer(1);
  model->commit(kV2);
  reader.end_layer(1);
  reader.finish();
  EXPECT_TRUE(reader.torn());
  EXPECT_EQ(reader.saw(),
            "layer 1 of 2 had version 1.1 before and version 1.2 after it was read, but the step "
            "has version 1.1");
}

TEST(HeldModel, a_layer_that_has_not_come_is_of_no_version_after_the_commit) {
  const auto model = two_layers(false);
  const std::vector<LayerTensor> first = {{.tensor = 0, .bytes = model->memory(0)}};
  model->commit(kV1);
  model->begin_load();
  EXPECT_TRUE(model->take_layer(kV2, first));
  model->commit(kV2);
  std::string saw;
  EXPECT_TRUE(model->read(kV2, 1, saw)->torn);
  EXPECT_EQ(saw,
            "layer 1 of 2 had version none (its bytes were changing) before and version none (its "
            "bytes were changing) after it was read, but the step has version 1.2");
}

TEST(HeldModel, a_mapped_layer_that_has_not_come_keeps_its_version) {
  const auto model = two_layers(true);
  const std::vector<std::byte> a(100, std::byte{1});
  const std::vector<std::byte> b(5000, std::byte{2});
  const std::vector<LayerTensor> first = {{.tensor = 0, .bytes = a}};
  const std::vector<LayerTensor> second = {{.tensor = 1, .bytes = b}};
  EXPECT_TRUE(model->take_layer(kV1, first));
  EXPECT_TRUE(model->take_layer(kV1, second));
  model->commit(kV1);
  EXPECT_TRUE(model->take_layer({.epoch = 1, .step = 9}, second));  // given up before its commit
  EXPECT_TRUE(model->take_layer(kV2, first));
  model->commit(kV2);
  std::string saw;
  EXPECT_TRUE(model->read(kV2, 1, saw)->torn);
  EXPECT_THAT(saw, HasSubstr("layer 1 of 2 had version 1.1 before and version 1.1 after"));
}

TEST(HeldModelDeathTest, a_layer_without_one_of_its_tensors_is_a_defect) {
  const Manifest manifest =
      manifest_of({{.name = "model.layers.0.a.weight", .dtype = DType::kU8, .shape = {100}},
                   {.name = "model.layers.0.b.weight", .dtype = DType::kU8, .shape = {100}}});
  const auto model = HeldModel::create(manifest, 0, 1, false).value();
  const std::vector<LayerTensor> half = {{.tensor = 1, .bytes = model->memory(1)}};
  EXPECT_DEATH((void)model->take_layer(kV1, half), "a layer comes whole");
}

TEST(HeldModelDeathTest, what_is_read_outside_of_its_layer_is_a_defect) {
  const auto model = two_layers(false);
  model->commit(kV1);
  StepReader reader(*model, kV1);
  EXPECT_DEATH((void)reader.tensor(0), "compared around each read");
  reader.begin_layer(0);
  EXPECT_DEATH((void)reader.tensor(1), "compared around each read");
  EXPECT_DEATH(reader.begin_layer(1), "after the one before");
  EXPECT_DEATH(reader.end_layer(1), "the one that has begun");
  reader.end_layer(0);
}

TEST(HeldModel, the_reduction_depends_on_the_bytes_and_on_the_step) {
  const auto model = two_layers(false);
  model->commit(kV1);
  std::string saw;
  const std::uint64_t before = model->read(kV1, 1, saw)->value;
  EXPECT_EQ(model->read(kV1, 1, saw)->value, before);
  EXPECT_NE(model->read(kV1, 2, saw)->value, before);
  for (std::byte& byte : model->memory(0)) byte = std::byte{1};
  EXPECT_NE(model->read(kV1, 1, saw)->value, before);
}

TEST(HeldModel, mapped_layers_are_read_only_from_their_commit_on) {
  const auto model = two_layers(true);
  EXPECT_TRUE(model->memory(0).empty());
  const std::vector<std::byte> a(100, std::byte{1});
  const std::vector<std::byte> b(5000, std::byte{2});
  const std::vector<LayerTensor> first = {{.tensor = 0, .bytes = a}};
  const std::vector<LayerTensor> second = {{.tensor = 1, .bytes = b}};
  std::string saw;
  const std::uint64_t empty = model->read({}, 1, saw)->value;
  EXPECT_TRUE(model->take_layer(kV1, first));
  EXPECT_TRUE(model->take_layer(kV1, second));
  EXPECT_EQ(model->read({}, 1, saw)->value, empty);
  model->commit(kV1);
  EXPECT_FALSE(model->read(kV1, 1, saw)->torn);
  EXPECT_NE(model->read(kV1, 1, saw)->value, empty);
}

}  // namespace
}  // namespace wsync::engine::reference
