#include <limits>
#include <optional>

#include "inference_side/reference_engine/http/body_fields.h"
#include "inference_side/reference_engine/http/openai.h"
#include "shared/base/format.h"
#include "shared/weights/json_text.h"

namespace wsync::engine::http {
namespace {

using generation::Request;
using generation::ServiceInfo;
using generation::Token;

tl::unexpected<Error> wrong_field(std::string_view name, const FieldValue& found,
                                  std::string_view expected) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: it is {}; expected {}", name, describe(found), expected));
}

// The field, unless it is not there or null.
const FieldValue* find_field(const BodyFields& fields, std::string_view name) {
  const auto found = fields.scalars.find(name);
  if (found == fields.scalars.end() || std::holds_alternative<Null>(found->second)) return nullptr;
  return &found->second;
}

Result<bool> flag_value(std::string_view name, const FieldValue& value) {
  if (std::holds_alternative<Null>(value)) return false;
  if (const auto* yes = std::get_if<bool>(&value)) return *yes;
  return wrong_field(name, value, "true or false");
}
Result<> read_flag(const BodyFields& fields, std::string_view name, bool& into) {
  const FieldValue* value = find_field(fields, name);
  if (value == nullptr) return {};
  const auto flag = WSYNC_TRY(flag_value(name, *value));
  into = flag;
  return {};
}

Result<> read_number(const BodyFields& fields, std::string_view name, double& into) {
  const FieldValue* value = find_field(fields, name);
  if (value == nullptr) return {};
  if (const auto* number = std::get_if<double>(value))
    into = *number;
  else if (const auto* positive = std::get_if<std::uint64_t>(value))
    into = static_cast<double>(*positive);
  else if (const auto* negative = std::get_if<std::int64_t>(value))
    into = static_cast<double>(*negative);
  else
    return wrong_field(name, *value, "a number");
  return {};
}

Result<std::optional<std::uint64_t>> read_whole(const BodyFields& fields, std::string_view name,
                                                std::uint64_t lowest, std::uint64_t highest) {
  const FieldValue* value = find_field(fields, name);
  if (value == nullptr) return std::nullopt;
  const auto* number = std::get_if<std::uint64_t>(value);
  if (number == nullptr || *number < lowest || *number > highest)
    return wrong_field(name, *value, fmt::format("a whole number from {} to {}", lowest, highest));
  return *number;
}

std::vector<Token> bytes_of(std::string_view text) {
  std::vector<Token> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

Result<> check_model(const BodyFields& fields, const ServiceInfo& info) {
  const FieldValue* value = find_field(fields, "model");
  if (value == nullptr) return {};
  const auto* name = std::get_if<std::string>(value);
  if (name == nullptr) return wrong_field("model", *value, "the model's name");
  if (*name != info.model)
    return fail(ErrorCode::kNotFound, fmt::format("model: {} does not exist here; this engine "
                                                  "serves {}",
                                                  quote_text(*name), quote_text(info.model)));
  return {};
}

Result<std::vector<std::vector<Token>>> read_prompts(BodyFields& fields, bool byte_tokens) {
  if (!fields.has_prompt)
    return fail(ErrorCode::kInvalidInput,
                "prompt: it is not there; expected text, a list of tokens, or a list of either");
  if (!fields.text_prompts) {
    if (fields.tokens.empty())
      return fail(ErrorCode::kInvalidInput,
                  "prompt: it is an empty list; expected text, a list of tokens, or a list of "
                  "either");
    return std::move(fields.tokens);
  }
  if (!byte_tokens)
    return fail(ErrorCode::kInvalidInput,
                "prompt: it is text, which this engine makes tokens of only where a token is a "
                "byte; expected a list of tokens");
  std::vector<std::vector<Token>> prompts;
  for (const std::string& text : fields.texts) prompts.push_back(bytes_of(text));
  return prompts;
}

Result<std::vector<std::vector<Token>>> read_stops(const BodyFields& fields, bool byte_tokens) {
  if (!fields.stops.empty() && !byte_tokens)
    return fail(ErrorCode::kInvalidInput,
                "stop: it is text, which this engine makes tokens of only where a token is a "
                "byte; leave it out");
  std::vector<std::vector<Token>> stops;
  for (const std::string& text : fields.stops) stops.push_back(bytes_of(text));
  return stops;
}

// What all outputs of all prompts have in common.
Result<Request> read_common(const BodyFields& fields, const ServiceInfo& info, bool byte_tokens) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  Request common;
  const auto max_tokens = WSYNC_TRY(read_whole(fields, "max_tokens", 0, kMost));
  if (max_tokens) common.max_tokens = static_cast<std::uint32_t>(*max_tokens);
  WSYNC_TRY(read_number(fields, "temperature", common.sampling.temperature));
  WSYNC_TRY(read_number(fields, "top_p", common.sampling.top_p));
  const auto seed =
      WSYNC_TRY(read_whole(fields, "seed", 0, std::numeric_limits<std::uint64_t>::max()));
  common.sampling.seed = seed;
  const auto logprobs = WSYNC_TRY(read_whole(fields, "logprobs", 0, generation::kMaxLogprobs));
  common.logprobs = static_cast<std::uint32_t>(logprobs.value_or(0));
  auto stops = WSYNC_TRY(read_stops(fields, byte_tokens));
  common.stops = std::move(stops);
  bool ignore_end = false;
  WSYNC_TRY(read_flag(fields, "ignore_eos", ignore_end));
  if (!ignore_end) common.end_token = info.end_token;
  common.end_tokens = fields.stop_tokens;
  return common;
}

Result<std::uint32_t> read_outputs(const BodyFields& fields) {
  const auto outputs = WSYNC_TRY(read_whole(fields, "n", 1, kMaxOutputs));
  const std::uint64_t n = outputs.value_or(1);
  if (const FieldValue* best = find_field(fields, "best_of")) {
    const auto* number = std::get_if<std::uint64_t>(best);
    if (number == nullptr || *number != n)
      return wrong_field("best_of", *best, fmt::format("n, which is {}; leave it out", n));
  }
  return static_cast<std::uint32_t>(n);
}

Result<> read_form(const BodyFields& fields, CompletionRequest& request) {
  WSYNC_TRY(read_flag(fields, "stream", request.stream));
  WSYNC_TRY(read_flag(fields, "return_token_ids", request.return_token_ids));
  WSYNC_TRY(read_flag(fields, "return_tokens_as_token_ids", request.tokens_as_ids));
  request.logprobs = find_field(fields, "logprobs") != nullptr;
  if (const FieldValue* options = find_field(fields, "stream_options"))
    return wrong_field("stream_options", *options, "an object");
  if (fields.has_stream_options && !request.stream)
    return fail(ErrorCode::kInvalidInput,
                "stream_options: they are there and stream is not true; leave one out or set the "
                "other");
  const auto usage = WSYNC_TRY(flag_value("stream_options.include_usage", fields.include_usage));
  request.include_usage = usage;
  if (const FieldValue* id = find_field(fields, "request_id")) {
    const auto* text = std::get_if<std::string>(id);
    if (text == nullptr) return wrong_field("request_id", *id, "text");
    WSYNC_TRY(check_request_id("request_id", *text));
    request.id = *text;
  }
  return {};
}

Result<> check_sizes(const std::vector<std::vector<Token>>& prompts, std::uint64_t outputs) {
  if (prompts.size() * outputs > kMaxRequests)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("n: {} with {} each make {} outputs; at most {} are allowed in one "
                            "request",
                            counted(prompts.size(), "prompt"), outputs, prompts.size() * outputs,
                            kMaxRequests));
  std::uint64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size() * outputs;
  if (tokens > kMaxPromptTokens)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("prompt: {} tokens in all outputs' prompts; at most {} are allowed in "
                            "one request",
                            tokens, kMaxPromptTokens));
  return {};
}

}  // namespace

