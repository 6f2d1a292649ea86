// Checkpoint directories: what is accepted, and each problem by its sentence.
#include "shared/weights/checkpoint_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/weights/weights_files.h"

namespace wsync {
namespace {

using test::safetensors_bytes;
using test::TemporaryDirectory;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A file with one-byte U8 tensors of these names.
std::string file_of(const std::vector<std::string>& names) {
  std::string json = "{";
  for (std::size_t i = 0; i < names.size(); ++i)
    json += (i == 0 ? "\"" : ",\"") + names[i] + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
            std::to_string(i) + "," + std::to_string(i + 1) + "]}";
  return safetensors_bytes(json + "}", std::string(names.size(), 'd'));
}

class CheckpointDirectoryTest : public testing::Test {
 protected:
  void index(std::string_view weight_map, std::string_view metadata = R"({"total_size":2})") {
    write_file(directory_ / "model.safetensors.index.json", std::string(R"({"metadata":)")
                                                                .append(metadata)
                                                                .append(R"(,"weight_map":)")
                                                                .append(weight_map)
                                                                .append("}"));
  }
  void two_good_shards() {
    write_file(directory_ / "model-00001-of-00002.safetensors", file_of({"a"}));
    write_file(directory_ / "model-00002-of-00002.safetensors", file_of({"b"}));
    index(kGoodMap);
  }
  // Every problem, with the directory's path cut off the front.
  std::vector<std::string> problems() {
    CheckpointReport report;
    const auto opened = CheckpointDirectory::inspect(directory_.path(), {}, report);
    EXPECT_EQ(opened.has_value(), report.problems.empty());
    for (std::string& line : report.problems) {
      EXPECT_EQ(line.find('\n'), std::string::npos);
      if (line.starts_with(directory_.path())) line.erase(0, directory_.path().size() + 1);
    }
    warnings_ = report.warnings;
    return report.problems;
  }
  static constexpr std::string_view kGoodMap =
      R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})";
  TemporaryDirectory directory_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckpointDirectoryTest, OneFileWithoutIndex) {
  write_file(directory_ / "model.safetensors", file_of({"lm_head.weight", "h.1.w", "h.0.w"}));
  write_file(directory_ / "config.json", "{}");
  const auto opened = CheckpointDirectory::open(directory_.path());
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_EQ(opened->manifest().tensor(0).name, "h.0.w");
  EXPECT_EQ(opened->manifest().tensor(2).name, "lm_head.weight");
  EXPECT_EQ(opened->file_of(0), directory_ / "model.safetensors");
  std::byte byte{};
  ASSERT_TRUE(opened->read(2, 0, std::span(&byte, 1)));
  EXPECT_EQ(byte, std::byte{'d'});
  EXPECT_THAT(opened->warnings(), IsEmpty());
}

TEST_F(CheckpointDirectoryTest, ShardsWithIndex) {
  two_good_shards();
  EXPECT_THAT(problems(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CheckpointDirectoryTest, WarnsOfTotalSizeAndForeignFiles) {
  two_good_shards();
  index(kGoodMap, R"({"total_size":3})");
  write_file(directory_ / "adapter_model.safetensors", "");
  EXPECT_THAT(problems(), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("adapter_model.safetensors: not part"),
                                     HasSubstr("total_size is 3; the tensors have 2 bytes")));
  index(kGoodMap, R"({"total_size":"two","other":[{"weight_map":{}}]})");
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(CheckpointDirectoryTest, MissingShard) {
  two_good_shards();
  std::filesystem::remove(directory_ / "model-00002-of-00002.safetensors");
  EXPECT_THAT(problems(),
              ElementsAre("model-00002-of-00002.safetensors: the file is missing; tensor 'b' is "
                          "mapped to it"));
}

TEST_F(CheckpointDirectoryTest, EverythingWrongIsReported) {
  two_good_shards();
  write_file(directory_ / "model-00001-of-00002.safetensors", file_of({"extra", "b"}));
  write_file(directory_ / "model-00003-of-00002.safetensors", file_of({"c"}));
  write_file(directory_ / "model.safetensors", file_of({"c"}));
  EXPECT_THAT(
      problems(),
      testing::UnorderedElementsAre(
          "model-00003-of-00002.safetensors: no tensor is mapped to this file; expected nothing "
          "extra",
          "model.safetensors: no tensor is mapped to this file; expected nothing extra",
          "model-00001-of-00002.safetensors: tensor 'extra' is in the file but not in the index; "
          "expected nothing extra",
          "model-00001-of-00002.safetensors: tensor 'b' is in this file; the index maps it to "
          "'model-00002-of-00002.safetensors'",
          "model-00001-of-00002.safetensors: tensor 'a' is mapped to this file but is not in it"));
  const auto opened = CheckpointDirectory::open(directory_.path());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(opened.error().message(), HasSubstr("(and 4 more problems)"));
}

TEST_F(CheckpointDirectoryTest, ACorruptShardIsNamed) {
  two_good_shards();
  write_file(directory_ / "model-00001-of-00002.safetensors", file_of({"a"}) + "x");
  EXPECT_THAT(problems(), ElementsAre("model-00001-of-00002.safetensors: 1 trailing bytes after "
                                      "the last tensor 'a', which ends at 1"));
}

TEST_F(CheckpointDirectoryTest, BadIndexes) {
  two_good_shards();
  const std::string file = "model.safetensors.index.json: ";
  const std::string plain = "; expected the plain name of a .safetensors file in the directory";
  for (const std::string name : {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors",
                                 "..", ".hidden.safetensors", "x.bin", ""}) {
    index(R"({"a":")" + name + R"("})");
    EXPECT_THAT(problems(), ElementsAre(file + "tensor 'a' is mapped to '" + name + "'" + plain));
  }
  index(R"({"a":"x.safetensors","a":"y.safetensors"})");
  EXPECT_THAT(problems(), ElementsAre(file + "tensor 'a' is given twice"));
  index(R"({"a":3})");
  EXPECT_THAT(problems(),
              ElementsAre(file + "tensor 'a' is mapped to a number; expected a file name"));
  index(R"({"a":{}})");
  EXPECT_THAT(problems(),
              ElementsAre(file + "tensor 'a' is mapped to an object; expected a file name"));
  index("[]");
  EXPECT_THAT(
      problems(),
      ElementsAre(file + "it has no weight_map; expected a map from tensor names to files"));
  index("3");
  EXPECT_THAT(problems(), ElementsAre(file + "weight_map is not an object"));
  index("{},\"x\":" + std::string(2000, '['));
  EXPECT_THAT(problems(), ElementsAre(file + "it nests deeper than 32 levels"));
  for (const std::string text : {"", "{", "nonsense", "[]", "\"x\"", "{}x"}) {
    write_file(directory_ / "model.safetensors.index.json", text);
    EXPECT_THAT(problems(), ElementsAre(testing::StartsWith(file))) << text;
  }
}

TEST_F(CheckpointDirectoryTest, NoCheckpoint) {
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("no checkpoint here")));
  write_file(directory_ / "model-00001-of-00001.safetensors", file_of({"a"}));
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("1 shards but no model.safetensors.index.json")));
  const auto absent = CheckpointDirectory::open(directory_ / "absent");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
}

