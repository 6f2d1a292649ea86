#include "shared/weights/patch/index.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

constexpr std::uint64_t kDigestBytes = 16;
constexpr std::uint64_t kBucketEntryBytes = 56;
// A tensor that changes needs two bytes, a bucket its entry.
constexpr std::uint64_t kIndexBytesMax = kIndexHeadBytes + kDigestBytes +
                                         kBucketCountMax * kBucketEntryBytes +
                                         limits::kTensorCount * 2 * kVarintBytesMax;

void put_digest(ByteWriter& writer, const Digest& digest) {
  writer.put(digest.low);
  writer.put(digest.high);
}

Digest get_digest(ByteReader& reader, std::string_view field) {
  Digest digest;
  digest.low = reader.get<std::uint64_t>(field);
  digest.high = reader.get<std::uint64_t>(field);
  return digest;
}

tl::unexpected<Error> broken(std::string_view rule) {
  return fail(ErrorCode::kInvalidInput, fmt::format("the index of the patch: {}", rule));
}

// What the head says beside the link.
struct HeadCounts {
  std::uint64_t blocks = 0;
  std::uint64_t elements = 0;
  std::uint64_t body_bytes = 0;
};

BucketEntry get_bucket(ByteReader& reader) {
  BucketEntry entry;
  entry.bytes = reader.get<std::uint64_t>("bucket.bytes");
  entry.elements = reader.get<std::uint64_t>("bucket.elements");
  entry.blocks = reader.get<std::uint32_t>("bucket.blocks");
  entry.directory_bytes = reader.get<std::uint32_t>("bucket.directory_bytes");
  entry.first.tensor = reader.get<std::uint32_t>("bucket.first.tensor");
  entry.first.block = reader.get<std::uint32_t>("bucket.first.block");
  entry.last.tensor = reader.get<std::uint32_t>("bucket.last.tensor");
  entry.last.block = reader.get<std::uint32_t>("bucket.last.block");
  entry.digest = get_digest(reader, "bucket.digest");
  return entry;
}

Result<std::vector<TensorEntry>> take_tensors(std::span<const std::byte> bytes,
                                              std::uint32_t count) {
  std::vector<TensorEntry> tensors;
  tensors.reserve(std::min<std::size_t>(count, bytes.size() / 2));
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto gap = take_varint(bytes, limits::kTensorCount - 1);
    const auto blocks = take_varint(bytes, limits::kModelBytesMax / kBlockBytes);
    if (!gap || !blocks || *blocks == 0 || next + *gap >= limits::kTensorCount)
      return broken(fmt::format("entry {} of its tensors is not valid", i));
    tensors.push_back({.tensor = static_cast<std::uint32_t>(next + *gap),
                       .blocks = static_cast<std::uint32_t>(*blocks)});
    next = tensors.back().tensor + 1;
  }
  if (!bytes.empty())
    return broken(fmt::format("{} bytes are left over after its tensors", bytes.size()));
  return tensors;
}

}  // namespace

Index::Index(const Link& link, std::vector<BucketEntry> buckets, std::vector<TensorEntry> tensors)
    : link_(link), buckets_(std::move(buckets)), tensors_(std::move(tensors)) {
  for (const BucketEntry& bucket : buckets_) {
    offsets_.push_back(body_bytes_);
    blocks_before_.push_back(blocks_);
    body_bytes_ += bucket.bytes;
    blocks_ += bucket.blocks;
    elements_ += bucket.elements;
  }
  std::uint64_t end = 0;
  for (const TensorEntry& entry : tensors_) tensor_ends_.push_back(end += entry.blocks);
}

Index::TensorBlock Index::tensor_block(std::uint64_t block) const {
  const auto after = std::ranges::upper_bound(tensor_ends_, block);
  const auto entry = static_cast<std::size_t>(after - tensor_ends_.begin());
  return {.entry = entry, .block = entry == 0 ? block : block - tensor_ends_[entry - 1]};
}

