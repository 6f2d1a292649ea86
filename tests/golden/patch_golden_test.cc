// The golden patch files, made by make_patches.py from the page that defines them: they are read
// and applied, and made again byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/weights/patch/patch_file.h"
#include "tests/unit/weights/patch/patch_models.h"
#include "tests/unit/weights/weights_files.h"

namespace wsync::patch {
namespace {

const std::string kPatches = std::string(WSYNC_SOURCE_DIR) + "/tests/golden/patches";
constexpr std::uint64_t kLastElement = 2 * kBlockBytes + 4;

struct GoldenPatch {
  const char* name;
  bool (*is_changed)(std::uint64_t element);
  // Whether PatchBuilder divides it into the same buckets.
  bool is_made_here;
};

class GoldenPatches : public testing::TestWithParam<GoldenPatch> {};

TEST_P(GoldenPatches, AreReadAppliedAndMadeAgain) {
  const std::string path = kPatches + "/" + GetParam().name + ".patch";
  const auto file = PatchFile::open(path);
  ASSERT_TRUE(file) << file.error().message();
  const Layout& layout = file->layout();
  test::Content base;
  for (std::size_t t = 0; t < file->manifest().size(); ++t) {
    Bytes bytes(file->manifest().byte_size(t));
    for (std::size_t j = 0; j < bytes.size(); ++j)
      bytes[j] = static_cast<std::byte>(7 * j + 13 * file->manifest().tensor(t).name.size());
    base.push_back(bytes);
  }
  test::Content target = base;
  for (std::uint32_t t = 0; t < target.size(); ++t) {
    const std::uint32_t size = layout.tensor(t).element_bytes;
    for (std::size_t at = 0; at < target[t].size(); ++at)
      if (GetParam().is_changed(at / size)) target[t][at] = ~target[t][at];
  }
  test::Content content = base;
  BlockApplier applier(layout);
  for (const BlockView& block : file->patch().blocks()) {
    const auto applied = applier.apply(block, test::block_bytes(layout, content, block.place));
    ASSERT_TRUE(applied) << applied.error().message();
  }
  EXPECT_TRUE(content == target);
  const Link& link = file->patch().index().link();
  EXPECT_EQ(link.base, test::digest_of_content(file->manifest(), base));
  EXPECT_EQ(link.target, test::digest_of_content(file->manifest(), target));
  if (!GetParam().is_made_here) return;
  const Patch made = test::make_patch(layout, base, target);
  wsync::test::TemporaryDirectory directory;
  ASSERT_TRUE(write_patch_file(directory / "again", file->manifest(), made));
  EXPECT_EQ(wsync::test::read_file(directory / "again"), wsync::test::read_file(path));
}

INSTANTIATE_TEST_SUITE_P(
    Files, GoldenPatches,
    testing::Values(
        GoldenPatch{"some", [](std::uint64_t e) { return (e * e + 3 * e) % 11 == 0; }, true},
        GoldenPatch{"all", [](std::uint64_t /*e*/) { return true; }, true},
        GoldenPatch{"none", [](std::uint64_t /*e*/) { return false; }, true},
        GoldenPatch{"blocks",
                    [](std::uint64_t e) {
                      return e % 50'000 == 49'999 || e == 0 || e == kLastElement ||
                             e == kBlockBytes / 4;
                    },
                    true},
        GoldenPatch{"one_block_each", [](std::uint64_t e) { return e % 50'000 == 49'999; }, false}),
    [](const auto& golden) { return std::string(golden.param.name); });

}  // namespace
}  // namespace wsync::patch
