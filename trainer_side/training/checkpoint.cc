#include "trainer_side/training/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"

namespace wsync::training {
namespace {

TensorInfo info_of(const moe::Parameter& parameter, SavedAs as) {
  return {.name = parameter.name,
          .dtype = as == SavedAs::kFloat32 ? DType::kF32 : DType::kBF16,
          .shape = parameter.shape};
}

Result<> read_values(const CheckpointDirectory& directory, std::size_t tensor,
                     std::span<float> values) {
  const DType dtype = directory.manifest().tensor(tensor).dtype;
  if (dtype == DType::kF32) return directory.read(tensor, 0, std::as_writable_bytes(values));
  std::vector<std::uint16_t> bits(values.size());
  WSYNC_TRY(directory.read(tensor, 0, std::as_writable_bytes(std::span(bits))));
  std::transform(bits.begin(), bits.end(), values.begin(), from_bfloat16);
  return {};
}

// Checks that the directory contains exactly these parameters, in their shapes.
Result<> check_tensors(const CheckpointDirectory& directory,
                       const std::vector<moe::Parameter>& parameters, const std::string& path) {
  std::map<std::string_view, const moe::Parameter*> missing;
  for (const moe::Parameter& parameter : parameters) missing[parameter.name] = &parameter;
  for (std::size_t i = 0; i < directory.manifest().size(); ++i) {
    const TensorInfo& tensor = directory.manifest().tensor(i);
    const auto refuse = [&](const std::string& why) {
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: {}: {}", directory.file_of(i), tensor.name, why));
    };
    const auto found = missing.find(tensor.name);
    if (found == missing.end()) return refuse("config.json's model has no such parameter");
    if (const auto& expected = found->second->shape; expected != tensor.shape)
      return refuse(fmt::format("shape [{}], expected [{}] according to config.json",
                                fmt::join(tensor.shape, ", "), fmt::join(expected, ", ")));
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16)
      return refuse(fmt::format("dtype {}; expected F32 or BF16", dtype_name(tensor.dtype)));
    missing.erase(found);
  }
  for (const moe::Parameter& parameter : parameters)
    if (missing.contains(parameter.name))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: {} is missing; it is a parameter of config.json's model", path,
                              parameter.name));
  return {};
}

}  // namespace

std::uint16_t to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  const std::uint32_t last = (bits >> 16U) & 1U;
  return static_cast<std::uint16_t>((bits + 0x7fffU + last) >> 16U);
}

float from_bfloat16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

void export_bfloat16(std::span<const float> values, std::uint64_t offset,
                     std::span<std::byte> out) noexcept {
  std::size_t byte = 0;
  const auto put = [&](std::uint64_t at) {
    const std::uint16_t bits = to_bfloat16(values[at / 2]);
    out[byte++] = static_cast<std::byte>(at % 2 == 0 ? bits & 0xffU : bits >> 8U);
  };
  if (!out.empty() && offset % 2 != 0) put(offset);
  for (; byte + 1 < out.size(); byte += 2) {
    const std::uint16_t bits = to_bfloat16(values[(offset + byte) / 2]);
    std::memcpy(&out[byte], &bits, sizeof bits);
  }
  if (byte < out.size()) put(offset + byte);
}

Result<LoadedModel> load_model(const std::string& path) {
  const auto directory = WSYNC_TRY(CheckpointDirectory::open(path));
  const auto spec = WSYNC_TRY(moe::load_spec(path));
  const std::vector<moe::Parameter> all = moe::all_parameters(spec);
  // Check before memory is allocated: the sizes in config.json are not trusted.
  WSYNC_TRY(check_tensors(directory, all, path));
  LoadedModel model{.spec = spec, .parameters = ParameterSet(all)};
  for (std::size_t i = 0; i < directory.manifest().size(); ++i)
    WSYNC_TRY(
        read_values(directory, i, model.parameters.values(directory.manifest().tensor(i).name)));
  return model;
}

Result<> save_model(const std::string& path, const moe::ModelSpec& spec,
                    const ParameterSet& parameters, SavedAs as,
                    std::function<Result<>(const std::string& directory)> write_more) {
  std::vector<TensorInfo> tensors;
  for (const moe::Parameter& parameter : parameters.parameters())
    tensors.push_back(info_of(parameter, as));
  const auto manifest = WSYNC_TRY(Manifest::create(std::move(tensors)));
  const auto source = [&](std::size_t i, std::uint64_t offset,
                          std::span<std::byte> out) -> Result<> {
    const std::span<const float> values = parameters.values(manifest.tensor(i).name);
    if (as == SavedAs::kFloat32) {
      std::memcpy(out.data(), std::as_bytes(values).data() + offset, out.size());
      return {};
    }
    export_bfloat16(values, offset, out);
    return {};
  };
  return write_checkpoint_directory(path, manifest, source,
                                    {.other_files = {{"config.json", moe::write_config(spec)}},
                                     .write_more = std::move(write_more)});
}

}  // namespace wsync::training
