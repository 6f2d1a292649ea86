// Random models, and random parts of them that a rank takes.
#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "shared/base/weight_limits.h"
#include "shared/control/messages.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/manifest.h"
#include "tests/support/bytes.h"

namespace wsync::reload {

inline TensorInfo info(std::string name, std::vector<std::uint64_t> shape,
                       DType dtype = DType::kBF16) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

inline control::EngineTensor wanted(const TensorInfo& tensor,
                                    std::vector<control::DimRange> ranges = {}) {
  return {.name = tensor.name,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .ranges = std::move(ranges)};
}

struct RandomModel {
  Manifest manifest;
  BucketPlan plan;
  std::vector<std::byte> arena;
  std::vector<control::EngineTensor> tensors;  // of one rank, in random order, with random ranges
};

inline RandomModel random_model(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  std::vector<TensorInfo> infos;
  const std::array dtypes{DType::kU8, DType::kBF16, DType::kF32};
  for (std::uint64_t i = 0, n = 1 + below(12); i < n; ++i) {
    std::vector<std::uint64_t> shape(below(4));
    for (auto& size : shape) size = below(8) == 0 ? 1 : below(40);
    // Now and then one that is larger than a bucket.
    if (below(6) == 0) shape = {1 + below(3), 600 + below(400), 512 + below(512)};
    infos.push_back(info("model.layers." + std::to_string(i / 3) + ".w" + std::to_string(i), shape,
                         dtypes[below(dtypes.size())]));
  }
  RandomModel model;
  model.manifest = Manifest::create(infos).value();
  model.plan = BucketPlan::create(model.manifest, limits::kBucketBytesMin).value();
  model.arena.resize(model.plan.arena_bytes());
  fill_random(random, model.arena);
  for (const TensorInfo& tensor : model.manifest.tensors()) {
    std::vector<control::DimRange> ranges;
    for (std::uint32_t d = 0; d < tensor.shape.size(); ++d) {
      if (below(3) != 0) continue;
      const std::uint64_t begin = below(tensor.shape[d] + 1);
      ranges.push_back({.dim = d, .begin = begin, .length = below(tensor.shape[d] - begin + 1)});
    }
    model.tensors.push_back(wanted(tensor, ranges));
  }
  std::ranges::shuffle(model.tensors, random);
  return model;
}

}  // namespace wsync::reload
