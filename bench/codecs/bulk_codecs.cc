#include "bench/codecs/bulk_codecs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "bench/baseline/memory.h"
#include "bench/harness/repeat.h"
#include "shared/base/clock.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/moe/bf16.h"
#include "shared/transport/tcp/frame_reader.h"
#include "shared/weights/content_digest.h"
#include "trainer_side/training/checkpoint.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;

constexpr std::uint64_t kCodecTensorBytes = 16ULL << 20U;
constexpr std::size_t kReadBytes = 256ULL << 10U;  // bytes per read from the socket
// maximum relative error of rounding to bfloat16
constexpr float kBf16RoundsBy = 1.0F / 256;

Result<> check_equal(bool equal, const char* what) {
  if (equal) return {};
  return fail(ErrorCode::kDigestMismatch, fmt::format("{} differs from the expected value", what));
}

template <class Work>
nanoseconds timed(Work&& work) {
  const TimePoint begin = now();
  work();
  return now() - begin;
}

// ---- digests and checksums ----

Result<Manifest> tensors_of_bytes(std::uint64_t bytes) {
  std::vector<TensorInfo> tensors;
  for (std::uint64_t at = 0; at < bytes; at += kCodecTensorBytes)
    tensors.push_back({.name = fmt::format("model.layers.{}.weight", tensors.size()),
                       .dtype = DType::kBF16,
                       .shape = {std::min(kCodecTensorBytes, bytes - at) / 2}});
  return Manifest::create(std::move(tensors));
}

Result<nanoseconds> measure_content_digest(Ground& bench, const Manifest& manifest) {
  const auto bytes = bench.stamped();
  const TimePoint begin = now();
  ContentDigester digester(manifest);
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < manifest.size(); ++i) {
    WSYNC_TRY(digester.add(i, 0, bytes.subspan(at, manifest.byte_size(i))));
    at += manifest.byte_size(i);
  }
  const auto digests = digester.finish();
  const nanoseconds taken = now() - begin;
  if (!digests) return fail(digests.error());
  std::vector<Digest> expected;
  at = 0;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    expected.push_back(
        tensor_digest(manifest.tensor(i).name, bytes.subspan(at, manifest.byte_size(i))));
    at += manifest.byte_size(i);
  }
  WSYNC_TRY(check_equal(digests->root == root_digest(expected), "the content digest"));
  return taken;
}

Result<nanoseconds> measure_summed_copy(Ground& bench) {
  const auto from = bench.stamped();
  WordSum sum;
  const nanoseconds taken = timed([&] { sum = copy_streaming_sum(bench.target(), from, {}); });
  WSYNC_TRY(bench.check_arrived());
  WSYNC_TRY(check_equal(sum == word_sum(from, {}), "the sum of a copy"));
  return taken;
}

Result<nanoseconds> measure_word_sum(Ground& bench) {
  const auto bytes = bench.stamped();
  WordSum sum;
  const nanoseconds taken = timed([&] { sum = word_sum(bytes, {}); });
  const CopyKind other = available_copy_kinds().front();
  WSYNC_TRY(check_equal(sum == word_sum(bytes, {}, other), "the sum of words"));
  return taken;
}

// ---- frames of the TCP transport ----

transport::Frame bucket_frame(std::uint64_t bucket, std::uint64_t bytes) {
  return {.type = transport::FrameType::kBucket,
          .key = {.fence = {.epoch = 1, .run_id = {2, 3}},
                  .version = {.epoch = 1, .step = 2},
                  .layout = {.low = 4, .high = 5}},
          .bucket = bucket,
          .bytes = bytes};
}

