#include "inference_side/engine_link/prepared_version.h"

#include <algorithm>

#include "inference_side/engine_link/destination.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/bucket_plan.h"

namespace wsync::engine {
namespace {

Result<LayerPlaces> places_on_gpu(const EngineLayout& layout,
                                  std::span<const control::EngineTensor> tensors, bool keeps_all) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t bytes = layout.plan.tensors()[t].shard.bytes();
    if (bytes > limits::kBucketBytesMax)
      return fail(
          ErrorCode::kRefused,
          fmt::format("tensor {}: this rank's part has {} bytes, but at most {} can be put "
                      "together on a GPU: take it as pieces into memory of the engine's own",
                      tensors[t].name, bytes, limits::kBucketBytesMax));
  }
  return place_layers(layout.plan, layout.layers, limits::kBucketBytesMax, keeps_all);
}

}  // namespace

Result<std::shared_ptr<const EngineLayout>> EngineLayout::make(
    const Manifest& manifest, std::uint64_t bucket_bytes, const EngineDescription& description) {
  const auto buckets = WSYNC_TRY(BucketPlan::create(manifest, bucket_bytes));
  std::vector<control::EngineTensor> tensors;
  if (description.any_layout) {
    tensors = reload::whole_tensors(manifest);
  } else {
    tensors.reserve(description.tensors.size());
    for (const auto& tensor : description.tensors) tensors.push_back(tensor.description);
  }
  auto plan = WSYNC_TRY(reload::LoadPlan::make(manifest, buckets, tensors));
  auto layout = std::make_shared<EngineLayout>();
  layout->digest = manifest.layout_digest();
  layout->bucket_bytes = bucket_bytes;
  layout->plan = std::move(plan);
  if (takes_patches(description)) layout->manifest = std::make_shared<const Manifest>(manifest);
  layout->layer_of.resize(tensors.size());
  std::vector<std::pair<std::uint32_t, std::uint32_t>> order;  // manifest index, rank's index
  for (std::uint32_t t = 0; t < tensors.size(); ++t)
    order.emplace_back(layout->plan.tensors()[t].manifest_index, t);
  std::ranges::sort(order);
  std::optional<std::uint32_t> layer;
  for (const auto& [index, t] : order) {
    if (layer != manifest.layer(index)) layout->layers.emplace_back();
    layer = manifest.layer(index);
    layout->layers.back().push_back(t);
    layout->layer_of[t] = static_cast<std::uint32_t>(layout->layers.size() - 1);
  }
  if (description.take == control::TakeMode::kPieces) {
    for (std::uint32_t t = 0; t < tensors.size(); ++t) {
      const std::uint64_t bytes =
          destination_bytes(description.tensors[t], layout->plan.tensors()[t].shard.bytes());
      if (description.tensors[t].destination.size() != bytes)
        return fail(
            ErrorCode::kInvalidInput,
            fmt::format(
                "tensor {}: the engine provides {} bytes of memory, but this rank's part needs {}",
                tensors[t].name, description.tensors[t].destination.size(), bytes));
    }
  }
  if (description.gpu != nullptr && description.take != control::TakeMode::kPieces)
    layout->places =
        WSYNC_TRY(places_on_gpu(*layout, tensors, description.take == control::TakeMode::kBorrow));
  if (description.any_layout) layout->tensors = std::move(tensors);
  return std::shared_ptr<const EngineLayout>(std::move(layout));
}

Result<MappedVersion> MappedVersion::open(int fd, const ArenaExpectation& expected,
                                          std::uint64_t data_bytes, KeptMappings& kept) {
  MappedVersion mapped;
  if (planted("engine_no_lease")) {
    mapped.without_lease_ = WSYNC_TRY(MappedRegion::map(fd, kArenaHeaderBytes + data_bytes, false));
    return mapped;
  }
  mapped.view_ = WSYNC_TRY(ArenaView::open(fd, expected, 1, &kept));
  if (mapped.view_->data().size() < data_bytes)
    return fail(ErrorCode::kRefused, fmt::format("the arena has {} bytes, but the layout needs {}",
                                                 mapped.view_->data().size(), data_bytes));
  return mapped;
}

