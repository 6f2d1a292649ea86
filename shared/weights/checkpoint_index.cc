#include "shared/weights/checkpoint_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"

namespace wsync {
namespace {

bool is_plain_file_name(std::string_view name) {
  return name.find('/') == std::string_view::npos && !name.starts_with('.') &&
         name.ends_with(".safetensors") && name.size() <= 255;
}

// SAX handler for the JSON of the index. It keeps weight_map and metadata.total_size and skips
// everything else.
class IndexHandler {
 public:
  [[nodiscard]] const std::string& violation() const { return violation_; }
  [[nodiscard]] bool has_map() const { return has_map_; }
  [[nodiscard]] CheckpointIndex take() && { return std::move(index_); }

  // The method names are those of the JSON library's SAX interface.
  bool start_object(std::size_t) {
    if (depth_ == 1 && key_ == "weight_map") {
      if (has_map_) return violate("weight_map is given twice");
      has_map_ = in_map_ = true;
    } else if (in_map_) {
      return not_a_string("an object");
    }
    in_metadata_ = depth_ == 1 && key_ == "metadata";
    return deeper();
  }
  bool end_object() {
    if (depth_ == 2) in_map_ = in_metadata_ = false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) {
    if (in_map_) return not_a_string("an array");
    if (depth_ == 0) return violate("it is an array; expected an object");
    return deeper();
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool key(std::string& text) {
    key_ = std::move(text);
    return true;
  }
  bool string(std::string& file) {
    if (in_metadata_ && depth_ == 2 && key_ == "delta_encoding")
      return violate(fmt::format(
          "it describes changes to other weights (delta_encoding {}); expected whole weights",
          quote_text(file)));
    if (!in_map_) return scalar();
    if (key_.size() > limits::kTensorNameBytes)
      return violate(fmt::format("tensor {}: a name of {} bytes; at most {} are allowed",
                                 quote_text(key_), key_.size(), limits::kTensorNameBytes));
    if (!is_plain_file_name(file))
      return violate(
          fmt::format("tensor {} is mapped to {}; expected the plain name of a "
                      ".safetensors file in the directory",
                      quote_text(key_), quote_text(file)));
    if (index_.weight_map.size() == limits::kTensorCount)
      return violate(fmt::format("more than {} tensors", limits::kTensorCount));
    if (!index_.weight_map.try_emplace(key_, std::move(file)).second)
      return violate(fmt::format("tensor {} is given twice", quote_text(key_)));
    return true;
  }
  bool number_unsigned(std::uint64_t value) {
    if (in_map_) return not_a_string("a number");
    if (in_metadata_ && depth_ == 2 && key_ == "total_size") index_.total_size = value;
    return scalar();
  }
  bool number_integer(std::int64_t) { return in_map_ ? not_a_string("a number") : scalar(); }
  bool number_float(double, const std::string&) {
    return in_map_ ? not_a_string("a number") : scalar();
  }
  bool null() { return in_map_ ? not_a_string("null") : scalar(); }
  bool boolean(bool) { return in_map_ ? not_a_string("true or false") : scalar(); }
  bool binary(nlohmann::json::binary_t&) { return violate("it contains binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    if (!violation_.empty()) return false;
    const std::string_view what = error.what();
    return violate(
        fmt::format("not JSON at byte {}: {}", position,
                    quote_text(what.substr(std::min(what.size(), what.find("] ") + 2)))));
  }

 private:
  bool violate(std::string what) {
    violation_ = std::move(what);
    return false;
  }
  bool not_a_string(std::string_view found) {
    return violate(
        fmt::format("tensor {} is mapped to {}; expected a file name", quote_text(key_), found));
  }
  bool scalar() {
    if (depth_ == 0) return violate("it is a single value; expected an object");
    if (depth_ == 1 && key_ == "weight_map") return violate("weight_map is not an object");
    return true;
  }
  bool deeper() {
    if (++depth_ > limits::kJsonDepth)
      return violate(fmt::format("it nests deeper than {} levels", limits::kJsonDepth));
    return true;
  }

  std::uint64_t depth_ = 0;
  bool in_map_ = false;
  bool in_metadata_ = false;
  bool has_map_ = false;
  std::string key_;
  std::string violation_;
  CheckpointIndex index_;
};

}  // namespace

Result<CheckpointIndex> parse_checkpoint_index(std::span<const std::byte> json) {
  WSYNC_TRY(check_json_text(json));
  IndexHandler handler;
  const auto* first = reinterpret_cast<const char*>(json.data());
  if (!nlohmann::json::sax_parse(first, first + json.size(), &handler))
    return fail(ErrorCode::kInvalidInput, handler.violation());
  if (!handler.has_map())
    return fail(ErrorCode::kInvalidInput,
                "it has no weight_map; expected a map from tensor names to files");
  return std::move(handler).take();
}

Result<std::string> make_checkpoint_index(const CheckpointIndex& index) {
  std::string json = "{\n  \"metadata\": {";
  if (index.total_size) json += fmt::format("\n    \"total_size\": {}\n  ", *index.total_size);
  json += "},\n  \"weight_map\": {";
  std::string_view separator = "\n    ";
  for (const auto& [name, file] : index.weight_map) {
    const auto key = WSYNC_TRY(json_string(name));
    const auto value = WSYNC_TRY(json_string(file));
    json += fmt::format("{}{}: {}", separator, key, value);
    separator = ",\n    ";
  }
  return json + (index.weight_map.empty() ? "}\n}\n" : "\n  }\n}\n");
}

}  // namespace wsync
