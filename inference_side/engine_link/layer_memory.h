// LayerMemory: GPU memory of the library in which whole tensors are put together, for engines that
// take them whole or borrow them (TakeMode::kWhole, kBorrow). It is allocated before a load changes
// anything, in as few allocations as possible, and its tensors never move.
//
// Thread: place_layers() is pure. A LayerMemory is confined to the thread that serves the link.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inference_side/reload/load_plan.h"
#include "shared/base/error.h"
#include "shared/device/device.h"

namespace wsync::engine {

// Where each tensor of a rank lies.
struct LayerPlaces {
  struct Place {
    std::uint32_t allocation = 0;
    std::uint64_t offset = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::vector<Place> places;               // of each tensor; a tensor without a byte has none
  std::vector<std::uint64_t> allocations;  // bytes of each allocation
  // What the allocations take of a GPU.
  [[nodiscard]] std::uint64_t gpu_bytes() const noexcept;
  friend bool operator==(const LayerPlaces&, const LayerPlaces&) = default;
};

// `layers`: the rank's tensors of each layer, in the order of the plan's groups. `limit`: bytes of
// the largest allocation, to which no tensor may be larger. `keeps_all`: all tensors have memory of
// their own (kBorrow). Otherwise a layer has memory from the bucket in which it begins until the
// bucket in which it ends, and the layers behind it use that memory again. The buckets must then
// come in order.
[[nodiscard]] LayerPlaces place_layers(const reload::LoadPlan& plan,
                                       std::span<const std::vector<std::uint32_t>> layers,
                                       std::uint64_t limit, bool keeps_all);

class LayerMemory {
 public:
  // `device` is borrowed and outlives the result; `places` are copied. kResourceExhausted, with the
  // needed and the free bytes, if it does not fit into the GPU's free memory.
  [[nodiscard]] static Result<std::unique_ptr<LayerMemory>> allocate(device::Device& device,
                                                                     const LayerPlaces& places);
  // The part of the memory that belongs to a tensor of `bytes` bytes, which must not be 0.
  [[nodiscard]] device::Region region(std::uint32_t tensor, std::uint64_t bytes) const;
  // Whether memory that is placed so can be used in its stead.
  [[nodiscard]] bool fits(const LayerPlaces& places) const { return places_ == places; }

 private:
  explicit LayerMemory(LayerPlaces places) : places_(std::move(places)) {}
  LayerPlaces places_;
  std::vector<std::unique_ptr<device::Memory>> allocations_;
};

}  // namespace wsync::engine
