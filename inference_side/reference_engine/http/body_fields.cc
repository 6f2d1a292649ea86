#include "inference_side/reference_engine/http/body_fields.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "inference_side/reference_engine/http/openai.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"

namespace wsync::engine::http {
namespace {

using generation::Token;

constexpr std::array<std::string_view, 17> kReadFields = {"model",
                                                          "prompt",
                                                          "n",
                                                          "max_tokens",
                                                          "temperature",
                                                          "top_p",
                                                          "seed",
                                                          "stop",
                                                          "stop_token_ids",
                                                          "logprobs",
                                                          "stream",
                                                          "best_of",
                                                          "stream_options",
                                                          "ignore_eos",
                                                          "request_id",
                                                          "return_token_ids",
                                                          "return_tokens_as_token_ids"};

// The numbers from..to ask for nothing, as do false, null and what is empty.
struct UnsupportedField {
  std::string_view name;
  double from = 1;  // from > to: every number asks for something
  double to = 0;
};

constexpr std::array<UnsupportedField, 24> kUnsupported = {{
    {.name = "echo"},
    {.name = "suffix"},
    {.name = "logit_bias"},
    {.name = "presence_penalty", .from = 0, .to = 0},
    {.name = "frequency_penalty", .from = 0, .to = 0},
    {.name = "repetition_penalty", .from = 1, .to = 1},
    {.name = "top_k", .from = -1, .to = 0},
    {.name = "min_p", .from = 0, .to = 0},
    {.name = "min_tokens", .from = 0, .to = 0},
    {.name = "priority", .from = 0, .to = 0},
    {.name = "use_beam_search"},
    {.name = "include_stop_str_in_output"},
    {.name = "bad_words"},
    {.name = "allowed_token_ids"},
    {.name = "logprob_token_ids"},
    {.name = "prompt_logprobs"},
    {.name = "truncate_prompt_tokens"},
    {.name = "prompt_embeds"},
    {.name = "response_format"},
    {.name = "structured_outputs"},
    {.name = "guided_json"},
    {.name = "guided_regex"},
    {.name = "guided_choice"},
    {.name = "guided_grammar"},
}};

bool is_known(std::string_view name) {
  return std::find(kReadFields.begin(), kReadFields.end(), name) != kReadFields.end() ||
         std::any_of(kUnsupported.begin(), kUnsupported.end(),
                     [&](const UnsupportedField& field) { return field.name == name; });
}

constexpr std::string_view kPromptForms =
    "text, a list of tokens, or a list of either (all of one kind)";

// Receives the body's JSON. depth_ is 1 inside of the object, 2 inside of a field's list or object.
class BodyHandler {
 public:
  [[nodiscard]] const std::string& violation() const { return violation_; }
  [[nodiscard]] BodyFields take() && { return std::move(fields_); }

