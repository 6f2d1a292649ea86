// The golden files, made by make_vectors.py with the reference package: what it writes is read here
// byte for byte and written again alike, and what it refuses is refused here with the rule named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>

#include "shared/weights/safetensors.h"
#include "tests/unit/weights/weights_files.h"

namespace wsync {
namespace {

const std::string kGolden = std::string(WSYNC_SOURCE_DIR) + "/tests/golden";

// The rows of vectors.tsv of one kind, each cut at tabs.
std::vector<std::vector<std::string>> rows(std::string_view kind) {
  std::istringstream table(test::read_file(kGolden + "/vectors.tsv"));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(table, line);) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, '\t');) cells.push_back(cell);
    if (cells.front() == kind) rows.push_back(cells);
  }
  EXPECT_FALSE(rows.empty());
  return rows;
}

class GoldenTest : public testing::TestWithParam<SafetensorsAccess> {};

TEST_P(GoldenTest, ReadsAndRewritesWhatTheReferenceWrote) {
  test::TemporaryDirectory directory;
  for (const auto& row : rows("good")) {
    SCOPED_TRACE(row[1]);
    const std::string path = kGolden + "/good/" + row[1] + ".safetensors";
    const auto file = SafetensorsFile::open(path, {.access = GetParam()});
    ASSERT_TRUE(file) << file.error().message();
    ASSERT_EQ(std::to_string(file->tensors().size()), row[2]);
    std::vector<TensorInfo> tensors;
    for (std::size_t i = 0; i < file->tensors().size(); ++i) {
      const SafetensorsEntry& entry = file->tensors()[i];
      std::vector<std::byte> bytes(entry.end - entry.begin);
      ASSERT_TRUE(file->read(i, 0, bytes));
      for (std::size_t j = 0; j < bytes.size(); ++j)
        ASSERT_EQ(bytes[j], static_cast<std::byte>((7 * j + 13 * entry.info.name.size()) & 0xffU));
      tensors.push_back(entry.info);
    }
    // The reference writes no six-bit types; its order among them is ours to choose.
    if (row[1] == "six_bits") continue;
    const std::string copy = directory / "copy.safetensors";
    ASSERT_TRUE(
        write_safetensors(copy, tensors, file->metadata(),
                          [&](std::size_t i, std::uint64_t offset, std::span<std::byte> out) {
                            return file->read(i, offset, out);
                          }));
    EXPECT_EQ(test::read_file(copy), test::read_file(path));
  }
}

TEST_P(GoldenTest, RefusesBadFilesByRule) {
  for (const auto& row : rows("bad")) {
    SCOPED_TRACE(row[1]);
    const std::string path = kGolden + "/bad/" + row[1] + ".safetensors";
    const auto strict = SafetensorsFile::open(path, {.access = GetParam()});
    ASSERT_FALSE(strict);
    EXPECT_EQ(strict.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(strict.error().message(), testing::StartsWith(path + ": "));
    EXPECT_THAT(strict.error().message(), testing::HasSubstr(row[3]));
    const auto lenient =
        SafetensorsFile::open(path, {.rules = SafetensorsRules::kLenient, .access = GetParam()});
    EXPECT_EQ(lenient ? "accepted" : "refused", row[2]);
  }
}

INSTANTIATE_TEST_SUITE_P(Access, GoldenTest,
                         testing::Values(SafetensorsAccess::kRead, SafetensorsAccess::kMap),
                         [](const auto& access) {
                           return access.param == SafetensorsAccess::kRead ? "Read" : "Map";
                         });

}  // namespace
}  // namespace wsync
