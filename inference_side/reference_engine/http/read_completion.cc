#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <span>

#include "inference_side/reference_engine/http/openai.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"

namespace wsync::engine::http {
namespace {

using generation::Request;
using generation::ServiceInfo;
using generation::Token;
using nlohmann::json;

constexpr std::array<std::string_view, 13> kFields = {
    "model", "prompt",         "n",        "max_tokens", "temperature", "top_p",           "seed",
    "stop",  "stop_token_ids", "logprobs", "stream",     "ignore_eos",  "return_token_ids"};
constexpr std::string_view kPromptForms =
    "text, a list of tokens, or a list of either (all of one kind)";

tl::unexpected<Error> refused(std::string sentence) {
  return fail(ErrorCode::kInvalidInput, std::move(sentence));
}

// A short description for an error message: "null", "true", "7", "'some text'", "a list".
std::string describe(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  if (value.is_string()) return quote_text(value.get_ref<const std::string&>());
  return value.dump();
}

tl::unexpected<Error> wrong_field(std::string_view name, const json& found,
                                  std::string_view expected) {
  return refused(fmt::format("{}: it is {}; expected {}", name, describe(found), expected));
}
tl::unexpected<Error> wrong_element(std::string_view name, const json& found,
                                    std::string_view expected) {
  return refused(
      fmt::format("{}: {} is in its list; expected {}", name, describe(found), expected));
}

// The message without the exception's name, which precedes it in brackets.
std::string sentence_of(const json::exception& error) {
  const std::string_view what = error.what();
  return quote_text(what.substr(std::min(what.size(), what.find("] ") + 2)));
}

// Parses the body as an object in which no field occurs twice.
Result<json> parse_object(std::string_view body) {
  if (body.empty()) return refused("the body is empty; expected a JSON object");
  if (const auto text = check_json_text(std::as_bytes(std::span(body))); !text)
    return fail(text.error().with_context("the body"));
  std::set<std::string> names;
  std::optional<std::string> problem;
  const auto keep = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > static_cast<int>(limits::kJsonDepth))
      problem = fmt::format("the body nests deeper than {} levels", limits::kJsonDepth);
    else if (event == json::parse_event_t::key && depth == 1 &&
             !names.insert(parsed.get<std::string>()).second)
      problem = parsed.get<std::string>() + ": it occurs twice; expected once";
    return !problem;
  };
  try {
    json found = json::parse(body.begin(), body.end(), keep);
    if (problem) return refused(std::move(*problem));
    if (!found.is_object())
      return refused(fmt::format("the body is {}; expected an object", describe(found)));
    return found;
  } catch (const json::parse_error& error) {
    return refused(problem.value_or(
        fmt::format("the body is not JSON at byte {}: {}", error.byte, sentence_of(error))));
  } catch (const json::exception& error) {  // for example a number out of range
    return refused(fmt::format("the body is not JSON: {}", sentence_of(error)));
  }
}

// Reads the fields of a body. A null field counts as absent.
class BodyReader {
 public:
  explicit BodyReader(const json& body) : body_(body) {}

  Result<> check_names() const {
    for (const auto& [name, value] : body_.items())
      if (!value.is_null() && std::find(kFields.begin(), kFields.end(), name) == kFields.end())
        return refused(fmt::format("{}: it is {}, which this engine does not support; leave it out",
                                   shown(name), describe(value)));
    return {};
  }
  // Returns nullptr if the field is absent or null.
  const json* find(const char* name) const {
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }
  Result<bool> flag(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return wrong_field(name, *value, "true or false");
    return value->get<bool>();
  }
  Result<double> number(const char* name, double otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) return wrong_field(name, *value, "a number");
    return value->get<double>();
  }
  Result<std::optional<std::uint64_t>> whole(const char* name, std::uint64_t min,
                                             std::uint64_t max) const {
    const json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < min ||
        value->get<std::uint64_t>() > max)
      return wrong_field(name, *value, fmt::format("a whole number from {} to {}", min, max));
    return value->get<std::uint64_t>();
  }

 private:
  static std::string shown(const std::string& name) {
    const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
    return plain && name.size() <= 64 ? name : quote_text(name);
  }
  const json& body_;
};