Result<std::uint64_t> Index::size_of(std::span<const std::byte> head) {
  ByteReader reader(head.first(std::min<std::size_t>(head.size(), kIndexHeadBytes)));
  const auto magic = reader.get<std::uint32_t>("magic");
  const auto version = reader.get<std::uint32_t>("version");
  const auto bytes = reader.get<std::uint64_t>("index_bytes");
  if (reader.ok() && magic != kIndexMagic)
    return fail(ErrorCode::kInvalidInput, "this is not a patch of wsync");
  if (reader.ok() && version != kFormatVersion)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the patch has version {} of the format; this wsync reads version {}: "
                            "make the patch again, or use the wsync that made it",
                            version, kFormatVersion));
  if (head.size() < kIndexHeadBytes)
    return broken(
        fmt::format("it ends after {} bytes; its head has {}", head.size(), kIndexHeadBytes));
  if (bytes < kIndexHeadBytes + kDigestBytes || bytes > kIndexBytesMax)
    return broken(fmt::format("its length is {}, expected {} to {}", bytes,
                              kIndexHeadBytes + kDigestBytes, kIndexBytesMax));
  return bytes;
}

Result<Index> Index::parse(std::span<const std::byte> bytes) {
  const auto size = WSYNC_TRY(size_of(bytes));
  if (size != bytes.size())
    return broken(fmt::format("it says that it has {} bytes, found {}", size, bytes.size()));
  const auto proven = bytes.first(bytes.size() - kDigestBytes);
  ByteReader end(bytes.last(kDigestBytes));
  const Digest promised = get_digest(end, "digest");
  if (const Digest found = digest_of(proven); found != promised)
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("the index of the patch is damaged: its bytes have the digest {}, "
                            "expected {}",
                            found.to_string(), promised.to_string()));
  ByteReader reader(proven);
  (void)reader.get_raw(16, "beginning");  // checked by size_of()
  Link link;
  link.layout = get_digest(reader, "layout");
  link.base = get_digest(reader, "base");
  link.target = get_digest(reader, "target");
  link.model_bytes = reader.get<std::uint64_t>("model_bytes");
  HeadCounts said;
  said.blocks = reader.get<std::uint64_t>("blocks");
  said.elements = reader.get<std::uint64_t>("elements");
  said.body_bytes = reader.get<std::uint64_t>("body_bytes");
  const auto tensor_count = reader.get<std::uint32_t>("tensors");
  const auto bucket_count = reader.get_count(kBucketCountMax, kBucketEntryBytes, "buckets");
  std::vector<BucketEntry> buckets;
  buckets.reserve(bucket_count);
  for (std::uint32_t i = 0; i < bucket_count; ++i) buckets.push_back(get_bucket(reader));
  if (!reader.ok()) return broken(reader.violation());
  auto tensors = WSYNC_TRY(take_tensors(proven.last(reader.remaining()), tensor_count));
  Index index(link, std::move(buckets), std::move(tensors));
  WSYNC_TRY(index.check_order());
  WSYNC_TRY(index.check_sequence());
  if (said.blocks != index.blocks_ || said.elements != index.elements_ ||
      said.body_bytes != index.body_bytes_)
    return broken(
        fmt::format("it says that there are {} blocks, {} elements and {} bytes, but its buckets "
                    "have {}, {} and {}",
                    said.blocks, said.elements, said.body_bytes, index.blocks_, index.elements_,
                    index.body_bytes_));
  if ((index.blocks_ == 0) != (link.base == link.target))
    return broken(index.blocks_ == 0 ? "it has no blocks, but base and target differ"
                                     : "it has blocks, but base and target are equal");
  return index;
}

