// Patches written by a device into parts of tensors, compared with patch::BlockApplier: every byte,
// both sums of every tensor, and what was written. On a host device everywhere; on the emulated
// driver, and on a real GPU where there is one (label gpu), in the program that has these.
#include "inference_side/engine_link/device_patch.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "inference_side/engine_link/patch_words.h"
#include "tests/contract/device/helpers.h"
#include "tests/support/misuse_report.h"
#include "tests/unit/weights/patch/patch_models.h"

namespace wsync::engine {
namespace {

using patch::PartRange;
using patch::TensorPart;
using patch::test::Content;
using patch::test::make_patch;
using patch::test::random_content;

#ifdef WSYNC_TEST_CUDA
[[maybe_unused]] const auto* const kReport = testing::AddGlobalTestEnvironment(new MisuseReport);
#endif

struct Change {
  double share = 0.01;
  bool in_runs = false;  // neighbours change together
};

// Changes elements, some of them side by side.
Content change(const patch::Layout& layout, Content content, const Change& how,
               std::mt19937_64& random) {
  for (std::uint32_t t = 0; t < content.size(); ++t) {
    const std::uint64_t size = layout.tensor(t).element_bytes;
    const std::uint64_t run = how.in_runs ? 1 + random() % 40 : 1;
    std::bernoulli_distribution chosen(how.share / static_cast<double>(run));
    for (std::uint64_t at = 0; at < content[t].size(); at += size) {
      if (!chosen(random)) continue;
      for (std::uint64_t i = 0; i < run && at < content[t].size(); ++i, at += size)
        content[t][at + random() % size] ^= std::byte{1} << static_cast<int>(random() % 8);
    }
  }
  return content;
}

class DevicePatches : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (const auto why = device::no_gpu_for_tests();
        GetParam() == DeviceKind::kCuda && !why.empty())
      GTEST_SKIP() << why;
    device_ = device::make_device({.kind = GetParam()}).value();
    patch_ = DevicePatch::create(*device_).value();
    stream_ = device_->create_stream(device::StreamRole::kReload).value();
  }
  void drain() {
    const auto event = device_->create_event().value();
    ASSERT_TRUE(stream_->record(*event));
    const auto done = event->wait(device::far_deadline());
    ASSERT_TRUE(done) << done.error().message();
  }

  // The parts of a rank, with memory that begins `shift` bytes behind a multiple of 256.
  struct Held {
    std::vector<TensorPart> parts;
    std::vector<Bytes> expected;
    std::vector<std::unique_ptr<device::Memory>> memory;
    std::vector<device::Memory*> destinations;
  };
  Held hold(const Manifest& manifest, const Content& content,
            const std::vector<std::vector<PartRange>>& ranges, std::uint64_t shift) {
    Held held;
    std::uint64_t bytes = shift;
    for (std::size_t t = 0; t < manifest.size(); ++t) {
      auto part = TensorPart::create(manifest.tensor(t), ranges[t]);
      if (!part) ADD_FAILURE() << part.error().message();
      held.parts.push_back(std::move(part).value());
      Bytes own(held.parts.back().bytes());
      for (auto run = held.parts.back().run_from(0); run;
           run = held.parts.back().run_from(run->end))
        std::copy_n(content[t].begin() + static_cast<std::ptrdiff_t>(run->begin),
                    run->end - run->begin, own.begin() + static_cast<std::ptrdiff_t>(run->offset));
      bytes += (own.size() + 511) / 256 * 256;
      held.expected.push_back(std::move(own));
    }
    all_ = device_->allocate(bytes).value();
    std::uint64_t at = shift;
    for (const Bytes& own : held.expected) {
      held.memory.push_back(
          own.empty() ? nullptr : device_->borrow({all_->address() + at, own.size()}).value());
      held.destinations.push_back(held.memory.back().get());
      if (!own.empty()) {
        EXPECT_TRUE(stream_->copy_to_device(device::whole(*held.memory.back()), own));
      }
      at += (own.size() + 511) / 256 * 256;
    }
    drain();
    return held;
  }