std::optional<Token> token_of(const json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<Token>::max())
    return std::nullopt;
  return static_cast<Token>(value.get<std::uint64_t>());
}

std::vector<Token> bytes_of(const std::string& text) {
  std::vector<Token> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

Result<> check_model(const BodyReader& body, const ServiceInfo& info) {
  const json* value = body.find("model");
  if (value == nullptr) return {};
  if (!value->is_string()) return wrong_field("model", *value, "the model's name");
  const auto& name = value->get_ref<const std::string&>();
  if (name == info.model) return {};
  return fail(ErrorCode::kNotFound,
              fmt::format("model: {} does not exist here; this engine serves {}", quote_text(name),
                          quote_text(info.model)));
}

Result<std::vector<Token>> read_tokens(std::string_view name, const json& list,
                                       std::string_view expected) {
  std::vector<Token> tokens;
  tokens.reserve(list.size());
  for (const json& element : list) {
    const auto token = token_of(element);
    if (!token) return wrong_element(name, element, expected);
    tokens.push_back(*token);
  }
  return tokens;
}

Result<std::vector<Token>> read_text(const json& text, bool byte_tokens) {
  if (byte_tokens) return bytes_of(text.get_ref<const std::string&>());
  return refused(
      "prompt: it is text, which this engine can convert only if the model's tokens are bytes; "
      "expected a list of tokens");
}

Result<std::vector<std::vector<Token>>> read_prompts(const BodyReader& body, bool byte_tokens) {
  const std::string expected = fmt::format("{}, and whole numbers for tokens", kPromptForms);
  const json* value = body.find("prompt");
  if (value == nullptr)
    return refused(fmt::format("prompt: it is missing; expected {}", kPromptForms));
  std::vector<std::vector<Token>> prompts;
  if (value->is_string()) {
    prompts.push_back(WSYNC_TRY(read_text(*value, byte_tokens)));
    return prompts;
  }
  if (!value->is_array()) return wrong_field("prompt", *value, kPromptForms);
  if (value->empty())
    return refused(fmt::format("prompt: it is an empty list; expected {}", kPromptForms));
  if (token_of(value->front())) {
    prompts.push_back(WSYNC_TRY(read_tokens("prompt", *value, expected)));
    return prompts;
  }
  if (value->size() > kMaxPrompts)
    return refused(fmt::format("prompt: its list is longer than the maximum of {} in one request",
                               kMaxPrompts));
  const bool texts = value->front().is_string();
  for (const json& element : *value) {
    if (texts ? !element.is_string() : !element.is_array())
      return wrong_element("prompt", element, expected);
    prompts.push_back(WSYNC_TRY(texts ? read_text(element, byte_tokens)
                                      : read_tokens("prompt", element, expected)));
  }
  return prompts;
}

Result<std::vector<std::vector<Token>>> read_stops(const BodyReader& body, bool byte_tokens) {
  constexpr std::string_view kExpected = "text or a list of texts";
  const json* value = body.find("stop");
  if (value == nullptr) return std::vector<std::vector<Token>>{};
  if (!value->is_string() && !value->is_array()) return wrong_field("stop", *value, kExpected);
  if (!byte_tokens)
    return refused(
        "stop: this engine can convert text to tokens only if the model's tokens are bytes, and "
        "those of this model are not; leave it out");
  std::vector<std::vector<Token>> stops;
  const json texts = value->is_array() ? *value : json::array({*value});
  if (texts.size() > generation::kMaxStops)
    return refused(
        fmt::format("stop: its list is longer than the maximum of {}", generation::kMaxStops));
  for (const json& text : texts) {
    if (!text.is_string()) return wrong_element("stop", text, kExpected);
    stops.push_back(bytes_of(text.get_ref<const std::string&>()));
  }
  return stops;
}

Result<std::vector<Token>> read_stop_tokens(const BodyReader& body) {
  constexpr std::string_view kExpected = "a list of tokens, whole numbers";
  const json* value = body.find("stop_token_ids");
  if (value == nullptr) return std::vector<Token>{};
  if (!value->is_array()) return wrong_field("stop_token_ids", *value, kExpected);
  if (value->size() > generation::kMaxEndTokens)
    return refused(fmt::format("stop_token_ids: its list is longer than the maximum of {}",
                               generation::kMaxEndTokens));
  return read_tokens("stop_token_ids", *value, kExpected);
}

// Reads the fields that all outputs of all prompts share.
Result<Request> read_common(const BodyReader& body, const ServiceInfo& info, bool byte_tokens) {
  Request common;
  common.max_tokens = static_cast<std::uint32_t>(
      WSYNC_TRY(body.whole("max_tokens", 0, std::numeric_limits<std::uint32_t>::max()))
          .value_or(common.max_tokens));
  common.sampling.temperature = WSYNC_TRY(body.number("temperature", common.sampling.temperature));
  common.sampling.top_p = WSYNC_TRY(body.number("top_p", common.sampling.top_p));
  common.sampling.seed =
      WSYNC_TRY(body.whole("seed", 0, std::numeric_limits<std::uint64_t>::max()));
  common.logprobs = static_cast<std::uint32_t>(
      WSYNC_TRY(body.whole("logprobs", 0, generation::kMaxLogprobs)).value_or(0));
  common.stops = WSYNC_TRY(read_stops(body, byte_tokens));
  common.end_tokens = WSYNC_TRY(read_stop_tokens(body));
  if (!WSYNC_TRY(body.flag("ignore_eos"))) common.end_token = info.end_token;
  return common;
}

Result<> check_sizes(const std::vector<std::vector<Token>>& prompts, std::uint64_t outputs,
                     const Request& common) {
  if (prompts.size() * outputs > kMaxRequests)
    return refused(fmt::format(
        "n: {} with {} each make {} outputs; at most {} are allowed in one "
        "request",
        counted(prompts.size(), "prompt"), outputs, prompts.size() * outputs, kMaxRequests));
  std::uint64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size() * outputs;
  if (tokens > kMaxPromptTokens)
    return refused(
        fmt::format("prompt: the prompts of all outputs together have {} tokens; at most {} are "
                    "allowed in one request",
                    tokens, kMaxPromptTokens));
  const std::uint64_t items =
      prompts.size() * outputs * common.max_tokens * (1ULL + common.logprobs);
  if (items > kMaxAnswerItems)
    return refused(
        fmt::format("max_tokens: all outputs together may have {} tokens and "
                    "log-probabilities; at most {} are allowed in one request",
                    items, kMaxAnswerItems));
  return {};
}

}  // namespace