// Passes these bytes to the reader in pieces, as a socket does.
template <class OnFrame>
Result<> feed_reader(transport::tcp::FrameReader& reader, std::span<const std::byte> bytes,
                     OnFrame&& on_frame) {
  while (!bytes.empty()) {
    const auto room = reader.next();
    const std::size_t n = std::min({room.size(), bytes.size(), kReadBytes});
    std::memcpy(room.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    auto frame = WSYNC_TRY(reader.advance(n));
    if (frame) WSYNC_TRY(on_frame(*frame));
  }
  return {};
}

Result<nanoseconds> measure_frames(Ground& bench) {
  const auto from = bench.stamped();
  const auto window = [&](std::uint64_t bucket) {
    const std::uint64_t at = bucket * kFramedBucketBytes;
    return std::pair{at, std::min<std::uint64_t>(kFramedBucketBytes, from.size() - at)};
  };
  const std::uint64_t buckets = (from.size() + kFramedBucketBytes - 1) / kFramedBucketBytes;
  std::vector<std::array<std::byte, transport::kTrailerBytes>> trailers;
  const auto leaves = leaves_of(from.size(), kFramedBucketBytes);
  const std::vector<WordSum> sums = sums_of(*leaves, from);
  for (std::uint64_t i = 0; i < buckets; ++i)
    trailers.push_back(transport::encode_trailer(
        bucket_digest(std::span(sums).subspan(leaves->first(i), leaves->bucket(i).size()))));
  std::uint64_t arrived = 0;
  transport::tcp::FrameReader reader(
      [&](const transport::Frame& frame) -> Result<transport::tcp::PayloadPlace> {
        const auto [at, bytes] = window(frame.bucket);
        return transport::tcp::PayloadPlace{.bytes = bench.target().subspan(at, bytes),
                                            .leaves = leaves->bucket(frame.bucket),
                                            .arena_offset = at,
                                            .arena = bench.target()};
      });
  const auto judge = [&](const transport::tcp::ArrivedFrame& frame) {
    ++arrived;
    return check_equal(frame.computed == frame.promised, "the digest of a bucket");
  };
  const TimePoint begin = now();
  for (std::uint64_t i = 0; i < buckets; ++i) {
    const auto [at, bytes] = window(i);
    WSYNC_TRY(feed_reader(reader, transport::encode_frame(bucket_frame(i, bytes)), judge));
    WSYNC_TRY(feed_reader(reader, from.subspan(at, bytes), judge));
    WSYNC_TRY(feed_reader(reader, trailers[i], judge));
  }
  const nanoseconds taken = now() - begin;
  WSYNC_TRY(check_equal(arrived == buckets, "the number of buckets"));
  WSYNC_TRY(bench.check_arrived());
  return taken;
}

// ---- dtypes ----

// Random float32 weights of as many bytes as the bench, and the same weights in bfloat16.
class Weights {
 public:
  static Result<std::shared_ptr<Weights>> create(std::size_t bytes) {
    auto values = WSYNC_TRY(Pages::make_private(bytes, PageKind::kHuge));
    auto bits = WSYNC_TRY(Pages::make_private(bytes / 2, PageKind::kHuge));
    const std::shared_ptr<Weights> made(new Weights(std::move(values), std::move(bits)));
    std::minstd_rand random(7);
    for (float& value : made->values())
      value = (static_cast<float>(random()) / static_cast<float>(std::minstd_rand::max()) - 0.5F) *
              0.1F;
    training::export_bfloat16(made->values(), 0, made->bits_.bytes());
    return made;
  }
  [[nodiscard]] std::span<float> values() const {
    return {reinterpret_cast<float*>(values_.bytes().data()),
            values_.bytes().size() / sizeof(float)};
  }
  [[nodiscard]] std::span<const std::byte> bits() const { return bits_.bytes(); }

 private:
  Weights(Pages values, Pages bits) : values_(std::move(values)), bits_(std::move(bits)) {}
  Pages values_;
  Pages bits_;
};

Result<nanoseconds> measure_narrow(Ground& bench, const Weights& weights) {
  bench.spoil_target();
  const auto out = bench.target().first(weights.bits().size());
  const nanoseconds taken = timed([&] { training::export_bfloat16(weights.values(), 0, out); });
  bool near = true;
  for (std::size_t i = 0; i < weights.values().size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &out[2 * i], sizeof bits);
    const auto back = std::bit_cast<float>(std::uint32_t{bits} << 16U);
    const float value = weights.values()[i];
    near &= std::abs(back - value) <= std::abs(value) * kBf16RoundsBy;
  }
  WSYNC_TRY(check_equal(near, "a weight in bfloat16"));
  return taken;
}

Result<nanoseconds> measure_widen(Ground& bench, const Weights& weights) {
  bench.spoil_target();
  const auto target = bench.target();
  const std::span<float> out(reinterpret_cast<float*>(target.data()),
                             target.size() / sizeof(float));
  const nanoseconds taken = timed([&] { moe::widen(weights.bits(), out); });
  bool same = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &weights.bits()[2 * i], sizeof bits);
    same &= std::bit_cast<std::uint32_t>(out[i]) == std::uint32_t{bits} << 16U;
  }
  WSYNC_TRY(check_equal(same, "a weight in float32"));
  return taken;
}

Result<nanoseconds> wall_of(const Result<Spent>& spent) {
  if (!spent) return fail(spent.error());
  return spent->wall;
}

}  // namespace

Result<> add_bulk_codec_rows(Ground& bench, std::vector<Row>& rows) {
  auto manifest = tensors_of_bytes(bench.bytes());
  if (!manifest) return fail(std::move(manifest).error());
  auto weights = Weights::create(bench.bytes());
  if (!weights) return fail(std::move(weights).error());
  const auto add = [&](const char* name, const char* against, auto measure) {
    rows.push_back(rate_row(
        {.name = name, .variant = "", .bytes = bench.bytes(), .against = against}, measure));
  };
  add("memcpy", "", [&bench] { return wall_of(measure_memcpy(bench)); });
  add("streaming copy", "memcpy", [&bench] { return wall_of(measure_streaming_copy(bench)); });
  add("XXH3", "memcpy", [&bench] { return measure_digest(bench); });
  add("content digest", "memcpy", [&bench, manifest = std::make_shared<Manifest>(*manifest)] {
    return measure_content_digest(bench, *manifest);
  });
  add("sum of words", "memcpy", [&bench] { return measure_word_sum(bench); });
  add("copy with sum of words", "streaming copy", [&bench] { return measure_summed_copy(bench); });
  add("bucket frames", "memcpy", [&bench] { return measure_frames(bench); });
  add("float32 to bfloat16", "memcpy",
      [&bench, weights = *weights] { return measure_narrow(bench, *weights); });
  add("bfloat16 to float32", "memcpy",
      [&bench, weights = *weights] { return measure_widen(bench, *weights); });
  return {};
}

}  // namespace wsync::bench
