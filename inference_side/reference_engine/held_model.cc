#include "inference_side/reference_engine/held_model.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <sys/mman.h>

#include "inference_side/reload/shard.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/memory_limit.h"
#include "shared/base/stream_copy.h"

namespace wsync::engine::reference {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kSmallAlignBytes = 64;
constexpr std::uint64_t kChanging = ~std::uint64_t{0};

constexpr std::array<std::string_view, 9> kRowParallel{"q_proj",       "k_proj",       "v_proj",
                                                       "qkv_proj",     "gate_proj",    "up_proj",
                                                       "gate_up_proj", "embed_tokens", "lm_head"};
constexpr std::array<std::string_view, 2> kColumnParallel{"o_proj", "down_proj"};
// The experts of a layer in one tensor, [experts, rows, columns]: a rank holds some of them whole.
constexpr std::array<std::string_view, 1> kExperts{"experts"};

bool has_part(std::string_view name, std::span<const std::string_view> parts) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (std::ranges::find(parts, name.substr(begin, end - begin)) != parts.end()) return true;
    begin = end + 1;
  }
  return false;
}

std::vector<control::DimRange> ranges_of(const TensorInfo& info, std::uint32_t rank,
                                         std::uint32_t world_size) {
  const bool rows = has_part(info.name, kRowParallel);
  const bool columns = !rows && has_part(info.name, kColumnParallel);
  const bool stacked = info.shape.size() == 3 && has_part(info.name, kExperts);
  const std::uint32_t dim = rows || stacked ? 0 : 1;
  if (world_size == 1 || (!rows && !columns) || info.shape.size() <= dim) return {};
  const std::uint64_t share = info.shape[dim] / world_size;
  if (share == 0 || info.shape[dim] % world_size != 0) return {};
  const control::DimRange range{.dim = dim, .begin = rank * share, .length = share};
  const bool whole_bytes =
      reload::Shard::make(dtype_bits(info.dtype), info.shape, std::array{range}).has_value();
  return whole_bytes ? std::vector{range} : std::vector<control::DimRange>{};
}

std::uint64_t align_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 31U)) * 0x9e3779b97f4a7c15U;
  return value ^ (value >> 29U);
}

// The bytes of a tensor that a step reads.
GpuHold::Sample sample_of(std::uint32_t tensor, std::uint64_t bytes, std::uint64_t step) {
  const std::uint64_t n = std::min(GpuHold::kSampleBytes, bytes);
  return {.tensor = tensor, .offset = mix(step * 31 + tensor) % (bytes - n + 1), .bytes = n};
}

std::uint64_t mix_in(std::uint64_t value, std::span<const std::byte> sample) {
  for (std::size_t i = 0; i < sample.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, sample.data() + i, std::min(sizeof word, sample.size() - i));
    value = mix(value + word);
  }
  return value;
}

Result<reload::Shard> shard_of(const control::EngineTensor& tensor) {
  return reload::Shard::make(dtype_bits(tensor.dtype), tensor.shape, tensor.ranges);
}

}  // namespace

std::vector<control::EngineTensor> rank_tensors(const Manifest& manifest, std::uint32_t rank,
                                                std::uint32_t world_size) {
  std::vector<control::EngineTensor> tensors;
  tensors.reserve(manifest.size());
  for (const TensorInfo& info : manifest.tensors())
    tensors.push_back({.name = info.name,
                       .dtype = info.dtype,
                       .shape = info.shape,
                       .ranges = ranges_of(info, rank, world_size)});
  return tensors;
}

Result<std::unique_ptr<HeldModel>> HeldModel::create(const Manifest& manifest, std::uint32_t rank,
                                                     std::uint32_t world_size, bool mapped,
                                                     device::Device* gpu) {
  std::unique_ptr<HeldModel> model(new HeldModel());
  model->mapped_ = mapped;
  model->descriptions_ = rank_tensors(manifest, rank, world_size);
  model->layers_ = std::vector<Layer>(manifest.layer_count());
  std::vector<std::uint64_t> offsets;
  std::uint64_t end = 0;
  for (std::uint32_t t = 0; t < manifest.size(); ++t) {
    auto shard = shard_of(model->descriptions_[t]);
    if (!shard) return fail(shard.error().with_context(model->descriptions_[t].name));
    const std::uint64_t bytes = shard->bytes();
    end = align_up(end, bytes < kPageBytes ? kSmallAlignBytes : kPageBytes);
    offsets.push_back(end);
    end += bytes;
    model->part_bytes_.push_back(bytes);
    model->bytes_ += bytes;
    model->layer_of_.push_back(manifest.layer(t));
    model->layers_[manifest.layer(t)].tensors.push_back(t);
  }
  model->own_.resize(manifest.size());
  model->held_.resize(manifest.size());
  model->next_.resize(manifest.size());
  if (mapped) return model;
  if (gpu != nullptr) {
    std::size_t max = 0;
    for (const Layer& layer : model->layers_) max = std::max(max, layer.tensors.size());
    model->gpu_ = WSYNC_TRY(GpuHold::create(*gpu, model->descriptions_, model->part_bytes_, max));
    for (std::size_t t = 0; t < offsets.size(); ++t) model->own_[t] = model->gpu_->range(t);
    return model;
  }
  model->memory_ = WSYNC_TRY(PrivateMemory::allocate(end, "the weights of a rank"));
  for (std::size_t t = 0; t < offsets.size(); ++t) {
    model->own_[t] = model->memory_.bytes().subspan(offsets[t], model->part_bytes_[t]);
    model->held_[t] = model->own_[t];
  }
  return model;
}

