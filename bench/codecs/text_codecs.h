// Descriptions of a model: headers, indices and layouts. They are small and read once per update.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/rows.h"
#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::bench {

// The JSON header of a safetensors file that holds these tensors one after the other.
struct HeaderText {
  std::string json;
  std::uint64_t file_bytes = 0;
};
[[nodiscard]] Result<HeaderText> safetensors_header_text(std::span<const TensorInfo> tensors);

// Adds rows for the model's safetensors header, its checkpoint index, its layout, and the header of
// a frame, each with memcpy as its baseline. `model` is a name for find_model(). Errors as
// find_model(). kInternal if a text is read differently from what was written.
[[nodiscard]] Result<> add_text_codec_rows(std::string_view model, std::vector<Row>& rows);

}  // namespace wsync::bench
