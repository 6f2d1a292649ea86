// The header of a safetensors file: a SAX handler that builds no tree, then the rules about
// offsets.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"
#include "shared/weights/safetensors.h"

namespace wsync {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

// SAX handler for the JSON of the header. Every callback returns false after the first violation,
// which ends the parse. The parser itself does not recurse, so deep nesting cannot overflow the
// stack.
// It has more than 25 methods: the parser calls one method for each kind of JSON value, and each
// state of the header has its own.
class HeaderHandler {
 public:
  explicit HeaderHandler(SafetensorsRules rules) : strict_(rules == SafetensorsRules::kStrict) {}

  [[nodiscard]] const std::string& violation() const { return violation_; }
  [[nodiscard]] SafetensorsHeader take() && {
    header_.tensors.reserve(entries_.size());
    for (Entry& entry : entries_) header_.tensors.push_back(std::move(entry.parsed));
    return std::move(header_);
  }

  // The method names are those of the JSON library's SAX interface.
  bool start_object(std::size_t) {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        return key_ == kMetadataKey ? begin_metadata() : begin_entry();
      case Place::kIgnored:
        return deeper();
      case Place::kEntry:
        return field_ == Field::kUnknown ? ignore() : wrong_type("an object");
      case Place::kMetadata:
      case Place::kShape:
      case Place::kOffsets:
        break;
    }
    return wrong_type("an object");
  }
  bool end_object() {
    switch (place_) {
      case Place::kTop:
        place_ = Place::kOutside;
        return true;
      case Place::kMetadata:
        place_ = Place::kTop;
        return true;
      case Place::kEntry:
        return end_entry();
      case Place::kOutside:
      case Place::kShape:
      case Place::kOffsets:
      case Place::kIgnored:
        break;
    }
    return shallower();
  }
  bool start_array(std::size_t) {
    if (place_ == Place::kIgnored) return deeper();
    if (place_ != Place::kEntry) return wrong_type("an array");
    switch (field_) {
      case Field::kShape:
        place_ = Place::kShape;
        return true;
      case Field::kOffsets:
        place_ = Place::kOffsets;
        return true;
      case Field::kUnknown:
        return ignore();
      case Field::kDType:
        break;
    }
    return wrong_type("an array");
  }
  bool end_array() {
    if (place_ == Place::kIgnored) return shallower();
    if (place_ == Place::kOffsets && offset_count_ != 2)
      return violate("data_offsets has {} numbers; expected 2", offset_count_);
    place_ = Place::kEntry;
    return true;
  }
  bool key(std::string& text) {
    switch (place_) {
      case Place::kTop:
        key_ = std::move(text);
        if (key_.size() > limits::kTensorNameBytes)
          return violate("a name of {} bytes; at most {} are allowed", key_.size(),
                         limits::kTensorNameBytes);
        return true;
      case Place::kMetadata:
        metadata_key_ = std::move(text);
        if (strict_ && header_.metadata.contains(metadata_key_))
          return violate("key {} is given twice", quote_text(metadata_key_));
        return true;
      case Place::kEntry:
        return begin_field(text);
      case Place::kOutside:
      case Place::kShape:
      case Place::kOffsets:
      case Place::kIgnored:
        break;
    }
    return true;
  }
  bool string(std::string& text) {
    if (place_ == Place::kMetadata) {
      header_.metadata[metadata_key_] = std::move(text);
      return true;
    }
    if (place_ == Place::kEntry && field_ == Field::kDType) {
      const auto dtype = parse_dtype(text);
      if (!dtype) return violate("dtype {} is unknown", quote_text(text));
      entry().parsed.info.dtype = *dtype;
      return true;
    }
    return other_value("a string");
  }
  bool number_unsigned(std::uint64_t value) {
    if (place_ == Place::kShape) {
      auto& shape = entry().parsed.info.shape;
      if (shape.size() == limits::kTensorRank)
        return violate("more than {} dimensions", limits::kTensorRank);
      shape.push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offset_count_ == 0) entry().parsed.begin = value;
      if (offset_count_ == 1) entry().parsed.end = value;
      if (++offset_count_ > 2) return violate("data_offsets has more than 2 numbers");
      return true;
    }
    return other_value("a number");
  }
  bool number_integer(std::int64_t) { return other_value("a negative number"); }
  bool number_float(double, const std::string& text) {
    return other_value(fmt::format("the number {}", text.substr(0, 40)));
  }
  bool null() { return other_value("null"); }
  bool boolean(bool) { return other_value("true or false"); }
  bool binary(nlohmann::json::binary_t&) { return other_value("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    if (!violation_.empty()) return false;
    // The library's sentence, without its number in brackets. It may quote the text.
    const std::string_view what = error.what();
    const std::string_view sentence = what.substr(std::min(what.size(), what.find("] ") + 2));
    violation_ =
        fmt::format("the header is not JSON at byte {}: {}", position, quote_text(sentence));
    return false;
  }

 private:
  enum class Place : std::uint8_t { kOutside, kTop, kMetadata, kEntry, kShape, kOffsets, kIgnored };
  enum class Field : std::uint8_t { kDType, kShape, kOffsets, kUnknown };
  struct Entry {
    SafetensorsEntry parsed;
    std::uint8_t seen = 0;  // one bit per Field
  };

  template <class... Args>
  bool violate(fmt::format_string<Args...> format, Args&&... args) {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    if (place_ == Place::kOutside || key_.empty())
      violation_ = what;
    else if (key_ == kMetadataKey)
      violation_ = "__metadata__: " + what;
    else
      violation_ = fmt::format("tensor {}: {}", quote_text(key_), what);
    return false;
  }
  bool wrong_type(std::string_view found) {
    switch (place_) {
      case Place::kOutside:
        return violate("the header is {}; expected an object of tensors", found);
      case Place::kTop:
        return violate("its entry is {}; expected an object", found);
      case Place::kMetadata:
        return violate("key {} is {}; expected a string", quote_text(metadata_key_), found);
      case Place::kShape:
        return violate("shape holds {}; expected unsigned integers", found);
      case Place::kOffsets:
        return violate("data_offsets holds {}; expected unsigned integers", found);
      case Place::kEntry:
      case Place::kIgnored:
        break;
    }
    switch (field_) {
      case Field::kDType:
        return violate("dtype is {}; expected a string", found);
      case Field::kShape:
        return violate("shape is {}; expected an array of unsigned integers", found);
      case Field::kOffsets:
        return violate("data_offsets is {}; expected an array of 2 unsigned integers", found);
      case Field::kUnknown:
        break;
    }
    return violate("its entry holds {}", found);
  }
  bool other_value(std::string_view found) {
    if (place_ == Place::kIgnored) return true;
    if (place_ == Place::kEntry && field_ == Field::kUnknown) return true;
    return wrong_type(found);
  }

  bool begin_metadata() {
    if (has_metadata_ && strict_) return violate("it is given twice");
    has_metadata_ = true;
    header_.metadata.clear();
    place_ = Place::kMetadata;
    return true;
  }
  bool begin_entry() {
    place_ = Place::kEntry;
    const auto [at, added] = index_.try_emplace(key_, entries_.size());
    current_ = at->second;
    if (!added) {
      if (strict_) return violate("the name is given twice");
      entries_[current_] = Entry{};
    } else {
      if (entries_.size() == limits::kTensorCount)
        return violate("more than {} tensors", limits::kTensorCount);
      entries_.emplace_back();
    }
    entry().parsed.info.name = key_;
    return true;
  }
  bool begin_field(const std::string& name) {
    field_ = name == "dtype"          ? Field::kDType
             : name == "shape"        ? Field::kShape
             : name == "data_offsets" ? Field::kOffsets
                                      : Field::kUnknown;
    if (field_ == Field::kUnknown)
      return strict_ ? violate("its entry has an unknown key {}", quote_text(name)) : true;
    const auto bit = static_cast<std::uint8_t>(1U << static_cast<unsigned>(field_));
    // The reference reader rejects this in every mode.
    if ((entry().seen & bit) != 0)
      return violate("its entry has the key {} twice", quote_text(name));
    entry().seen |= bit;
    if (field_ == Field::kOffsets) offset_count_ = 0;
    return true;
  }
  bool end_entry() {
    constexpr std::array<std::string_view, 3> kNames{"dtype", "shape", "data_offsets"};
    const unsigned seen = entry().seen;
    for (std::size_t i = 0; i < kNames.size(); ++i)
      if (((seen >> i) & 1U) == 0) return violate("its entry has no {}", kNames[i]);
    place_ = Place::kTop;
    return true;
  }
  bool ignore() {
    place_ = Place::kIgnored;
    ignored_depth_ = 1;
    return true;
  }
  bool deeper() {
    if (++ignored_depth_ > limits::kJsonDepth)
      return violate("its entry nests deeper than {} levels", limits::kJsonDepth);
    return true;
  }
  bool shallower() {
    if (--ignored_depth_ == 0) place_ = Place::kEntry;
    return true;
  }
  Entry& entry() { return entries_[current_]; }

  bool strict_;
  Place place_ = Place::kOutside;
  Field field_ = Field::kUnknown;
  std::string key_;
  std::string metadata_key_;
  std::string violation_;
  bool has_metadata_ = false;
  std::size_t offset_count_ = 0;
  std::size_t ignored_depth_ = 0;
  std::size_t current_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
  SafetensorsHeader header_;
};

