// Any bytes as the changes that come in sealed memory: the reader refuses them with one line, or
// what it accepts are changes of every bucket, whose sums are those that the base has with them.
//
// Input: 0, two bytes, and the memory; or 1, the size of the first bucket's changes (2 bytes), and
// the changes of both buckets, to which frames and digests are added.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shared/base/check.h"
#include "shared/transport/frame.h"
#include "shared/transport/memfd/sealed_changes.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/patch/leaf_changes.h"

namespace {

using wsync::Bytes;
using wsync::DType;
using wsync::WordSum;
namespace transport = wsync::transport;

struct Model {
  wsync::Manifest manifest =
      wsync::Manifest::create({{.name = "a", .dtype = DType::kBF16, .shape = {40, 30}},
                               {.name = "b", .dtype = DType::kU8, .shape = {1U << 20U}}})
          .value();
  wsync::BucketPlan plan = wsync::BucketPlan::create(manifest, 1U << 20U).value();
  std::shared_ptr<const wsync::LeafTable> leaves =
      std::make_shared<const wsync::LeafTable>(manifest, plan);
  std::shared_ptr<const wsync::patch::Layout> layout =
      std::make_shared<const wsync::patch::Layout>(manifest);
  Bytes base = Bytes(plan.arena_bytes(), std::byte{0x3C});
  std::vector<WordSum> sums = [this] {
    std::vector<WordSum> found;
    for (const wsync::LeafPlace& leaf : leaves->all())
      found.push_back(
          wsync::word_sum(std::span(base).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
    return found;
  }();
  transport::FetchRequest wanted = [this] {
    transport::FetchRequest request;
    request.key = {.fence = {.epoch = 1, .run_id = {2, 3}},
                   .version = {.epoch = 1, .step = 2},
                   .layout = manifest.layout_digest()};
    request.data_bytes = plan.arena_bytes();
    for (std::size_t i = 0; i < plan.bucket_count(); ++i)
      request.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
    request.leaves = leaves;
    request.base = transport::FetchBase{.version = {.epoch = 1, .step = 1},
                                        .data = base,
                                        .hold = nullptr,
                                        .blocks = layout,
                                        .max_share = 0.4,
                                        .sums = sums};
    return request;
  }();
};

// What a source writes that has these changes, with the digests that they lead to.
Bytes with_frames(const Model& model, std::span<const std::byte> changes, std::size_t first) {
  Bytes out;
  const auto put = [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket) {
    const auto mine = bucket == 0 ? changes.first(first) : changes.subspan(first);
    put(transport::encode_frame({.type = transport::FrameType::kChanges,
                                 .key = model.wanted.key,
                                 .bucket = bucket,
                                 .bytes = mine.size(),
                                 .base = model.wanted.base->version}));
    put(mine);
    const auto leaves = model.leaves->bucket(bucket);
    wsync::Digest digest;
    if (const auto blocks = wsync::patch::read_leaf_changes(*model.layout, leaves, mine); blocks)
      if (const auto sums = wsync::patch::sum_leaf_changes(
              *model.layout, leaves, *blocks, model.base,
              std::span(model.sums).subspan(model.leaves->first(bucket), leaves.size()));
          sums)
        digest = wsync::bucket_digest(*sums);
    put(transport::encode_trailer(digest));
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Model model;
  WSYNC_CHECK(model.plan.bucket_count() == 2, "the model has two buckets");
  if (size < 3) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  Bytes made;
  std::span<const std::byte> bytes = input.subspan(3);
  if (data[0] % 2 == 1) {
    const std::size_t first = std::min<std::size_t>(data[1] + 256U * data[2], size - 3);
    made = with_frames(model, input.subspan(3), first);
    bytes = made;
  }
  const auto arrived = transport::memfd::read_changes(model.wanted, bytes);
  if (!arrived) {
    const std::string& message = arrived.error().message();
    WSYNC_CHECK(!message.empty() && message.find('\n') == std::string::npos, "one line says why");
    return 0;
  }
  WSYNC_CHECK(arrived->size() == model.plan.bucket_count(), "every bucket has come");
  std::size_t read = 0;
  for (const transport::ArrivedBucket& bucket : *arrived) {
    const auto leaves = model.leaves->bucket(bucket.bucket);
    const auto blocks = wsync::patch::read_leaf_changes(*model.layout, leaves, *bucket.changes);
    Bytes into = model.base;
    WSYNC_CHECK(blocks.has_value(), "what is accepted can be read");
    const auto sums =
        wsync::patch::apply_leaf_changes(*model.layout, leaves, *blocks, model.base, into);
    WSYNC_CHECK(sums.has_value() && *sums == bucket.sums, "the sums are those of the result");
    WSYNC_CHECK(wsync::bucket_digest(*sums) == bucket.digest, "and so is the digest");
    read += transport::kFrameBytes + bucket.changes->size() + transport::kTrailerBytes;
  }
  WSYNC_CHECK(read == bytes.size(), "nothing is left over");
  return 0;
}
