#include "inference_side/engine_link/scrub_pass.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/patch/format.h"

namespace wsync::engine {
namespace {

std::uint64_t block_count(const ScrubPass::Tensor& tensor) {
  return (tensor.shard.tensor_bytes() + patch::kBlockBytes - 1) / patch::kBlockBytes;
}

SplitSum difference(const SplitSum& from, const SplitSum& to) {
  const auto minus = [](const WordSum& a, const WordSum& b) {
    return WordSum{.product = a.product - b.product, .sum = a.sum - b.sum};
  };
  return {.words = minus(to.words, from.words), .edges = minus(to.edges, from.edges)};
}

// The first gap between two rows is the smallest one: those between groups of rows contain it.
bool has_rows_in_one_word(const reload::Shard& shard) {
  if (shard.contiguous()) return false;
  const std::uint64_t end = shard.run_at(0).offset + shard.run_bytes();
  return shard.run_at(shard.run_bytes()).offset - end < kSumWordBytes;
}

}  // namespace

SplitSum sum_of_part(const reload::Shard& shard, std::uint64_t seed,
                     std::span<const std::byte> bytes, std::uint64_t at) {
  SplitSum sum;
  while (!bytes.empty()) {
    const reload::Shard::Rows rows = shard.rows_at(at, bytes.size());
    const bool aligned = rows.offset % kSumWordBytes == 0 && rows.row_bytes % kSumWordBytes == 0 &&
                         rows.stride % kSumWordBytes == 0;
    const auto read = bytes.first(rows.bytes());
    if (rows.rows > 1 && aligned) {
      sum.words +=
          word_sum_rows(read, rows.row_bytes, rows.stride, {.seed = seed, .position = rows.offset});
    } else {
      for (std::uint64_t row = 0; row < rows.rows; ++row)
        sum += split_sum(read.subspan(row * rows.row_bytes, rows.row_bytes),
                         {.seed = seed,
                          .position = rows.offset + row * rows.stride,
                          .tensor_bytes = shard.tensor_bytes()});
    }
    at += rows.bytes();
    bytes = bytes.subspan(rows.bytes());
  }
  return sum;
}

ScrubPass::ScrubPass(std::uint64_t number, const Version& version, std::vector<Tensor> tensors,
                     TimePoint begin)
    : number_(number),
      version_(version),
      tensors_(std::move(tensors)),
      begin_(begin),
      sums_(tensors_.size()) {
  for (const Tensor& tensor : tensors_) {
    WSYNC_CHECK(tensor.memory.empty() || tensor.memory.size() == tensor.shard.bytes(),
                "the memory of a part has its size");
    if (has_rows_in_one_word(tensor.shard)) adds_patches_ = false;
  }
  skip_empty();
}

// Blocks in which the rank has nothing are passed over, as if they had been read.
void ScrubPass::skip_empty() {
  for (; tensor_ < tensors_.size(); ++tensor_, block_ = 0) {
    const Tensor& tensor = tensors_[tensor_];
    const std::uint64_t blocks = block_count(tensor);
    for (; block_ < blocks; ++block_)
      if (tensor.shard.bytes_before(block_ * patch::kBlockBytes) !=
          tensor.shard.bytes_before(
              std::min((block_ + 1) * patch::kBlockBytes, tensor.shard.tensor_bytes())))
        return;
  }
}

void ScrubPass::read_block() {
  if (complete()) return;
  const Next block = next();
  const auto memory = tensors_[tensor_].memory;
  WSYNC_CHECK(!memory.empty(), "what is read lies in memory");
  add(memory.subspan(block.offset, block.bytes));
}

ScrubPass::Next ScrubPass::next() const {
  const Tensor& tensor = tensors_[tensor_];
  const std::uint64_t begin = block_ * patch::kBlockBytes;
  const auto own = tensor.shard.clip(
      {.begin = begin,
       .end = std::min<std::uint64_t>(begin + patch::kBlockBytes, tensor.shard.tensor_bytes())});
  return {.tensor = static_cast<std::uint32_t>(tensor_), .offset = own.begin, .bytes = own.bytes()};
}

void ScrubPass::add(std::span<const std::byte> bytes) {
  const Tensor& tensor = tensors_[tensor_];
  sums_[tensor_] += sum_of_part(tensor.shard, tensor.seed, bytes, next().offset);
  ++block_;
  skip_empty();
}

control::Scrubbed scrubbed_by(const ScrubPass& pass, std::chrono::nanoseconds cpu, TimePoint now) {
  return {.pass = pass.number(),
          .version = pass.version(),
          .age_ns = static_cast<std::uint64_t>((now - pass.begin()).count()),
          .cpu_ns = static_cast<std::uint64_t>(cpu.count()),
          .failure = {},
          .sums = pass.sums()};
}

std::vector<std::uint64_t> ScrubPass::read_blocks() const {
  std::vector<std::uint64_t> blocks(tensors_.size(), 0);
  for (std::size_t t = 0; t < std::min(tensor_, tensors_.size()); ++t)
    blocks[t] = block_count(tensors_[t]);
  if (tensor_ < tensors_.size()) blocks[tensor_] = block_;
  return blocks;
}

void ScrubPass::change(std::span<const SplitSum> before, std::span<const SplitSum> after,
                       TimePoint now) {
  WSYNC_CHECK(before.size() == sums_.size() && after.size() == sums_.size(),
              "a patch returns sums of each tensor");
  if (!adds_patches_) {
    sums_.assign(tensors_.size(), {});
    tensor_ = 0;
    block_ = 0;
    begin_ = now;
    return skip_empty();
  }
  for (std::size_t t = 0; t < sums_.size(); ++t) sums_[t] += difference(before[t], after[t]);
}

}  // namespace wsync::engine