Manifest model() {
  std::vector<TensorInfo> tensors;
  for (int layer = 0; layer < 11; ++layer)
    tensors.push_back({.name = "model.layers." + std::to_string(layer) + ".w",
                       .dtype = DType::kBF16,
                       .shape = {100}});
  tensors.push_back({.name = "lm_head.weight", .dtype = DType::kF32, .shape = {1000}});
  tensors.push_back({.name = "model.embed_tokens.weight", .dtype = DType::kBF16, .shape = {0}});
  return Manifest::create(std::move(tensors)).value();
}

TEST_F(CheckpointDirectoryTest, WritesAndReadsBack) {
  const Manifest manifest = model();
  for (const std::uint64_t shard_bytes : {1U, 500U, 1'000'000U}) {
    const std::string path = directory_ / ("out-" + std::to_string(shard_bytes));
    const auto written = write_checkpoint_directory(
        path, manifest, test::fill_content,
        {.shard_bytes = shard_bytes, .other_files = {{"config.json", "{}"}}});
    ASSERT_TRUE(written) << written.error().message();
    EXPECT_EQ(test::read_file(path + "/config.json"), "{}");
    const auto opened = CheckpointDirectory::open(path, {.access = SafetensorsAccess::kMap});
    ASSERT_TRUE(opened) << opened.error().message();
    EXPECT_EQ(opened->manifest(), manifest);
    EXPECT_THAT(opened->warnings(), IsEmpty());
    // One byte: each of the 12 tensors with bytes alone. 500: layers in pairs, then the head.
    EXPECT_EQ(opened->file_count(), shard_bytes == 1 ? 12U : shard_bytes == 500 ? 7U : 1U);
    for (std::size_t t = 0; t < manifest.size(); ++t) {
      std::vector<std::byte> bytes(manifest.byte_size(t));
      ASSERT_TRUE(opened->read(t, 0, bytes));
      for (std::size_t b = 0; b < bytes.size(); ++b) ASSERT_EQ(bytes[b], test::content(t, b));
    }
  }
}

TEST_F(CheckpointDirectoryTest, AFailedWriteLeavesNothing) {
  const auto written = write_checkpoint_directory(
      directory_ / "out", model(),
      [](std::size_t index, std::uint64_t offset, std::span<std::byte> out) -> Result<> {
        if (index == 7) return fail(ErrorCode::kIo, "the source broke");
        return test::fill_content(index, offset, out);
      },
      {.shard_bytes = 500});
  ASSERT_FALSE(written);
  EXPECT_THAT(directory_.names(), IsEmpty());
}

TEST_F(CheckpointDirectoryTest, NeverWritesOverAnything) {
  two_good_shards();
  const auto written =
      write_checkpoint_directory(directory_.path() + "/", model(), test::fill_content);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(problems(), IsEmpty());
}

}  // namespace
}  // namespace wsync
