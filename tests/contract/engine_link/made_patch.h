// A second version that differs from the first one, and the patch that leads to it, for tests of
// the engine library.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "shared/base/sealed_memory.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/patch.h"
#include "tests/contract/engine_link/attached_rank.h"
#include "tests/contract/engine_link/sidecar_peer.h"

namespace wsync::engine::test {

inline std::span<const std::byte> tensor_in(const Model& model, const SharedArena& arena,
                                            std::uint32_t tensor) {
  const auto pieces = model.plan.tensor_pieces(tensor);
  if (pieces.empty()) return {};
  return arena.data().subspan(model.plan.arena_offset(pieces.front()),
                              model.manifest.byte_size(tensor));
}

// The second version: `change(piece, bytes)` changes the bytes of the first one.
template <class Change>
SharedArena second_arena(const Model& model, const SharedArena& first, Change&& change) {
  auto made =
      SharedArena::create({.name = "test", .data_bytes = model.plan.arena_bytes(), .threads = 1})
          .value();
  auto lease = made.try_write_lease({.version_epoch = kSecond.epoch,
                                     .version_step = kSecond.step,
                                     .layout = model.manifest.layout_digest(),
                                     .bucket_bytes = model.plan.bucket_bytes()})
                   .value();
  std::ranges::copy(first.data(), lease.data().begin());
  for (const Piece& piece : model.plan.pieces())
    change(piece, lease.data().subspan(model.plan.arena_offset(piece), piece.bytes));
  std::move(lease).complete({.low = kSecond.step, .high = 1});
  return made;
}

// It differs in each 40th element of two bytes, and in nothing of "model.layers.1".
inline SharedArena changed_arena(const Model& model, const SharedArena& first) {
  return second_arena(model, first, [&](const Piece& piece, std::span<std::byte> bytes) {
    if (model.manifest.tensor(piece.tensor).name.find("layers.1.") != std::string::npos) return;
    for (std::size_t at = 0; at < bytes.size(); at += 80) bytes[at] ^= std::byte{1};
  });
}

// A rank of unified devices that has two versions to be switched between.
struct RankOfTwoVersions : Rank {
  RankOfTwoVersions(const Model& model, control::TakeMode take, std::uint32_t rank,
                    std::uint32_t world)
      : Rank(model, take, rank, world),
        first(model.arena(kFirst)),
        second(changed_arena(model, first)) {}
  // It is welcome, has stopped with the first version, and is prepared for the second one.
  void stop_with_first(const Model& model) {
    peer.welcome_unified();
    EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kFirst), share(first)).failure, "");
    switch_to(kFirst);
    EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kSecond, false), share(second)).failure,
              "");
    engine.calls.clear();
  }
  SharedArena first;
  SharedArena second;
};

// What a sidecar would hold for these two arenas.
struct MadePatch {
  MadePatch(const Model& model, const SharedArena& base, const SharedArena& target)
      : layout(model.manifest) {
    auto builder = patch::PatchBuilder::create(layout, limits::kBucketBytesMin).value();
    patch::BlockMaker maker;
    bool is_empty = true;
    for (std::uint32_t t = 0; t < model.manifest.size(); ++t)
      for (std::uint32_t b = 0; b < layout.block_count(t); ++b) {
        const patch::BlockPlace place{.tensor = t, .block = b};
        const std::uint64_t at = patch::Layout::offset(place);
        const std::uint64_t bytes = layout.block_bytes(place);
        if (auto block = maker.make(layout, place, tensor_in(model, base, t).subspan(at, bytes),
                                    tensor_in(model, target, t).subspan(at, bytes))) {
          builder.add(std::move(*block));
          is_empty = false;
        }
      }
    const Digest from{.low = 1, .high = 1};
    patch = builder.finish(from, is_empty ? from : Digest{.low = 2, .high = 1}).value();
    reader.emplace(patch::PatchReader::open(layout, patch).value());
  }
  [[nodiscard]] Bytes bytes() const {
    Bytes all = patch.index;
    for (const Bytes& bucket : patch.buckets) all.insert(all.end(), bucket.begin(), bucket.end());
    return all;
  }
  patch::Layout layout;
  patch::Patch patch;
  std::optional<patch::PatchReader> reader;
};

inline std::vector<UniqueFd> sealed(const Bytes& bytes) {
  const std::array<std::span<const std::byte>, 1> parts = {bytes};
  std::vector<UniqueFd> fds;
  fds.push_back(SealedMemory::create("patch", parts).value().share().value());
  return fds;
}

inline control::Load load_by(const Bytes& patch, Version base = kFirst) {
  return {.version = kSecond, .copy_threads = 2, .patch_base = base, .patch_bytes = patch.size()};
}

}  // namespace wsync::engine::test
