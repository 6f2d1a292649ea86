// A rank with weights on a GPU, for tests of the engine library over the emulated driver.
#pragma once

#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "inference_side/engine_link/engine_link.h"
#include "shared/base/format.h"
#include "shared/device/device.h"
#include "tests/contract/engine_link/gpu_sidecar.h"

namespace wsync::engine::test {

// Of two ranks, each takes rows of 77 bytes of the last one, which lies in several buckets: a
// bucket begins inside a row, and the rows behind that on no granule of the digest.
inline Model with_odd_rows() {
  const Model usual = Model::make();
  std::vector<TensorInfo> all(usual.manifest.tensors().begin(), usual.manifest.tensors().end());
  all.push_back(
      {.name = "model.layers.2.mlp.down_proj.scales", .dtype = DType::kU8, .shape = {14'000, 154}});
  return Model::of(std::move(all));
}

// Each layer begins in the bucket in which the one before ends. One more layer is the norm.
inline Model wide_layers(int layers = 4) {
  std::vector<TensorInfo> tensors;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.push_back({.name = prefix + "a", .dtype = DType::kU8, .shape = {1001}});
    tensors.push_back({.name = prefix + "b", .dtype = DType::kBF16, .shape = {700, 1024}});
  }
  tensors.push_back({.name = "model.norm.a", .dtype = DType::kF32, .shape = {33}});
  tensors.push_back({.name = "model.norm.b", .dtype = DType::kF32, .shape = {0}});
  return Model::of(std::move(tensors));
}

// FakeEngine, given addresses of a GPU.
class GpuEngine : public FakeEngine {
 public:
  GpuEngine(const Model& model, control::TakeMode take, std::uint32_t rank, std::uint32_t world,
            device::Device& device)
      : FakeEngine(model, take, rank, world), device_(device) {}

  Result<> load_begin(const Version& version) override {
    if (on_begin) on_begin();
    return FakeEngine::load_begin(version);
  }
  Result<Answer> load_layer(const Version& version, std::uint32_t layer,
                            std::span<const LayerTensor> tensors) override {
    if (description.take == control::TakeMode::kPieces)
      return FakeEngine::load_layer(version, layer, tensors);
    note("layer " + std::to_string(layer));
    if (on_layer) on_layer();
    for (const LayerTensor& tensor : tensors) {
      if (description.take == control::TakeMode::kWhole)
        WSYNC_TRY(copy_out(tensor.bytes, memory[tensor.tensor]));
      else
        adopted[tensor.tensor] = tensor.bytes;
    }
    if (fail_layer == layer) return fail(ErrorCode::kIo, "no room for this layer");
    return late_layers.contains(layer) ? Answer::kLater : Answer::kNow;
  }
  Result<Answer> commit(const Version& version) override {
    if (description.take != control::TakeMode::kBorrow) return FakeEngine::commit(version);
    note("commit " + version.to_string());
    WSYNC_TRY(copy_borrowed());
    return late_commit ? Answer::kLater : Answer::kNow;
  }
  void load_given_up(const Version& version) override {
    note("given up " + version.to_string());
    if (on_given_up) on_given_up(version);
  }
  // Copies what is borrowed, as an engine packs it.
  Result<> copy_borrowed() {
    for (std::size_t t = 0; t < adopted.size(); ++t) WSYNC_TRY(copy_out(adopted[t], memory[t]));
    return {};
  }
  // Of the GPU's memory.
  Result<> copy_out(std::span<const std::byte> from, std::vector<std::byte>& to) {
    to.resize(from.size());
    if (from.empty()) return {};
    // The library has no other way to name memory of the GPU, and writes nothing there.
    const auto source =
        WSYNC_TRY(device_.borrow({const_cast<std::byte*>(from.data()), from.size()}));
    const auto stream = WSYNC_TRY(device_.create_stream(device::StreamRole::kReload));
    WSYNC_TRY(
        stream->copy_to_host(to, {.memory = source.get(), .offset = 0, .bytes = from.size()}));
    const auto event = WSYNC_TRY(device_.create_event());
    WSYNC_TRY(stream->record(*event));
    return event->wait(soon());
  }

  std::function<void()> on_begin;
  std::function<void(const Version& version)> on_given_up;

 private:
  device::Device& device_;
};

// One rank whose weights are on GPU 0, and a sidecar that it is attached to. What it takes whole or
// borrows, it copies into the vectors of FakeEngine, with a stream of its own.
struct GpuRank {
  explicit GpuRank(const Model& from, std::uint32_t rank = 0, std::uint32_t world = 1,
                   control::TakeMode take = control::TakeMode::kPieces)
      : model(from),
        device(device::make_device({.kind = DeviceKind::kCuda}).value()),
        engine(from, take, rank, world, *device) {
    peer.envelope.rank = rank;
    engine.description.gpu = device.get();
    if (take == control::TakeMode::kPieces) place_weights();
  }
  void place_weights() {
    std::uint64_t end = 0;
    std::vector<std::uint64_t> offsets;
    for (const auto& memory : engine.memory) {
      offsets.push_back(end);
      end += (memory.size() + 255) / 256 * 256;
    }
    weights = device->allocate(end).value();
    for (std::size_t t = 0; t < offsets.size(); ++t) {
      auto& destination = engine.description.tensors[t].destination;
      destination = {weights->address() + offsets[t], destination.size()};
    }
  }
  void start(bool serving = false) {
    engine.description.serving = serving;
    link = EngineLink::create(engine.description, peer.path(), engine).value();
    engine.on_pause = [this]() -> Result<> {
      link->report_paused(7);
      return {};
    };
    EXPECT_TRUE(link->start().has_value());
  }
  [[nodiscard]] control::EngineWelcome welcome(std::vector<control::BufferHandle> buffers) const {
    return {.generation = GpuSidecar::kGeneration,
            .device_kind = DeviceKind::kCuda,
            .buffer_bytes = model.plan.largest_bucket(),
            .buffers = std::move(buffers)};
  }
  [[nodiscard]] std::uint64_t free_bytes() const {
    return device->memory_info().value().free_bytes;
  }
  [[nodiscard]] control::Prepare prepare(Version version) const {
    return prepare_of(model, version);
  }
  // A bucket, and its acknowledgement, after which the buffer is overwritten.
  control::BucketAck give(GpuSidecar& sidecar, const SharedArena& arena, std::uint64_t bucket,
                          std::optional<std::size_t> flipped = {}) {
    const auto bytes =
        arena.data().subspan(model.plan.bucket_offset(bucket), model.plan.bucket_size(bucket));
    std::vector<std::byte> source(bytes.begin(), bytes.end());
    if (flipped) source[*flipped] ^= std::byte{1};
    const auto slot = static_cast<std::uint32_t>(bucket % 2);
    sidecar.put(slot, source);
    const auto ack =
        peer.ask<control::BucketAck>(control::BucketReady{.bucket = bucket, .slot = slot});
    sidecar.scribble(slot, source.size());
    return ack;
  }
  // A whole load, and its commit.
  void load(GpuSidecar& sidecar, const SharedArena& arena, Version version,
            std::vector<control::BufferHandle> buffers = {}) {
    EXPECT_EQ(peer.ask<control::Prepared>(prepare(version)).failure, "");
    auto fds = buffers.empty() ? std::vector<UniqueFd>() : sidecar.fds();
    peer.send(control::Load{.version = version, .buffers = std::move(buffers)}, std::move(fds));
    const auto request = peer.envelope.request;
    for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
      EXPECT_EQ(give(sidecar, arena, bucket).failure, "");
    const auto loaded = peer.expect<control::Loaded>();
    EXPECT_EQ(peer.last_envelope.request, request);
    EXPECT_EQ(loaded.failure, "");
    const auto plan = plan_of(model, engine);
    EXPECT_EQ(loaded.bytes, plan.bytes());
    ASSERT_EQ(loaded.sums.size(), plan.tensors().size());
    for (std::size_t t = 0; t < loaded.sums.size(); ++t)
      EXPECT_EQ(loaded.sums[t], reload::expected_sum(plan.tensors()[t], arena.data()));
  }
  void commit(Version version) {
    EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = version}).failure, "");
  }
  // What the GPU holds, and what the engine says of it.
  void expect_holds(const SharedArena& arena) {
    const auto plan = plan_of(model, engine);
    const auto stream = device->create_stream(device::StreamRole::kReload).value();
    const auto digests = peer.ask<control::Digests>(control::ReadDigests{});
    EXPECT_EQ(digests.failure, "");
    ASSERT_EQ(digests.tensors.size(), plan.tensors().size());
    for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
      const auto& tensor = engine.description.tensors[t];
      EXPECT_EQ(digests.tensors[t].digest, reload::expected_digest(plan.tensors()[t], arena.data()))
          << tensor.description.name;
      EXPECT_EQ(digests.tensors[t].bytes, engine.memory[t].size());
      if (!weights) {
        EXPECT_EQ(tensor_digest(plan.tensors()[t].seed, engine.memory[t]),
                  reload::expected_digest(plan.tensors()[t], arena.data()))
            << tensor.description.name;
        continue;
      }
      std::vector<std::byte> held(tensor.destination.size());
      const auto offset =
          static_cast<std::uint64_t>(tensor.destination.data() - weights->address());
      ASSERT_TRUE(stream->copy_to_host(
          held, {.memory = weights.get(), .offset = offset, .bytes = held.size()}));
      const auto event = device->create_event().value();
      ASSERT_TRUE(stream->record(*event));
      ASSERT_TRUE(event->wait(soon()));
      EXPECT_EQ(tensor_digest(plan.tensors()[t].seed, held),
                reload::expected_digest(plan.tensors()[t], arena.data()))
          << tensor.description.name;
    }
  }

  const Model& model;
  SidecarPeer peer;
  std::unique_ptr<device::Device> device;
  GpuEngine engine;
  std::unique_ptr<device::Memory> weights;  // kPieces
  std::unique_ptr<EngineLink> link;         // destroyed first
};

}  // namespace wsync::engine::test