// Each bucket by itself, and after the one before it.
Result<> Index::check_order() const {
  if (link_.model_bytes > limits::kModelBytesMax)
    return broken(fmt::format("a model of {} bytes is larger than any", link_.model_bytes));
  std::uint64_t elements = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const BucketEntry& bucket = buckets_[i];
    if (bucket.blocks == 0 || bucket.bytes > limits::kBucketBytesMax ||
        bucket.directory_bytes >= bucket.bytes || bucket.elements < bucket.blocks ||
        bucket.elements > link_.model_bytes - elements)
      return broken(fmt::format("a number of bucket {} is out of its range", i));
    elements += bucket.elements;
    if (bucket.last < bucket.first || (bucket.last == bucket.first) != (bucket.blocks == 1) ||
        (i != 0 && bucket.first <= buckets_[i - 1].last))
      return broken(fmt::format("the blocks of bucket {} are not in ascending order", i));
  }
  return {};
}

// The blocks of the tensors, one after the other, are those of the buckets.
Result<> Index::check_sequence() const {
  const std::uint64_t of_tensors = tensor_ends_.empty() ? 0 : tensor_ends_.back();
  if (of_tensors != blocks_)
    return broken(fmt::format("its tensors have {} blocks, its buckets {}", of_tensors, blocks_));
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::uint64_t first = blocks_before_[i];
    const std::uint64_t last = first + buckets_[i].blocks - 1;
    if (tensors_[tensor_block(first).entry].tensor != buckets_[i].first.tensor ||
        tensors_[tensor_block(last).entry].tensor != buckets_[i].last.tensor)
      return broken(fmt::format("the blocks of bucket {} are not those of its tensors", i));
  }
  return {};
}

Bytes Index::encode() const {
  Bytes tensors;
  std::uint32_t next = 0;
  for (const TensorEntry& entry : tensors_) {
    put_varint(tensors, entry.tensor - next);
    put_varint(tensors, entry.blocks);
    next = entry.tensor + 1;
  }
  ByteWriter writer;
  writer.put(kIndexMagic);
  writer.put(kFormatVersion);
  writer.put(kIndexHeadBytes + buckets_.size() * kBucketEntryBytes + tensors.size() + kDigestBytes);
  put_digest(writer, link_.layout);
  put_digest(writer, link_.base);
  put_digest(writer, link_.target);
  writer.put(link_.model_bytes);
  writer.put(blocks_);
  writer.put(elements_);
  writer.put(body_bytes_);
  writer.put(static_cast<std::uint32_t>(tensors_.size()));
  writer.put(static_cast<std::uint32_t>(buckets_.size()));
  for (const BucketEntry& bucket : buckets_) {
    writer.put(bucket.bytes);
    writer.put(bucket.elements);
    writer.put(bucket.blocks);
    writer.put(bucket.directory_bytes);
    writer.put(bucket.first.tensor);
    writer.put(bucket.first.block);
    writer.put(bucket.last.tensor);
    writer.put(bucket.last.block);
    put_digest(writer, bucket.digest);
  }
  writer.put_raw(tensors);
  put_digest(writer, digest_of(writer.buffer()));
  return std::move(writer).take();
}

Result<> Index::check(const Layout& layout) const {
  const Manifest& manifest = layout.manifest();
  if (link_.layout != manifest.layout_digest() || link_.model_bytes != manifest.total_bytes())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the patch is for weights of another layout: {} with {} bytes, found {} "
                    "with {} bytes",
                    link_.layout.to_string(), link_.model_bytes,
                    manifest.layout_digest().to_string(), manifest.total_bytes()));
  for (const TensorEntry& entry : tensors_)
    if (entry.tensor >= manifest.size() || entry.blocks > layout.block_count(entry.tensor))
      return broken(fmt::format("tensor {} with {} blocks is not one of the model", entry.tensor,
                                entry.blocks));
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    for (const BlockPlace& place : {buckets_[i].first, buckets_[i].last})
      if (layout.block_bytes(place) == 0)
        return broken(fmt::format("bucket {} has block {} of tensor {}, which the model has not", i,
                                  place.block, place.tensor));
  return {};
}

}  // namespace wsync::patch
