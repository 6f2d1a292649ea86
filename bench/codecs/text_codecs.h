// What describes a model on its way: headers, indices, layouts; small, and read once an update.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/rows.h"
#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync::bench {

// The JSON of a safetensors file that holds all of these tensors one after the other.
struct HeaderText {
  std::string json;
  std::uint64_t file_bytes = 0;
};
[[nodiscard]] Result<HeaderText> safetensors_header_text(std::span<const TensorInfo> tensors);

// Rows of the model's safetensors header, its checkpoint index and its layout, and of the header of
// a frame; each beside memcpy of the same bytes. `model` is a name of find_model(). Errors of that;
// kInternal when what was read is not what was written.
[[nodiscard]] Result<> add_text_codec_rows(std::string_view model, std::vector<Row>& rows);

}  // namespace wsync::bench