Result<> HeldModel::read_checkpoint(const CheckpointDirectory& checkpoint) {
  WSYNC_CHECK(!mapped_, "an adopting engine has no memory of its own");
  WSYNC_CHECK(checkpoint.manifest().size() == descriptions_.size(), "the layout is the same");
  std::vector<std::byte> chunk(GpuHold::kChunkBytes);
  for (std::uint32_t t = 0; t < descriptions_.size(); ++t) {
    const auto shard = WSYNC_TRY(shard_of(descriptions_[t]));
    for (std::uint64_t begin = 0; begin < shard.tensor_bytes(); begin += chunk.size()) {
      const std::uint64_t end = std::min(begin + chunk.size(), shard.tensor_bytes());
      const reload::Shard::Interval part = shard.clip({.begin = begin, .end = end});
      if (part.bytes() == 0) continue;
      WSYNC_TRY(checkpoint.read(t, begin, std::span(chunk).first(end - begin)));
      const auto dense =
          gpu_ ? gpu_->chunk().first(part.bytes()) : own_[t].subspan(part.begin, part.bytes());
      for (std::uint64_t at = part.begin; at < part.end;) {
        const reload::Shard::Run run = shard.run_at(at);
        const std::uint64_t n = std::min(run.bytes, part.end - at);
        std::memcpy(dense.data() + (at - part.begin), chunk.data() + (run.offset - begin), n);
        at += n;
      }
      if (gpu_) WSYNC_TRY(gpu_->write(t, part.begin, dense));
    }
  }
  for (Layer& layer : layers_) layer.word.store(word_of({}), std::memory_order_release);
  return {};
}

void HeldModel::begin_load() {
  if (mapped_) return;
  for (Layer& layer : layers_)
    if (!layer.tensors.empty()) set_changing(layer);
}

// An exchange is needed, not a plain store, because bytes that are written after it, including
// those of streaming stores, could become visible before it. A step that does not see kChanging
// must not see those bytes either: the end_layer() of that step happens before this exchange.
void HeldModel::set_changing(Layer& layer) {
  layer.word.exchange(kChanging, std::memory_order_acq_rel);
}

Result<> HeldModel::take_layer(const Version& version, std::span<const LayerTensor> tensors) {
  if (tensors.empty()) return {};
  Layer& layer = layers_[layer_of_[tensors.front().tensor]];
  WSYNC_CHECK(std::ranges::all_of(layer.tensors,
                                  [&](std::uint32_t t) {
                                    return part_bytes_[t] == 0 ||
                                           std::ranges::count(tensors, t, &LayerTensor::tensor) ==
                                               1;
                                  }),
              "a layer comes whole");
  if (mapped_ && std::exchange(next_version_, version) != version) next_.assign(next_.size(), {});
  std::vector<GpuHold::Source> on_gpu;
  for (const LayerTensor& tensor : tensors) {
    if (mapped_)
      next_[tensor.tensor] = tensor.bytes;
    else if (tensor.bytes.data() == own_[tensor.tensor].data())
      continue;
    else if (gpu_)
      on_gpu.push_back({.tensor = tensor.tensor, .bytes = tensor.bytes});
    else
      copy_streaming(own_[tensor.tensor], tensor.bytes);
  }
  if (gpu_) WSYNC_TRY(gpu_->take(on_gpu));
  if (!mapped_) layer.word.store(word_of(version), std::memory_order_release);
  return {};
}

void HeldModel::commit(const Version& version) {
  const std::uint64_t word = word_of(version);
  for (Layer& layer : layers_) {
    const std::uint64_t before = layer.word.load(std::memory_order_relaxed);
    if (!mapped_) {
      if (before != kChanging) layer.word.store(word, std::memory_order_release);
      continue;
    }
    const bool has_come = std::ranges::all_of(
        layer.tensors, [&](std::uint32_t t) { return part_bytes_[t] == 0 || !next_[t].empty(); });
    if (!has_come || next_version_ != version) continue;
    set_changing(layer);
    for (const std::uint32_t t : layer.tensors) held_[t] = std::exchange(next_[t], {});
    layer.word.store(word, std::memory_order_release);
  }
}

