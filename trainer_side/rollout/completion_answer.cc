#include "trainer_side/rollout/completion_answer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"

namespace wsync::rollout {
namespace {

using nlohmann::json;

constexpr std::uint64_t kByteTokens = 256;
constexpr std::size_t kFoundBytes = 120;  // quoted part of a body that is not JSON

std::uint32_t stop_token(const CompletionQuestion& question) {
  return static_cast<unsigned char>(question.stop);
}

// Returns the JSON text of what was found, shortened for a sentence. null: nothing was found.
std::string found_text(const json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_array()) return "a list of " + std::to_string(value->size());
  if (value->is_object()) return "an object";
  if (value->is_string()) return quote_text(value->get_ref<const std::string&>());
  return value->dump();
}

tl::unexpected<Error> wrong_answer(std::string_view place, const json* found,
                                   std::string_view expected) {
  return fail(ErrorCode::kInvalidInput, fmt::format("the answer: {}: expected {}, found {}", place,
                                                    expected, found_text(found)));
}

const json* member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// Reads a whole number of at most `max`.
std::optional<std::uint64_t> whole(const json* value, std::uint64_t max) {
  if (value == nullptr || !value->is_number_unsigned()) return std::nullopt;
  const auto number = value->get<std::uint64_t>();
  if (number > max) return std::nullopt;
  return number;
}

Result<json> parse_object(std::string_view body) {
  if (const auto text = check_json_text(std::as_bytes(std::span(body))); !text)
    return fail(text.error().with_context("the answer"));
  bool too_deep = false;
  const auto keep = [&too_deep](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > static_cast<int>(limits::kJsonDepth);
    return !too_deep;
  };
  json value = json::parse(body.begin(), body.end(), keep, false);
  if (too_deep)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the answer: it nests deeper than {} levels", limits::kJsonDepth));
  if (value.is_discarded() || !value.is_object())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the answer: expected a JSON object, found {} that begin with {}",
                            counted(body.size(), "byte"), quote_text(body.substr(0, kFoundBytes))));
  return value;
}

// Reads one choice into a rollout.
class ChoiceReader {
 public:
  ChoiceReader(const CompletionQuestion& question, const json& choice, std::size_t index)
      : question_(question), choice_(choice), place_(fmt::format("choice {}", index)) {}

  Result<Rollout> read() {
    WSYNC_TRY(read_reason());
    WSYNC_TRY(check_prompt());
    WSYNC_TRY(read_tokens());
    WSYNC_TRY(check_end());
    WSYNC_TRY(read_log_probabilities());
    WSYNC_TRY(read_spans());
    return std::move(rollout_);
  }

 private:
  [[nodiscard]] std::string at(std::string_view field) const {
    return fmt::format("{}, {}", place_, field);
  }

  Result<> read_reason() {
    const json* reason = member(choice_, "finish_reason");
    if (reason != nullptr && *reason == "abort")
      return fail(ErrorCode::kBusy, place_ + " was aborted by the engine before it was complete");
    stopped_ = reason != nullptr && *reason == "stop";
    if (!stopped_ && (reason == nullptr || *reason != "length"))
      return wrong_answer(at("finish_reason"), reason, "'stop', 'length' or 'abort'");
    return {};
  }

  // Engines may omit the prompt's tokens.
  Result<> check_prompt() const {
    const json* prompt = member(choice_, "prompt_token_ids");
    if (prompt == nullptr || prompt->is_null()) return {};
    bool same = prompt->is_array() && prompt->size() == question_.prompt.size();
    for (std::size_t i = 0; same && i < prompt->size(); ++i)
      same = whole(&(*prompt)[i], kByteTokens) == static_cast<unsigned char>(question_.prompt[i]);
    if (same) return {};
    return wrong_answer(at("prompt_token_ids"), prompt,
                        fmt::format("the {} of the prompt that was sent",
                                    counted(question_.prompt.size(), "token")));
  }

