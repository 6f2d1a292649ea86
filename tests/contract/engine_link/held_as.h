// For tests of ranks that hold tensors in another dtype than the version has.
#pragma once

#include <vector>

#include "shared/weights/cast.h"
#include "tests/contract/engine_link/sidecar_peer.h"

namespace wsync::engine::test {

// The tensors of one dtype are held in another.
inline void hold(FakeEngine& engine, DType from, DType to) {
  for (std::size_t t = 0; t < engine.memory.size(); ++t) {
    RankTensor& tensor = engine.description.tensors[t];
    if (tensor.description.dtype != from) continue;
    tensor.held_as = to;
    engine.memory[t].resize(engine.memory[t].size() * dtype_bits(to) / dtype_bits(from));
    tensor.destination = engine.memory[t];
  }
}

// What the rank should hold of a tensor: its part of the version, converted.
inline std::vector<std::byte> converted(const reload::LoadTensor& plan, const RankTensor& tensor,
                                        const SharedArena& arena) {
  std::vector<std::byte> part;
  for (std::uint64_t at = 0; at < plan.shard.bytes();) {
    const auto run = plan.shard.run_at(at);
    const auto bytes = arena.data().subspan(plan.arena_offset + run.offset, run.bytes);
    part.insert(part.end(), bytes.begin(), bytes.end());
    at += run.bytes;
  }
  const DType from = tensor.description.dtype;
  const DType to = tensor.held_as.value_or(from);
  std::vector<std::byte> out(part.size() * dtype_bits(to) / dtype_bits(from));
  cast(from, part, to, out);
  return out;
}

struct CastPair {
  DType from;
  DType to;
};
inline constexpr CastPair kCastPairs[] = {{DType::kBF16, DType::kF32},
                                          {DType::kF32, DType::kBF16},
                                          {DType::kBF16, DType::kF16},
                                          {DType::kF32, DType::kF16}};

}  // namespace wsync::engine::test
