#include "inference_side/reference_engine/http/openai.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::engine::http {
namespace {

using generation::Delivery;
using generation::GeneratedToken;
using generation::Token;
using nlohmann::json;

constexpr double kLowestLogprob = -9999;  // JSON has no infinity

// Name of a token in the logprobs: its character, or a form that distinguishes it from others.
std::string token_name(const CompletionRequest& request, Token token) {
  if (!request.byte_tokens || token >= kByteTokens) return fmt::format("token_id:{}", token);
  const bool printable =
      (token >= 0x20 && token < 0x7F) || token == '\n' || token == '\t' || token == '\r';
  return printable ? std::string(1, static_cast<char>(token))
                   : fmt::format("bytes:\\x{:02x}", token);
}

json logprob_json(float logprob) {
  if (std::isnan(logprob)) return nullptr;
  return std::max(static_cast<double>(logprob), kLowestLogprob);
}

// The lists in the logprobs of a choice. Every list has one entry for each token.
class LogprobLists {
 public:
  void add(const CompletionRequest& request, const GeneratedToken& token, std::uint64_t place) {
    const std::string name = token_name(request, token.token);
    json top = json::object();
    for (const generation::Likelihood& likely : token.most_likely)
      top[token_name(request, likely.token)] = logprob_json(likely.logprob);
    top[name] = logprob_json(token.logprob);
    tokens_.push_back(name);
    logprobs_.push_back(logprob_json(token.logprob));
    top_.push_back(std::move(top));
    places_.push_back(place);
  }
  [[nodiscard]] json take() && {
    return {{"tokens", std::move(tokens_)},
            {"token_logprobs", std::move(logprobs_)},
            {"top_logprobs", std::move(top_)},
            {"text_offset", std::move(places_)}};
  }

 private:
  json tokens_ = json::array();
  json logprobs_ = json::array();
  json top_ = json::array();
  json places_ = json::array();
};

json spans_json(std::span<const GeneratedToken> tokens, std::uint32_t first) {
  std::vector<generation::VersionSpan> spans;
  for (const GeneratedToken& token : tokens) generation::extend(spans, token.version);
  json list = json::array();
  for (const generation::VersionSpan& span : spans)
    list.push_back({{"start", first + span.begin},
                    {"end", first + span.end},
                    {"version", span.version.to_string()}});
  return list;
}

json token_ids(std::span<const GeneratedToken> tokens) {
  json list = json::array();
  for (const GeneratedToken& token : tokens) list.push_back(token.token);
  return list;
}

// Appends the token to the text. Returns the index of its character in the text.
std::uint64_t take_text(const CompletionRequest& request, const generation::Request& asked,
                        Token token, Utf8Decoder& decoder, std::string& text) {
  if (request.byte_tokens && token < kByteTokens && !generation::ends(asked, token))
    return decoder.take(static_cast<std::uint8_t>(token), text);
  decoder.finish(text);
  return decoder.characters();
}

json choice_json(const CompletionRequest& request, std::size_t index, const Delivery& news,
                 ChoiceProgress& progress) {
  WSYNC_CHECK(index < request.requests.size(), "a choice belongs to a request");
  const generation::Request& asked = request.requests[index];
  std::string text;
  LogprobLists logprobs;
  for (const GeneratedToken& token : news.tokens) {
    const std::uint64_t place = take_text(request, asked, token.token, progress.text, text);
    if (request.logprobs) logprobs.add(request, token, place);
  }
  if (news.finished) progress.text.finish(text);
  json choice = {{"index", index},
                 {"text", std::move(text)},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr},
                 {"weight_versions", spans_json(news.tokens, progress.tokens)}};
  if (request.logprobs) choice["logprobs"] = std::move(logprobs).take();
  if (news.finished) choice["finish_reason"] = generation::name_of(*news.finished);
  if (request.return_token_ids && !progress.begun) choice["prompt_token_ids"] = asked.prompt;
  if (request.return_token_ids || !request.byte_tokens)
    choice["token_ids"] = token_ids(news.tokens);
  progress.begun = true;
  progress.tokens += static_cast<std::uint32_t>(news.tokens.size());
  return choice;
}

json answer(const CompletionHead& head) {
  return {{"id", head.id},
          {"object", "text_completion"},
          {"created", head.created},
          {"model", head.model},
          {"choices", json::array()}};
}

// A prompt counts once, regardless of the number of its outputs.
json tokens_used(const CompletionRequest& request, std::uint64_t generated) {
  std::uint64_t prompts = 0;
  for (std::size_t i = 0; i < request.requests.size(); i += request.outputs)
    prompts += request.requests[i].prompt.size();
  return {{"prompt_tokens", prompts},
          {"completion_tokens", generated},
          {"total_tokens", prompts + generated}};
}

const char* error_type(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

json completion_json(const CompletionHead& head, const CompletionRequest& request,
                     const std::vector<Delivery>& outputs) {
  json body = answer(head);
  std::uint64_t generated = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    ChoiceProgress progress;
    body["choices"].push_back(choice_json(request, i, outputs[i], progress));
    generated += outputs[i].tokens.size();
  }
  body["usage"] = tokens_used(request, generated);
  return body;
}

json chunk_json(const CompletionHead& head, const CompletionRequest& request, std::size_t index,
                const Delivery& news, ChoiceProgress& progress) {
  json body = answer(head);
  body["choices"].push_back(choice_json(request, index, news, progress));
  return body;
}

json error_json(int status, std::string_view message, std::string_view code) {
  json error = {
      {"message", message}, {"type", error_type(status)}, {"param", nullptr}, {"code", nullptr}};
  if (!code.empty()) error["code"] = code;
  return {{"error", std::move(error)}};
}

std::string json_line(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace wsync::engine::http