  Result<> read_tokens() {
    const json* tokens = member(choice_, "token_ids");
    if (tokens == nullptr || !tokens->is_array() || tokens->empty() ||
        tokens->size() > question_.max_tokens)
      return wrong_answer(at("token_ids"), tokens,
                          fmt::format("a list of 1 to {}", question_.max_tokens));
    rollout_.tokens.reserve(tokens->size());
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      const auto token = whole(&(*tokens)[i], kByteTokens - 1);
      if (!token)
        return wrong_answer(at(fmt::format("token_ids[{}]", i)), &(*tokens)[i],
                            fmt::format("a byte, 0 to {}", kByteTokens - 1));
      rollout_.tokens.push_back(static_cast<std::uint32_t>(*token));
    }
    return {};
  }

  Result<> check_end() const {
    const auto& tokens = rollout_.tokens;
    const auto stop = std::find(tokens.begin(), tokens.end(), stop_token(question_));
    if (stop == tokens.end() ? !stopped_ : stop == tokens.end() - 1) return {};
    const std::string found =
        stop == tokens.end() ? "none" : fmt::format("the first at {}", stop - tokens.begin());
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the answer: {}: expected token {} where it ends by 'stop' and nowhere "
                            "else, found {} in {}; the engine must support stop_token_ids",
                            at("token_ids"), stop_token(question_), found,
                            counted(tokens.size(), "token")));
  }

  Result<> read_log_probabilities() {
    const json* lists = member(choice_, "logprobs");
    const json* values = lists == nullptr ? nullptr : member(*lists, "token_logprobs");
    const std::size_t tokens = rollout_.tokens.size();
    if (values == nullptr || !values->is_array() || values->size() != tokens)
      return wrong_answer(at("logprobs.token_logprobs"), values,
                          fmt::format("a list of {}", tokens));
    rollout_.log_probabilities.reserve(tokens);
    for (std::size_t i = 0; i < tokens; ++i) {
      const json& value = (*values)[i];
      const double number =
          value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
      const auto narrow = static_cast<float>(number);
      if (!std::isfinite(narrow) || !(number <= kLogProbabilitySlack))
        return wrong_answer(at(fmt::format("logprobs.token_logprobs[{}]", i)), &value,
                            "a finite number of at most 0");
      rollout_.log_probabilities.push_back(narrow);
    }
    return {};
  }

  Result<> read_spans() {
    const json* spans = member(choice_, "weight_versions");
    const std::size_t tokens = rollout_.tokens.size();
    if (spans == nullptr || !spans->is_array() || spans->empty() || spans->size() > tokens)
      return wrong_answer(at("weight_versions"), spans, fmt::format("1 to {} spans", tokens));
    std::uint32_t covered = 0;
    for (std::size_t i = 0; i < spans->size(); ++i) {
      const auto span =
          WSYNC_TRY(read_span((*spans)[i], at(fmt::format("weight_versions[{}]", i)), covered));
      covered = span.end;
      rollout_.spans.push_back(span);
    }
    if (covered != tokens)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the answer: {}: expected spans of all {}, found {} covered",
                              at("weight_versions"), counted(tokens, "token"), covered));
    return {};
  }

  // Reads the next span, which must begin at token `start`.
  [[nodiscard]] Result<Span> read_span(const json& value, const std::string& place,
                                       std::uint32_t start) const {
    const std::size_t tokens = rollout_.tokens.size();
    if (whole(member(value, "start"), tokens) != start)
      return wrong_answer(place + ".start", member(value, "start"), std::to_string(start));
    const auto end = whole(member(value, "end"), tokens);
    if (!end || *end <= start)
      return wrong_answer(place + ".end", member(value, "end"),
                          fmt::format("{} to {}", start + 1, tokens));
    const json* name = member(value, "version");
    const auto version = name != nullptr && name->is_string()
                             ? Version::parse(name->get_ref<const std::string&>())
                             : Result<Version>(fail(ErrorCode::kInvalidInput, {}));
    if (!version) return wrong_answer(place + ".version", name, "a version, EPOCH.STEP");
    return Span{.start = start, .end = static_cast<std::uint32_t>(*end), .version = *version};
  }

  const CompletionQuestion& question_;
  const json& choice_;
  std::string place_;
  bool stopped_ = false;  // has reached the stop token
  Rollout rollout_;
};

}  // namespace

std::string question_body(const CompletionQuestion& question) {
  json prompt = json::array();
  for (const char byte : question.prompt) prompt.push_back(static_cast<unsigned char>(byte));
  const json body = {{"prompt", std::move(prompt)},
                     {"n", question.answers},
                     {"max_tokens", question.max_tokens},
                     {"temperature", question.temperature},
                     {"seed", question.seed},
                     {"stop_token_ids", json::array({stop_token(question)})},
                     {"ignore_eos", true},
                     {"logprobs", 0},
                     {"return_token_ids", true}};
  return body.dump();
}

std::uint64_t max_answer_bytes(const CompletionQuestion& question) noexcept {
  const std::uint64_t tokens = std::uint64_t{question.answers} * question.max_tokens;
  // Each answer repeats the prompt.
  const std::uint64_t frame =
      kAnswerFrameBytes + std::uint64_t{question.answers} * (1024 + 8 * question.prompt.size());
  return std::min(kAnswerBytes, frame + std::min(tokens, kAnswerBytes) * kAnswerTokenBytes);
}

Result<std::vector<Rollout>> read_answer(std::string_view body, const CompletionQuestion& question,
                                         const std::string& replica) {
  const auto answer = WSYNC_TRY(parse_object(body));
  const json* choices = member(answer, "choices");
  if (choices == nullptr || !choices->is_array() || choices->size() != question.answers)
    return wrong_answer("choices", choices, fmt::format("a list of {}", question.answers));
  std::vector<std::optional<Rollout>> found(question.answers);
  for (const json& choice : *choices) {
    const json* number = member(choice, "index");
    const auto index = whole(number, question.answers - 1);
    if (!index || found[*index])
      return wrong_answer("choices, index", number,
                          fmt::format("each of 0 to {} once", question.answers - 1));
    auto rollout = WSYNC_TRY(ChoiceReader(question, choice, *index).read());
    rollout.replica = replica;
    found[*index] = std::move(rollout);
  }
  std::vector<Rollout> rollouts;
  rollouts.reserve(found.size());
  for (std::optional<Rollout>& rollout : found) rollouts.push_back(std::move(*rollout));
  return rollouts;
}

Result<Version> read_served(std::string_view body) {
  const auto answer = WSYNC_TRY(parse_object(body));
  const json* name = member(answer, "version");
  if (name != nullptr && name->is_null())
    return fail(ErrorCode::kBusy, "the engine has no weights yet");
  if (name == nullptr || !name->is_string())
    return wrong_answer("version", name, "a version, EPOCH.STEP");
  const auto version = Version::parse(name->get_ref<const std::string&>());
  if (!version) return wrong_answer("version", name, "a version, EPOCH.STEP");
  return *version;
}

std::string read_refusal(std::string_view body) {
  if (const auto answer = parse_object(body)) {
    const json* error = member(*answer, "error");
    const json* message = error == nullptr ? nullptr : member(*error, "message");
    if (message == nullptr) message = member(*answer, "reason");
    if (message != nullptr && message->is_string())
      return quote_text(message->get_ref<const std::string&>());
  }
  return body.empty() ? "nothing" : quote_text(body.substr(0, kFoundBytes));
}

}  // namespace wsync::rollout
