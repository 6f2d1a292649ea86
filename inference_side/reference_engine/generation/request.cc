#include "inference_side/reference_engine/generation/request.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::engine::generation {
namespace {

tl::unexpected<Error> wrong_request(std::string why) {
  return fail(ErrorCode::kInvalidInput, std::move(why));
}

Result<> check_tokens(std::span<const Token> tokens, std::string_view field,
                      std::uint32_t vocabulary) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] >= vocabulary)
      return wrong_request(fmt::format(
          "{}: token {} at position {} is not in the model's vocabulary; expected a token below {}",
          field, tokens[i], i, vocabulary));
  return {};
}

Result<> check_length(const Request& request, std::uint32_t max_positions) {
  if (request.prompt.empty())
    return wrong_request("prompt: it has no tokens; a prompt has at least one");
  if (request.max_tokens == 0) return wrong_request("max_tokens: it is 0; at least 1 is allowed");
  const std::uint64_t positions = request.prompt.size() + std::uint64_t{request.max_tokens};
  if (positions > max_positions)
    return wrong_request(fmt::format(
        "max_tokens: the prompt's {} and max_tokens {} make {} positions; the model has {}, so "
        "shorten one of the two",
        counted(request.prompt.size(), "token"), request.max_tokens, positions, max_positions));
  return {};
}

Result<> check_stops(const Request& request, std::uint32_t vocabulary) {
  if (request.stops.size() > kMaxStops)
    return wrong_request(fmt::format("stop: there are {} sequences; at most {} are allowed",
                                     request.stops.size(), kMaxStops));
  for (std::size_t i = 0; i < request.stops.size(); ++i) {
    const std::vector<Token>& stop = request.stops[i];
    const std::string field = fmt::format("stop[{}]", i);
    if (stop.empty()) return wrong_request(field + ": it is empty; at least one token is expected");
    if (stop.size() > kMaxStopTokens)
      return wrong_request(fmt::format("{}: it has {} tokens; at most {} are allowed", field,
                                       stop.size(), kMaxStopTokens));
    WSYNC_TRY(check_tokens(stop, field, vocabulary));
  }
  return {};
}

Result<> check_choice(const Sampling& sampling) {
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0)
    return wrong_request(
        fmt::format("temperature: it is {}; 0 (greedy) or a finite number above it is allowed",
                    sampling.temperature));
  // The condition is negated so that NaN is refused too.
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    return wrong_request(
        fmt::format("top_p: it is {}; a number above 0 and at most 1 is allowed", sampling.top_p));
  return {};
}

}  // namespace

bool ends(const Request& request, Token token) noexcept {
  return token == request.end_token ||
         std::find(request.end_tokens.begin(), request.end_tokens.end(), token) !=
             request.end_tokens.end();
}

Result<> check_request(const Request& request, std::uint32_t vocabulary,
                       std::uint32_t max_positions) {
  WSYNC_TRY(check_length(request, max_positions));
  WSYNC_TRY(check_tokens(request.prompt, "prompt", vocabulary));
  WSYNC_TRY(check_choice(request.sampling));
  WSYNC_TRY(check_stops(request, vocabulary));
  if (request.end_token)
    WSYNC_TRY(check_tokens(std::span(&*request.end_token, 1), "end_token", vocabulary));
  if (request.end_tokens.size() > kMaxEndTokens)
    return wrong_request(fmt::format("stop_token_ids: there are {}; at most {} are allowed",
                                     request.end_tokens.size(), kMaxEndTokens));
  WSYNC_TRY(check_tokens(request.end_tokens, "stop_token_ids", vocabulary));
  if (request.logprobs > kMaxLogprobs)
    return wrong_request(fmt::format("logprobs: {} are requested; at most {} are allowed",
                                     request.logprobs, kMaxLogprobs));
  return {};
}

const char* name_of(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  check_failed("reason", "a finish reason has one of three values");
}

void extend(std::vector<VersionSpan>& spans, const Version& version) {
  const std::uint32_t end = spans.empty() ? 0 : spans.back().end;
  if (spans.empty() || spans.back().version != version)
    spans.push_back({.begin = end, .end = end, .version = version});
  ++spans.back().end;
}

}  // namespace wsync::engine::generation