Result<> HeldModel::copy_out(std::size_t tensor, std::uint64_t offset,
                             std::span<std::byte> out) const {
  if (gpu_) return gpu_->read(tensor, offset, out);
  std::ranges::copy(own_[tensor].subspan(offset, out.size()), out.begin());
  return {};
}

std::uint64_t HeldModel::word_of(const Version& version) const {
  const std::lock_guard lock(mutex_);
  // Search from the newest version: every step asks, and a long run has many versions but nearly
  // always asks for the newest.
  const auto found = std::find(names_.rbegin(), names_.rend(), version);
  if (found != names_.rend()) return static_cast<std::uint64_t>(names_.rend() - found - 1);
  names_.push_back(version);
  return names_.size() - 1;
}

std::string HeldModel::name_of(std::uint64_t word) const {
  if (word == kChanging) return "none (its bytes were changing)";
  const std::lock_guard lock(mutex_);
  return names_[word].to_string();
}

Result<std::uint64_t> HeldModel::sample_gpu(const Layer& layer, std::uint64_t step,
                                            std::uint64_t value) const {
  std::vector<GpuHold::Sample> samples;
  samples.reserve(layer.tensors.size());
  for (const std::uint32_t t : layer.tensors)
    if (part_bytes_[t] != 0) samples.push_back(sample_of(t, part_bytes_[t], step));
  const auto bytes = gpu_->sample(samples);
  if (!bytes) return fail(bytes.error().with_context("a step reads the weights"));
  for (std::size_t i = 0; i < samples.size(); ++i)
    value = mix_in(value, bytes->subspan(i * GpuHold::kSampleBytes, samples[i].bytes));
  return value;
}

Result<Reading> HeldModel::read(const Version& version, std::uint64_t step,
                                std::string& saw) const {
  Reading reading{.value = mix(step)};
  StepReader reader(*this, version);
  for (std::uint32_t l = 0; l < layer_count(); ++l) {
    reader.begin_layer(l);
    if (gpu_) {
      const auto value = WSYNC_TRY(sample_gpu(layers_[l], step, reading.value));
      reading.value = value;
    } else {
      for (const std::uint32_t t : layers_[l].tensors) {
        const std::span<const std::byte> bytes = held_[t];
        if (bytes.empty()) continue;
        const GpuHold::Sample sample = sample_of(t, bytes.size(), step);
        reading.value = mix_in(reading.value, bytes.subspan(sample.offset, sample.bytes));
      }
    }
    reader.end_layer(l);
  }
  reader.finish();
  reading.layers = reader.layers();
  reading.torn = reader.torn();
  if (reading.torn) saw = reader.saw();
  return reading;
}

StepReader::StepReader(const HeldModel& model, const Version& version)
    : model_(model),
      version_(version),
      expected_(model.word_of(version)),
      compared_(model.layer_count()) {}

std::span<const std::byte> StepReader::tensor(std::uint32_t t) const {
  WSYNC_CHECK(!model_.gpu_, "the host cannot read the memory of a GPU");
  WSYNC_CHECK(model_.layer_of_[t] == open_, "a layer's version is compared around each read of it");
  return model_.held_[t];
}

void StepReader::begin_layer(std::uint32_t layer) {
  WSYNC_CHECK(!open_, "a layer is read after the one before");
  open_ = layer;
  before_ = model_.layers_[layer].word.load(std::memory_order_acquire);
}

void StepReader::end_layer(std::uint32_t layer) {
  // A plain load is not enough, because it could be executed before the reads that precede it.
  const std::uint64_t after = model_.layers_[layer].word.fetch_add(0, std::memory_order_acq_rel);
  WSYNC_CHECK(open_ == layer, "the layer that ends is the one that has begun");
  open_.reset();
  if (!compared_[layer]) ++layers_;
  compared_[layer] = true;
  if ((before_ == expected_ && after == expected_) || torn()) return;
  saw_ = fmt::format(
      "layer {} of {} had version {} before and version {} after it was read, but the step has "
      "version {}",
      layer, model_.layer_count(), model_.name_of(before_), model_.name_of(after),
      version_.to_string());
}

void StepReader::finish() {
  if (layers_ == model_.layer_count() || torn()) return;
  const auto missed = std::ranges::find(compared_, false) - compared_.begin();
  saw_ = fmt::format("layer {} of {} was not compared; the step has version {}", missed,
                     model_.layer_count(), version_.to_string());
}

}  // namespace wsync::engine::reference