  // Writes the patch with both, and compares.
  void expect_patched(const patch::Layout& layout, const patch::PatchReader& reader, Held& held,
                      ThreadPool* helpers) {
    std::vector<RankBlock> blocks;
    patch::BlockApplier applier(layout);
    PatchedSums expected{.before = std::vector<SplitSum>(held.parts.size()),
                         .after = std::vector<SplitSum>(held.parts.size()),
                         .read_before = {},
                         .read_after = {}};
    for (const patch::BlockView& block : reader.blocks()) {
      const std::uint32_t t = block.place.tensor;
      if (held.parts[t].bytes() == 0) continue;
      blocks.push_back({.tensor = t, .view = &block});
      const auto sums = applier.apply_to_part(block, held.parts[t], held.expected[t]);
      expected.before[t] += sums.before;
      expected.after[t] += sums.after;
      expected.written_bytes += sums.written_bytes;
    }
    const auto found =
        patch_->apply(*stream_, {.layout = &layout, .parts = held.parts, .blocks = blocks},
                      held.destinations, helpers, device::far_deadline());
    ASSERT_TRUE(found) << found.error().message();
    for (std::size_t t = 0; t < held.parts.size(); ++t) {
      const std::string& name = layout.manifest().tensor(t).name;
      EXPECT_EQ(found->before[t], expected.before[t]) << "before the patch, " << name;
      EXPECT_EQ(found->after[t], expected.after[t]) << "after the patch, " << name;
      if (held.memory[t] == nullptr) continue;
      Bytes back(held.expected[t].size());
      ASSERT_TRUE(stream_->copy_to_host(back, device::whole(*held.memory[t])));
      drain();
      EXPECT_TRUE(back == held.expected[t])
          << name << ", first difference at byte "
          << std::ranges::mismatch(back, held.expected[t]).in1 - back.begin();
    }
    EXPECT_EQ(found->written_bytes, expected.written_bytes);
  }
  void expect_patched(const Manifest& manifest, const std::vector<std::vector<PartRange>>& ranges,
                      const Change& how, std::uint64_t shift, ThreadPool* helpers = nullptr) {
    const patch::Layout layout(manifest);
    const Content base = random_content(manifest, random_);
    const auto made = make_patch(layout, base, change(layout, base, how, random_));
    const auto reader = patch::PatchReader::open(layout, made).value();
    Held held = hold(manifest, base, ranges, shift);
    expect_patched(layout, reader, held, helpers);
  }

  std::mt19937_64 random_{7};
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Memory> all_;
  std::unique_ptr<DevicePatch> patch_;
  std::unique_ptr<device::Stream> stream_;  // closed before what its work uses
};

TEST_P(DevicePatches, WholeTensorsOfEveryDtype) {
  const Manifest manifest = patch::test::every_dtype();
  const std::vector<std::vector<PartRange>> whole(manifest.size());
  for (const Change& how : {Change{.share = 0.001}, Change{.share = 0.05, .in_runs = true},
                            Change{.share = 0.6}, Change{.share = 1.0}})
    for (const std::uint64_t shift : {0U, 2U, 5U}) expect_patched(manifest, whole, how, shift);
}

