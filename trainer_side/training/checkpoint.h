// A model's parameters from and to a checkpoint directory in Hugging Face form: config.json beside
// safetensors files.
//
// Thread: any; they block on the disk.
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

// The nearest bfloat16, of two that are equally near the one whose last bit is 0; a NaN stays one.
[[nodiscard]] std::uint16_t to_bfloat16(float value) noexcept;
[[nodiscard]] float from_bfloat16(std::uint16_t bits) noexcept;

struct LoadedModel {
  moe::ModelSpec spec;
  ParameterSet parameters;
};
// F32 and BF16 tensors. kNotFound without a directory; kInvalidInput names the file, key or tensor
// that does not fit: every parameter of config.json's model must be there in its shape, and nothing
// else.
[[nodiscard]] Result<LoadedModel> load_model(const std::string& directory);

enum class SavedAs : std::uint8_t { kFloat32, kBFloat16 };
// `write_more`: as CheckpointWriteOptions'. Errors as write_checkpoint_directory's.
[[nodiscard]] Result<> save_model(
    const std::string& directory, const moe::ModelSpec& spec, const ParameterSet& parameters,
    SavedAs as, std::function<Result<>(const std::string& directory)> write_more = {});
// Bytes [offset, offset + out.size()) of values as bfloat16.
void export_bfloat16(std::span<const float> values, std::uint64_t offset,
                     std::span<std::byte> out) noexcept;

}  // namespace wsync::training