Result<> check_request_id(std::string_view field, std::string_view id) {
  bool fits = !id.empty() && id.size() <= kMaxRequestIdBytes;
  for (const char c : id) fits = fits && c > ' ' && c < '\x7F';
  if (fits) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: it is {}; expected 1 to {} printable ASCII characters without a "
                          "blank",
                          field, quote_text(id), kMaxRequestIdBytes));
}

Result<CompletionRequest> read_completion(std::string_view body, const ServiceInfo& info,
                                          bool byte_tokens) {
  auto fields = WSYNC_TRY(read_fields(body));
  WSYNC_TRY(check_model(fields, info));
  WSYNC_TRY(check_unsupported(fields));
  CompletionRequest request;
  request.byte_tokens = byte_tokens;
  WSYNC_TRY(read_form(fields, request));
  const auto outputs = WSYNC_TRY(read_outputs(fields));
  request.outputs = outputs;
  auto common = WSYNC_TRY(read_common(fields, info, byte_tokens));
  auto prompts = WSYNC_TRY(read_prompts(fields, byte_tokens));
  WSYNC_TRY(check_sizes(prompts, outputs));
  const std::uint64_t told =
      prompts.size() * outputs * common.max_tokens * (1ULL + common.logprobs);
  if (told > kMaxAnswerItems)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("max_tokens: all outputs together may have {} tokens and "
                            "log-probabilities; at most {} are allowed in one request",
                            told, kMaxAnswerItems));
  const std::optional<std::uint64_t> seed = common.sampling.seed;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    common.prompt = std::move(prompts[p]);
    common.sampling.seed = seed;
    const auto fits = generation::check_request(common, info.vocabulary, info.max_positions);
    if (!fits)
      return fail(prompts.size() == 1 ? fits.error()
                                      : fits.error().with_context(fmt::format("prompt {}", p)));
    for (std::uint32_t i = 0; i < outputs; ++i) {
      if (seed) common.sampling.seed = *seed + i;
      request.requests.push_back(common);
    }
  }
  return request;
}

}  // namespace wsync::engine::http