// Rows, columns, both, and boxes of three dimensions, of all sizes of elements.
TEST_P(DevicePatches, RandomParts) {
  constexpr std::array kDtypes = {DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kU8,
                                  DType::kF64};
  ThreadPool helpers(2);
  for (int round = 0; round < 12; ++round) {
    std::vector<TensorInfo> tensors;
    std::vector<std::vector<PartRange>> ranges;
    for (std::size_t i = 0; i < kDtypes.size(); ++i) {
      std::vector<std::uint64_t> shape = {1 + random_() % 90, 1 + random_() % 90,
                                          1 + random_() % 90};
      if (random_() % 2 == 0) shape = {1 + random_() % 700, 1 + random_() % 700};
      if (random_() % 5 == 0) shape = {2, 1 + random_() % 70'000};  // long runs of dense blocks
      std::vector<PartRange> own;
      for (std::uint32_t dim = 0; dim < shape.size(); ++dim) {
        if (random_() % 2 == 0) continue;
        const std::uint64_t begin = random_() % shape[dim];
        own.push_back({.dim = dim, .begin = begin, .length = 1 + random_() % (shape[dim] - begin)});
      }
      tensors.push_back(
          {.name = "t" + std::to_string(i), .dtype = kDtypes[i], .shape = std::move(shape)});
      ranges.push_back(std::move(own));
    }
    const Manifest manifest = Manifest::create(std::move(tensors)).value();
    constexpr std::array<double, 5> kShares = {0.0005, 0.01, 0.1, 0.5, 1.0};
    expect_patched(manifest, ranges,
                   {.share = kShares[random_() % kShares.size()], .in_runs = random_() % 2 == 0},
                   random_() % 3 == 0 ? random_() % 16 : 0, &helpers);
  }
}

// Several runs of a part lie in one word, which is summed once.
TEST_P(DevicePatches, ColumnsThatAreCloserThanAWord) {
  const Manifest manifest =
      Manifest::create({{.name = "a.narrow", .dtype = DType::kU8, .shape = {5001, 3}},
                        {.name = "b.box", .dtype = DType::kU8, .shape = {40, 5, 7}},
                        {.name = "c.halves", .dtype = DType::kBF16, .shape = {999, 5}}})
          .value();
  const std::vector<std::vector<PartRange>> ranges = {
      {{.dim = 1, .begin = 1, .length = 1}},
      {{.dim = 1, .begin = 1, .length = 3}, {.dim = 2, .begin = 2, .length = 4}},
      {{.dim = 1, .begin = 1, .length = 3}}};
  for (const double share : {0.002, 0.05, 1.0})
    expect_patched(manifest, ranges, {.share = share}, 0);
}

// More words than both buffers hold, in blocks of both forms.
TEST_P(DevicePatches, MoreThanTheBuffersHold) {
  const Manifest manifest =
      Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {1024, 2560}},
                        {.name = "b", .dtype = DType::kF32, .shape = {100}},
                        {.name = "c", .dtype = DType::kBF16, .shape = {2048, 2048}}})
          .value();
  const std::vector<std::vector<PartRange>> ranges = {
      {}, {}, {{.dim = 1, .begin = 512, .length = 1024}}};
  const patch::Layout layout(manifest);
  std::uint64_t words = 0;
  for (const std::uint64_t bytes : {1024U * 2560 * 2, 2048U * 2048 * 2}) words += bytes / 8;
  ASSERT_GT(words * PatchWords::kWordBytesMax, 2 * DevicePatch::kBufferBytes);
  ThreadPool helpers(3);
  expect_patched(manifest, ranges, {.share = 1.0}, 0, &helpers);
  expect_patched(manifest, ranges, {.share = 0.3}, 0, &helpers);
}

TEST_P(DevicePatches, APatchWithoutABlockOfTheRankIsWritten) {
  const Manifest manifest =
      Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {64}}}).value();
  const patch::Layout layout(manifest);
  const Content base = random_content(manifest, random_);
  Held held = hold(manifest, base, {{}}, 0);
  const auto sums = patch_->apply(*stream_, {.layout = &layout, .parts = held.parts, .blocks = {}},
                                  held.destinations, nullptr, device::far_deadline());
  ASSERT_TRUE(sums);
  EXPECT_EQ(sums->before, std::vector<SplitSum>(1));
  EXPECT_EQ(sums->written_bytes, 0U);
}

// The next patch finds the buffers as if nothing had been.
TEST_P(DevicePatches, APatchPastItsDeadlineIsGivenUpAndTheNextOneIsWritten) {
  const Manifest manifest =
      Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {300, 700}}}).value();
  const patch::Layout layout(manifest);
  const Content base = random_content(manifest, random_);
  const auto made = make_patch(layout, base, change(layout, base, {.share = 0.1}, random_));
  const auto reader = patch::PatchReader::open(layout, made).value();
  Held held = hold(manifest, base, {{}}, 0);
  const RankBlock block{.tensor = 0, .view = &reader.blocks().front()};
  const auto late = patch_->apply(
      *stream_, {.layout = &layout, .parts = held.parts, .blocks = std::span(&block, 1)},
      held.destinations, nullptr, TimePoint{0});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(late.error().message(), testing::HasSubstr("the deadline passed"));
  stream_.reset();
  stream_ = device_->create_stream(device::StreamRole::kReload).value();
  expect_patched(layout, reader, held, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Host, DevicePatches, testing::Values(DeviceKind::kSeparate),
                         device::kind_of);
#ifdef WSYNC_TEST_CUDA
INSTANTIATE_TEST_SUITE_P(Cuda, DevicePatches, testing::Values(DeviceKind::kCuda), device::kind_of);
#endif

}  // namespace
}  // namespace wsync::engine
