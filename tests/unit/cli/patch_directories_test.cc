// Patches of checkpoint directories that lie: the last proof keeps the directory from appearing.
#include "deploy/cli/patch_directories.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/format.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using testing::HasSubstr;

const OnPatchProgress kNoProgress = [](std::string_view, std::uint64_t, std::uint64_t) -> Result<> {
  return {};
};

// A checkpoint of two tensors, and patches of it that say what they like.
class PatchDirectories : public testing::Test {
 protected:
  void SetUp() override {
    const auto written = write_checkpoint_directory(
        at("base"), manifest_,
        [](std::size_t tensor, std::uint64_t /*offset*/, std::span<std::byte> out) -> Result<> {
          std::ranges::fill(out, static_cast<std::byte>(tensor + 1));
          return {};
        });
    ASSERT_TRUE(written) << written.error().message();
  }
  std::string at(const std::string& name) const { return root_.path() + "/" + name; }
  CheckpointDirectory base() const { return CheckpointDirectory::open(at("base")).value(); }

  // From what `base` says to what `target` says, with one element of tensor 0 changed. `lie` may
  // change the block.
  patch::PatchFile patch_of(const Digest& base, const Digest& target,
                            const std::function<void(patch::Block&)>& lie = {}) const {
    const patch::Layout layout(manifest_);
    Bytes before(manifest_.byte_size(0), std::byte{1});
    Bytes after = before;
    after[10] = std::byte{7};
    auto block = patch::BlockMaker().make(layout, {.tensor = 0, .block = 0}, before, after);
    if (lie) lie(*block);
    auto builder = patch::PatchBuilder::create(layout, limits::kMiB).value();
    builder.add(std::move(*block));
    const auto made = builder.finish(base, target).value();
    Bytes bytes = patch::patch_file_head(manifest_, made);
    bytes.insert(bytes.end(), made.buckets[0].begin(), made.buckets[0].end());
    return patch::PatchFile::parse(std::move(bytes)).value();
  }
  Digest base_digest() const {
    return make_directory_patch(base(), base(), limits::kMiB, kNoProgress).value().base;
  }

  const Manifest manifest_ =
      Manifest::create({{"a", DType::kBF16, {100}}, {"b", DType::kU8, {3}}}).value();
  test::TemporaryDirectory root_;
};

TEST_F(PatchDirectories, AnotherTargetThanThePatchSaysNeverAppears) {
  const auto applied =
      apply_directory_patch(patch_of(base_digest(), {.low = 1}), base(), at("out"), kNoProgress);
  ASSERT_FALSE(applied);
  EXPECT_EQ(applied.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(applied.error().message(), HasSubstr("the patched weights have the digest"));
  EXPECT_FALSE(std::filesystem::exists(at("out")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_.path()), {}), 1);
}

TEST_F(PatchDirectories, ABlockOfAnotherBaseNeverAppears) {
  const auto file =
      patch_of(base_digest(), {.low = 1}, [](patch::Block& block) { block.before.product ^= 1U; });
  const auto applied = apply_directory_patch(file, base(), at("out"), kNoProgress);
  ASSERT_FALSE(applied);
  EXPECT_THAT(applied.error().message(),
              HasSubstr("tensor 'a', block 1 of 1: the words that the patch changes"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_.path()), {}), 1);
}

TEST_F(PatchDirectories, AnErrorOfTheProgressEndsIt) {
  const OnPatchProgress stop = [](std::string_view what, std::uint64_t, std::uint64_t) -> Result<> {
    if (what != "writing") return {};
    return fail(ErrorCode::kCancelled, "stopped");
  };
  const auto applied =
      apply_directory_patch(patch_of(base_digest(), {.low = 1}), base(), at("out"), stop);
  ASSERT_FALSE(applied);
  EXPECT_EQ(applied.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_.path()), {}), 1);
  const OnPatchProgress stop_at_once = [](std::string_view, std::uint64_t,
                                          std::uint64_t) -> Result<> {
    return fail(ErrorCode::kCancelled, "stopped");
  };
  EXPECT_EQ(make_directory_patch(base(), base(), limits::kMiB, stop_at_once).error().code(),
            ErrorCode::kCancelled);
}

}  // namespace
}  // namespace wsync::cli
