#include "inference_side/engine_link/layer_memory.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"

namespace wsync::engine {
namespace {

// A part of the memory that layers use one after the other. Each layer begins at its beginning.
class Bank {
 public:
  Bank(const reload::LoadPlan& plan, std::uint64_t limit) : plan_(plan), limit_(limit) {}

  // The next layer begins where the first one did: its tensors take the place of theirs.
  void begin_again() {
    allocation_ = 0;
    end_ = 0;
  }
  // Places a layer behind what has been placed since begin_again().
  void place(std::span<const std::uint32_t> tensors, std::vector<LayerPlaces::Place>& places) {
    for (const std::uint32_t t : tensors) {
      const std::uint64_t bytes = plan_.tensors()[t].shard.bytes();
      if (bytes == 0) continue;
      WSYNC_CHECK(bytes <= limit_, "a tensor fits into an allocation");
      constexpr std::uint64_t kAlign = limits::kPieceAlignBytes;
      std::uint64_t offset = (end_ + kAlign - 1) / kAlign * kAlign;
      if (offset > limit_ || bytes > limit_ - offset) {
        ++allocation_;
        offset = 0;
      }
      end_ = offset + bytes;
      if (sizes_.size() <= allocation_) sizes_.resize(allocation_ + 1, 0);
      sizes_[allocation_] = std::max(sizes_[allocation_], end_);
      places[t] = {.allocation = static_cast<std::uint32_t>(allocation_), .offset = offset};
    }
  }
  [[nodiscard]] const std::vector<std::uint64_t>& sizes() const noexcept { return sizes_; }

 private:
  const reload::LoadPlan& plan_;
  std::uint64_t limit_;
  std::size_t allocation_ = 0;
  std::uint64_t end_ = 0;  // in this allocation
  std::vector<std::uint64_t> sizes_;
};

struct Buckets {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

// Of each layer; std::nullopt for a layer without a byte.
std::vector<std::optional<Buckets>> buckets_of(const reload::LoadPlan& plan,
                                               std::span<const std::vector<std::uint32_t>> layers) {
  std::vector<std::size_t> layer_of(plan.tensors().size(), 0);
  for (std::size_t l = 0; l < layers.size(); ++l)
    for (const std::uint32_t t : layers[l]) layer_of[t] = l;
  std::vector<std::optional<Buckets>> buckets(layers.size());
  for (const reload::CopyGroup& group : plan.groups()) {
    auto& of = buckets[layer_of[group.tensor]];
    if (!of) of = Buckets{.first = group.bucket, .last = group.bucket};
    of->last = group.bucket;
  }
  return buckets;
}

}  // namespace

std::uint64_t LayerPlaces::gpu_bytes() const noexcept {
  return std::accumulate(
      allocations.begin(), allocations.end(), std::uint64_t{0},
      [](std::uint64_t sum, std::uint64_t bytes) { return sum + device::whole_blocks(bytes); });
}

// The layers come one after the other. So at most one layer lies in the bucket before and in this
// one, and at most one in this bucket and in the next. These two are in two banks that take turns;
// all others begin and end in this bucket, and are in a third one, which is not larger than a
// bucket.
LayerPlaces place_layers(const reload::LoadPlan& plan,
                         std::span<const std::vector<std::uint32_t>> layers, std::uint64_t limit,
                         bool keeps_all) {
  LayerPlaces placed;
  placed.places.resize(plan.tensors().size());
  Bank inside(plan, limit);
  std::vector<Bank> turns(2, Bank(plan, limit));
  std::vector<std::size_t> bank_of(plan.tensors().size(), 0);
  const auto buckets = buckets_of(plan, layers);
  std::size_t turn = 0;
  std::optional<std::uint64_t> bucket;  // in which the last layer of `inside` lies
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (!buckets[l]) continue;
    if (keeps_all) {
      inside.place(layers[l], placed.places);
      continue;
    }
    if (buckets[l]->first == buckets[l]->last) {
      if (bucket != buckets[l]->first) inside.begin_again();
      bucket = buckets[l]->first;
      inside.place(layers[l], placed.places);
      continue;
    }
    if (!planted("whole_layers_in_one_place")) turn = 1 - turn;
    turns[turn].begin_again();
    turns[turn].place(layers[l], placed.places);
    for (const std::uint32_t t : layers[l]) bank_of[t] = 1 + turn;
  }
  std::vector<std::uint32_t> before;  // allocations of the banks before each bank
  for (const Bank* bank : {&inside, &turns[0], &turns[1]}) {
    before.push_back(static_cast<std::uint32_t>(placed.allocations.size()));
    placed.allocations.insert(placed.allocations.end(), bank->sizes().begin(), bank->sizes().end());
  }
  for (std::size_t t = 0; t < bank_of.size(); ++t)
    if (plan.tensors()[t].shard.bytes() != 0) placed.places[t].allocation += before[bank_of[t]];
  return placed;
}

Result<std::unique_ptr<LayerMemory>> LayerMemory::allocate(device::Device& device,
                                                           const LayerPlaces& places) {
  std::unique_ptr<LayerMemory> memory(new LayerMemory(places));
  const auto free = WSYNC_TRY(device.memory_info());
  const auto short_of = [&](const std::string& why) {
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("{}: the whole tensors that this rank takes need {} bytes of GPU "
                    "memory during a load, but {} of {} are free{}; leave more memory "
                    "free, or take pieces into memory of the engine's own",
                    device.name(), places.gpu_bytes(), free.free_bytes, free.total_bytes, why));
  };
  if (places.gpu_bytes() > free.free_bytes) return short_of({});
  for (const std::uint64_t bytes : places.allocations) {
    auto allocation = device.allocate(bytes);
    if (!allocation && allocation.error().code() == ErrorCode::kResourceExhausted)
      return short_of(fmt::format(" (an allocation of {} of these bytes failed: {})", bytes,
                                  allocation.error().message()));
    if (!allocation) return fail(std::move(allocation).error());
    memory->allocations_.push_back(std::move(*allocation));
  }
  return memory;
}

device::Region LayerMemory::region(std::uint32_t tensor, std::uint64_t bytes) const {
  const LayerPlaces::Place& place = places_.places[tensor];
  return {.memory = allocations_[place.allocation].get(), .offset = place.offset, .bytes = bytes};
}

}  // namespace wsync::engine