  // The names are those of the JSON library's SAX interface.
  bool null() { return value(Null{}); }
  bool boolean(bool yes) { return value(yes); }
  bool number_integer(std::int64_t number) { return value(number); }
  bool number_unsigned(std::uint64_t number) { return value(number); }
  bool number_float(double number, const std::string&) { return value(number); }
  bool string(std::string& text) { return value(std::move(text)); }
  bool binary(nlohmann::json::binary_t&) { return violate("the body holds binary data"); }
  bool key(std::string& name) {
    if (depth_ == 1) {
      key_ = std::move(name);
      known_ = is_known(key_);
      if (known_ && !seen_.insert(key_).second)
        return violate(fmt::format("{}: it is there twice; expected once", key_));
    } else if (depth_ == 2) {
      inner_key_ = std::move(name);
    }
    return true;
  }
  bool start_object(std::size_t) {
    if (depth_ == 1 && key_ == "stream_options") {
      fields_.has_stream_options = true;
      return deeper();
    }
    if (depth_ > 0 && !nested({.object = true})) return false;
    return deeper();
  }
  bool start_array(std::size_t) {
    if (depth_ == 0) return violate("the body is a list; expected an object");
    if (depth_ == 1 && key_ == "prompt") {
      fields_.has_prompt = true;
      return deeper();
    }
    if (depth_ == 1 && (key_ == "stop" || key_ == "stop_token_ids")) return deeper();
    if (depth_ == 2 && key_ == "prompt") return begin_tokens() && deeper();
    return nested({}) && deeper();
  }
  bool end_object() { return shallower(); }
  bool end_array() { return shallower(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    if (!violation_.empty()) return false;
    const std::string_view what = error.what();
    return violate(
        fmt::format("the body is not JSON at byte {}: {}", position,
                    quote_text(what.substr(std::min(what.size(), what.find("] ") + 2)))));
  }

 private:
  enum class Element { kNone, kToken, kText, kTokens };

  bool violate(std::string what) {
    violation_ = std::move(what);
    return false;
  }
  bool deeper() {
    if (++depth_ > limits::kJsonDepth)
      return violate(fmt::format("the body nests deeper than {} levels", limits::kJsonDepth));
    return true;
  }
  bool shallower() {
    --depth_;
    return true;
  }
  bool value(FieldValue found) {
    if (depth_ == 0)
      return violate(fmt::format("the body is {}; expected an object", describe(found)));
    if (!known_) return true;
    if (key_ == "prompt") return prompt_value(std::move(found));
    if (key_ == "stop") return stop_value(std::move(found));
    if (key_ == "stop_token_ids") return stop_token_value(found);
    if (depth_ == 1) {
      fields_.scalars.insert_or_assign(key_, std::move(found));
      return true;
    }
    if (depth_ == 2 && key_ == "stream_options") {
      if (inner_key_ == "include_usage") fields_.include_usage = std::move(found);
      return true;
    }
    return inside();
  }
  // A list or an object where a value would be.
  bool nested(Nested found) {
    if (!known_) return true;
    if (key_ == "prompt") return wrong_prompt(found);
    if (key_ == "stop") return wrong_stop(found);
    if (key_ == "stop_token_ids") return wrong_stop_token(found);
    if (depth_ == 1) {
      fields_.scalars.insert_or_assign(key_, found);
      return true;
    }
    if (depth_ == 2 && key_ == "stream_options") {
      if (inner_key_ == "include_usage") fields_.include_usage = found;
      return true;
    }
    return inside();
  }
  // Something is in the field's list or object.
  bool inside() {
    const auto field = fields_.scalars.find(key_);
    if (field != fields_.scalars.end())
      if (auto* list = std::get_if<Nested>(&field->second)) list->empty = false;
    return true;
  }

  bool prompt_value(FieldValue found) {
    if (depth_ == 1 && std::holds_alternative<Null>(found)) return true;
    fields_.has_prompt = true;
    if (auto* text = std::get_if<std::string>(&found)) {
      const bool fits = depth_ == 1 || (depth_ == 2 && is_all(Element::kText));
      if (!fits) return wrong_prompt(found);
      if (!has_room(fields_.texts.size())) return false;
      fields_.text_prompts = true;
      fields_.texts.push_back(std::move(*text));
      return true;
    }
    const auto* number = std::get_if<std::uint64_t>(&found);
    if (number == nullptr || *number > std::numeric_limits<Token>::max() || depth_ == 1)
      return wrong_prompt(found);
    if (depth_ == 2) {
      if (!is_all(Element::kToken)) return wrong_prompt(found);
      if (fields_.tokens.empty()) fields_.tokens.emplace_back();
    }
    fields_.tokens.back().push_back(static_cast<Token>(*number));
    return true;
  }
  bool begin_tokens() {
    if (!is_all(Element::kTokens)) return wrong_prompt(Nested{});
    if (!has_room(fields_.tokens.size())) return false;
    fields_.tokens.emplace_back();
    return true;
  }
  // Whether the prompt's list has had only such elements.
  bool is_all(Element element) {
    if (elements_ == Element::kNone) elements_ = element;
    return elements_ == element;
  }
  bool has_room(std::size_t prompts) {
    return prompts < kMaxPrompts ||
           violate(fmt::format("prompt: it is a list of more than {}; at most as many are allowed "
                               "in one request",
                               kMaxPrompts));
  }
  bool wrong_prompt(const FieldValue& found) {
    if (depth_ == 1)
      return violate(fmt::format("prompt: it is {}; expected {}", describe(found), kPromptForms));
    return violate(
        fmt::format("prompt: {} is in its list; expected {}, and whole numbers for tokens",
                    describe(found), kPromptForms));
  }

  bool stop_value(FieldValue found) {
    if (depth_ == 1 && std::holds_alternative<Null>(found)) return true;
    auto* text = std::get_if<std::string>(&found);
    if (text == nullptr) return wrong_stop(found);
    if (fields_.stops.size() == generation::kMaxStops)
      return violate(fmt::format("stop: it is a list of more than {}; at most as many are allowed",
                                 generation::kMaxStops));
    fields_.stops.push_back(std::move(*text));
    return true;
  }
  bool wrong_stop(const FieldValue& found) {
    return violate(fmt::format(
        "stop: {}; expected text or a list of texts",
        depth_ == 1 ? "it is " + describe(found) : describe(found) + " is in its list"));
  }

  bool stop_token_value(const FieldValue& found) {
    if (depth_ == 1 && std::holds_alternative<Null>(found)) return true;
    const auto* token = std::get_if<std::uint64_t>(&found);
    if (depth_ == 1 || token == nullptr || *token > std::numeric_limits<Token>::max())
      return wrong_stop_token(found);
    if (fields_.stop_tokens.size() == generation::kMaxEndTokens)
      return violate(
          fmt::format("stop_token_ids: it is a list of more than {}; at most as many are allowed",
                      generation::kMaxEndTokens));
    fields_.stop_tokens.push_back(static_cast<Token>(*token));
    return true;
  }
  bool wrong_stop_token(const FieldValue& found) {
    return violate(fmt::format(
        "stop_token_ids: {}; expected a list of tokens, whole numbers",
        depth_ == 1 ? "it is " + describe(found) : describe(found) + " is in its list"));
  }

  std::uint64_t depth_ = 0;
  std::string key_;
  std::string inner_key_;
  bool known_ = false;
  Element elements_ = Element::kNone;
  std::set<std::string> seen_;  // of the known ones
  std::string violation_;
  BodyFields fields_;
};

bool asks(const UnsupportedField& field, const FieldValue& value) {
  if (std::holds_alternative<Null>(value)) return false;
  if (const auto* yes = std::get_if<bool>(&value)) return *yes;
  if (const auto* text = std::get_if<std::string>(&value)) return !text->empty();
  if (const auto* list = std::get_if<Nested>(&value)) return !list->empty;
  double number = 0;
  if (const auto* negative = std::get_if<std::int64_t>(&value))
    number = static_cast<double>(*negative);
  else if (const auto* positive = std::get_if<std::uint64_t>(&value))
    number = static_cast<double>(*positive);
  else
    number = std::get<double>(value);
  return !(number >= field.from && number <= field.to);
}

}  // namespace

std::string describe(const FieldValue& value) {
  if (std::holds_alternative<Null>(value)) return "null";
  if (const auto* yes = std::get_if<bool>(&value)) return *yes ? "true" : "false";
  if (const auto* text = std::get_if<std::string>(&value)) return quote_text(*text);
  if (const auto* list = std::get_if<Nested>(&value)) return list->object ? "an object" : "a list";
  if (const auto* negative = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *negative);
  if (const auto* positive = std::get_if<std::uint64_t>(&value))
    return fmt::format("{}", *positive);
  return fmt::format("{}", std::get<double>(value));
}

Result<BodyFields> read_fields(std::string_view body) {
  if (body.empty())
    return fail(ErrorCode::kInvalidInput, "the body is empty; expected a JSON object");
  if (const auto text = check_json_text(std::as_bytes(std::span(body))); !text)
    return fail(text.error().with_context("the body"));
  BodyHandler handler;
  if (!nlohmann::json::sax_parse(body.begin(), body.end(), &handler))
    return fail(ErrorCode::kInvalidInput, handler.violation());
  return std::move(handler).take();
}

Result<> check_unsupported(const BodyFields& fields) {
  for (const UnsupportedField& field : kUnsupported) {
    const auto found = fields.scalars.find(field.name);
    if (found != fields.scalars.end() && asks(field, found->second))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: it is {}, which this engine does not support; leave it out",
                              field.name, describe(found->second)));
  }
  return {};
}

}  // namespace wsync::engine::http