tl::unexpected<Error> bad(std::string message,
                          std::source_location where = std::source_location::current()) {
  return fail(ErrorCode::kInvalidInput, std::move(message), where);
}

// Checks the offsets: they start at 0, each tensor begins where the previous one ended, the sizes
// match the shapes, and nothing follows the last tensor.
Result<> check_offsets(std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
            });
  std::uint64_t at = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const std::string name = quote_text(tensor.info.name);
    const auto offsets = fmt::format("data_offsets [{}, {}]", tensor.begin, tensor.end);
    if (tensor.end < tensor.begin)
      return bad(fmt::format("tensor {}: {} end before they begin", name, offsets));
    if (tensor.begin > at)
      return bad(fmt::format("tensor {}: {} leave a hole after byte {}", name, offsets, at));
    if (tensor.begin < at)
      return bad(fmt::format("tensor {}: {} overlap the tensor before, which ends at {}", name,
                             offsets, at));
    const auto bytes = tensor_byte_size(tensor.info.dtype, tensor.info.shape);
    if (!bytes) return fail(bytes.error().with_context("tensor " + name));
    if (tensor.end - tensor.begin != *bytes)
      return bad(fmt::format("tensor {}: {} hold {} bytes; {} [{}] needs {}", name, offsets,
                             tensor.end - tensor.begin, dtype_name(tensor.info.dtype),
                             fmt::join(tensor.info.shape, ", "), *bytes));
    if (tensor.end > data_bytes)
      return bad(fmt::format("tensor {}: {} end past the file's {} bytes of data; it is truncated",
                             name, offsets, data_bytes));
    at = tensor.end;
  }
  if (at != data_bytes)
    return bad(fmt::format(
        "{} trailing bytes after {}, which ends at {}", data_bytes - at,
        tensors.empty() ? "the header" : "the last tensor " + quote_text(tensors.back().info.name),
        at));
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> json,
                                                   std::uint64_t file_bytes,
                                                   SafetensorsRules rules) {
  if (json.size() > limits::kSafetensorsHeaderBytes)
    return bad(fmt::format("the header is {} bytes; at most {} are allowed", json.size(),
                           limits::kSafetensorsHeaderBytes));
  if (file_bytes < 8 || json.size() > file_bytes - 8)
    return bad(
        fmt::format("the header is {} bytes; the file has only {}", json.size(), file_bytes));
  if (rules == SafetensorsRules::kStrict && (json.empty() || json.front() != std::byte{'{'}))
    return bad("the header does not begin with '{'");
  if (const auto text = check_json_text(json); !text)
    return fail(text.error().with_context("the header"));

  HeaderHandler handler(rules);
  const auto* first = reinterpret_cast<const char*>(json.data());
  const bool parsed = nlohmann::json::sax_parse(first, first + json.size(), &handler);
  if (!parsed) return bad(handler.violation());
  SafetensorsHeader header = std::move(handler).take();
  header.data_begin = 8 + json.size();
  WSYNC_TRY(check_offsets(header.tensors, file_bytes - header.data_begin));
  return header;
}

}  // namespace wsync
