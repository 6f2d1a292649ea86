// Bytes that a follower takes for a batch. Whatever they are, they are refused as bad input, or
// they are a batch that reads back as it is written, writes to no place of its cache twice and can
// be computed: every read and write of a forward is in bounds.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "inference_side/reference_engine/generation/model_shard.h"
#include "shared/base/check.h"

namespace {

using namespace wsync;
using namespace wsync::engine::generation;

moe::ModelSpec tiny_spec() {
  return {.vocabulary = 40,
          .hidden = 4,
          .layers = 1,
          .heads = 2,
          .key_value_heads = 1,
          .head_dim = 2,
          .experts = 2,
          .experts_per_token = 1,
          .expert_hidden = 2,
          .max_positions = 30};
}

// A model whose weights are all one half, in memory of its exact size.
class World final : public WeightView {
 public:
  World() {
    std::vector<TensorInfo> tensors;
    for (const moe::Parameter& parameter : moe::all_parameters(tiny_spec()))
      tensors.push_back({.name = parameter.name, .shape = parameter.shape});
    const Manifest manifest = Manifest::create(std::move(tensors)).value();
    for (std::size_t t = 0; t < manifest.size(); ++t) {
      Bytes& bytes = weights_.emplace_back(manifest.byte_size(t));
      for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] = std::byte{0x3f};
    }
    shard_ =
        ModelShard::create(
            {.spec = tiny_spec(), .blocks = 9, .block_tokens = 4, .max_step_tokens = 16}, manifest)
            .value();
  }
  [[nodiscard]] std::span<const std::byte> tensor(std::uint32_t t) const override {
    return weights_[t];
  }
  void begin_layer(std::uint32_t /*layer*/) override {}
  void end_layer(std::uint32_t /*layer*/) override {}
  [[nodiscard]] ModelShard& shard() { return *shard_; }

 private:
  std::vector<Bytes> weights_;
  std::unique_ptr<ModelShard> shard_;
};

void check_places(const Batch& batch, const BatchLimits& limits) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> written;
  for (const SequenceSlice& slice : batch.slices)
    for (std::uint32_t i = 0; i < slice.tokens.size(); ++i) {
      const std::uint32_t position = slice.first_position + i;
      const std::uint32_t block = slice.blocks.at(position / limits.block_tokens);
      WSYNC_CHECK(block < limits.blocks, "a block is one of the rank's");
      WSYNC_CHECK(written.emplace(block, position % limits.block_tokens).second,
                  "a place is written once");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const BatchLimits limits = world.shard().limits();
  const Result<Batch> batch = decode_batch(bytes, limits);
  if (!batch) {
    WSYNC_CHECK(batch.error().code() == ErrorCode::kInvalidInput, "bad bytes are bad input");
    return 0;
  }
  const Bytes again = encode(*batch);
  WSYNC_CHECK(std::ranges::equal(again, bytes), "a batch is written as it was read");
  check_places(*batch, limits);
  const auto logits = world.shard().forward(*batch, world, {}, now());
  WSYNC_CHECK(logits && logits->size() == batch->logits() * limits.vocabulary,
              "a batch that is read can be computed");
  for (const float logit : *logits) WSYNC_CHECK(std::isfinite(logit), "logits are numbers");
  return 0;
}
