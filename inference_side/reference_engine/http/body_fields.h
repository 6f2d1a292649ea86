// BodyFields: the fields of a completion's body as they stand in its JSON, read without a tree of
// values: tokens go straight into their lists, and what nobody asks for is not kept.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "inference_side/reference_engine/generation/request.h"

namespace wsync::engine::http {

// A list or an object where none is expected.
struct Nested {
  bool object = false;
  bool empty = true;
};
struct Null {};
using FieldValue =
    std::variant<Null, bool, std::int64_t, std::uint64_t, double, std::string, Nested>;
// "null", "true", "7", "\"some text\"", "an empty list", ...
[[nodiscard]] std::string describe(const FieldValue& value);

struct BodyFields {
  // Fields that are known, but for prompt, stop, stop_token_ids and stream_options where they are
  // as expected.
  std::map<std::string, FieldValue, std::less<>> scalars;
  bool has_prompt = false;
  bool text_prompts = false;  // otherwise tokens
  std::vector<std::string> texts;
  std::vector<std::vector<generation::Token>> tokens;
  std::vector<std::string> stops;
  std::vector<generation::Token> stop_tokens;
  FieldValue include_usage;  // of stream_options
  bool has_stream_options = false;
};

// kInvalidInput: no JSON object, a known field twice, a prompt, stop or stop_token_ids that is none
// of what they may be, too many of one, or nesting deeper than limits::kJsonDepth.
[[nodiscard]] Result<BodyFields> read_fields(std::string_view body);

// kInvalidInput: a field that this engine knows and does not support asks for something.
[[nodiscard]] Result<> check_unsupported(const BodyFields& fields);

}  // namespace wsync::engine::http
