// Reads and writes a model's parameters as a checkpoint directory in Hugging Face form: config.json
// and safetensors files.
//
// Thread: any. The functions block on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "trainer_side/training/parameters.h"

namespace wsync::training {

// Rounds to the nearest bfloat16, ties to even. A NaN stays a NaN.
[[nodiscard]] std::uint16_t to_bfloat16(float value) noexcept;
[[nodiscard]] float from_bfloat16(std::uint16_t bits) noexcept;

struct LoadedModel {
  moe::ModelSpec spec;
  ParameterSet parameters;
};
// Reads F32 and BF16 tensors. The directory must contain exactly the parameters of the model in
// config.json, in their shapes. Returns kNotFound if there is no directory, and kInvalidInput with
// the file, key or tensor that does not match.
[[nodiscard]] Result<LoadedModel> load_model(const std::string& directory);

enum class SavedAs : std::uint8_t { kFloat32, kBFloat16 };
// `write_more`: as in CheckpointWriteOptions. Errors as write_checkpoint_directory().
[[nodiscard]] Result<> save_model(
    const std::string& directory, const moe::ModelSpec& spec, const ParameterSet& parameters,
    SavedAs as, std::function<Result<>(const std::string& directory)> write_more = {});
// Writes bytes [offset, offset + out.size()) of `values` as bfloat16 into `out`.
void export_bfloat16(std::span<const float> values, std::uint64_t offset,
                     std::span<std::byte> out) noexcept;

}  // namespace wsync::training