Result<CompletionRequest> read_completion(std::string_view text, const ServiceInfo& info,
                                          bool byte_tokens) {
  const json object = WSYNC_TRY(parse_object(text));
  const BodyReader body(object);
  WSYNC_TRY(check_model(body, info));
  WSYNC_TRY(body.check_names());
  CompletionRequest request;
  request.byte_tokens = byte_tokens;
  request.stream = WSYNC_TRY(body.flag("stream"));
  request.return_token_ids = WSYNC_TRY(body.flag("return_token_ids"));
  request.logprobs = body.find("logprobs") != nullptr;
  request.outputs =
      static_cast<std::uint32_t>(WSYNC_TRY(body.whole("n", 1, kMaxOutputs)).value_or(1));
  Request common = WSYNC_TRY(read_common(body, info, byte_tokens));
  auto prompts = WSYNC_TRY(read_prompts(body, byte_tokens));
  WSYNC_TRY(check_sizes(prompts, request.outputs, common));
  const std::optional<std::uint64_t> seed = common.sampling.seed;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    common.prompt = std::move(prompts[p]);
    common.sampling.seed = seed;
    const auto fits = generation::check_request(common, info.vocabulary, info.max_positions);
    if (!fits)
      return fail(prompts.size() == 1 ? fits.error()
                                      : fits.error().with_context(fmt::format("prompt {}", p)));
    for (std::uint32_t i = 0; i < request.outputs; ++i) {
      // Each output needs its own random numbers.
      if (seed) common.sampling.seed = *seed + i;
      request.requests.push_back(common);
    }
  }
  return request;
}

}  // namespace wsync::engine::http