Result<> MappedVersion::acquire() { return view_ ? view_->renew() : Result<>{}; }

void MappedVersion::release() noexcept {
  if (view_ && !planted("engine_keeps_leases")) view_->suspend();
}

std::span<const std::byte> MappedVersion::data() const noexcept {
  if (view_) return view_->data();
  return std::span<const std::byte>(without_lease_.bytes()).subspan(kArenaHeaderBytes);
}

Result<Manifest> layout_in(const control::Prepare& message) {
  ByteReader reader(message.layout);
  auto manifest = WSYNC_TRY(Manifest::decode(reader));
  WSYNC_TRY(reader.finish("layout"));
  if (manifest.layout_digest() != message.layout_digest)
    return fail(
        ErrorCode::kDigestMismatch,
        fmt::format("the layout has digest {}, but the sidecar announced {}",
                    manifest.layout_digest().to_string(), message.layout_digest.to_string()));
  return manifest;
}

Result<std::shared_ptr<const EngineLayout>> Preparer::layout_of(const control::Prepare& message) {
  if (!message.layout.empty()) manifest_ = WSYNC_TRY(layout_in(message));
  if (!manifest_ || manifest_->layout_digest() != message.layout_digest)
    return fail(ErrorCode::kNotFound,
                fmt::format("this engine does not know layout {}; send the layout with the version",
                            message.layout_digest.to_string()));
  if (!layout_ || layout_->digest != message.layout_digest ||
      layout_->bucket_bytes != message.bucket_bytes) {
    auto layout = EngineLayout::make(*manifest_, message.bucket_bytes, *description_);
    if (!layout) return layout;
    layout_ = std::move(*layout);
  }
  return layout_;
}

Result<std::unique_ptr<PreparedVersion>> Preparer::prepare(const control::Prepare& message,
                                                           int fd) {
  auto layout = WSYNC_TRY(layout_of(message));
  const reload::LoadPlan& plan = layout->plan;
  if (message.arena_bytes < plan.arena_bytes())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("an arena of {} bytes was announced, but the layout needs {}",
                            message.arena_bytes, plan.arena_bytes()));
  auto prepared = std::make_unique<PreparedVersion>();
  prepared->version = message.version;
  prepared->layout = std::move(layout);
  // A rank without tensors, such as a controller, has nothing to read there.
  if (fd >= 0 && !plan.tensors().empty()) {
    const ArenaExpectation expected{
        .version = std::pair{std::uint64_t{message.version.epoch}, message.version.step},
        .layout = message.layout_digest};
    auto arena = WSYNC_TRY(MappedVersion::open(fd, expected, plan.arena_bytes(), kept_));
    prepared->arena = std::move(arena);
  }
  if (reads_in_place(*description_) && !plan.tensors().empty()) {
    const bool adopts = description_->take == control::TakeMode::kAdopt;
    if (!prepared->arena)
      return fail(ErrorCode::kRefused,
                  fmt::format("{} needs a unified device: the staged version of a separate device "
                              "cannot be mapped as a whole",
                              adopts ? "adoption" : "borrowing"));
    for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
      if (!plan.tensors()[t].shard.contiguous())
        return fail(
            ErrorCode::kRefused,
            fmt::format("tensor {}: this rank takes a strided part, which cannot be {} in place",
                        description_->tensors[t].description.name,
                        adopts ? "adopted" : "borrowed"));
    }
    if (!message.is_verified)
      return fail(ErrorCode::kRefused,
                  fmt::format("the sidecar has not verified the staged bytes of {}, so the version "
                              "cannot be {}",
                              message.version.to_string(), adopts ? "adopted" : "borrowed"));
  }
  if (prepared->arena) prepared->arena->release();
  return prepared;
}

}  // namespace wsync::engine
