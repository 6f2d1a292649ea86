#include "tests/soak/answer.h"

#include <nlohmann/json.hpp>

#include "shared/base/format.h"

namespace wsync::soak {
namespace {

using nlohmann::json;

tl::unexpected<Error> wrong(std::string why) {
  return fail(ErrorCode::kInvalidInput, std::move(why));
}

Result<std::vector<AnsweredSpan>> read_spans(const json& listed, const Asked& asked) {
  std::vector<AnsweredSpan> spans;
  std::uint32_t end = 0;
  for (const json& span : listed) {
    const auto from = span.at("start").get<std::uint64_t>();
    const auto to = span.at("end").get<std::uint64_t>();
    const auto version =
        WSYNC_TRY(Version::parse(span.at("version").get_ref<const std::string&>()));
    if (from != end || to <= from || to > asked.tokens)
      return wrong(fmt::format("span {} has tokens {} to {}, expected some from {} on, up to {}",
                               spans.size(), from, to, end, asked.tokens));
    if (spans.empty() ? version < asked.oldest : version <= spans.back().version)
      return wrong(fmt::format("span {} is of version {}, expected {} {}", spans.size(),
                               version.to_string(), spans.empty() ? "at least" : "more than",
                               (spans.empty() ? asked.oldest : spans.back().version).to_string()));
    spans.push_back({.begin = end, .end = static_cast<std::uint32_t>(to), .version = version});
    end = spans.back().end;
  }
  if (end != asked.tokens)
    return wrong(fmt::format("its spans end at token {} of {}", end, asked.tokens));
  return spans;
}

}  // namespace

Result<Answer> read_answer(std::string_view body, const Asked& asked) {
  try {
    const json answer = json::parse(body);
    const json& choices = answer.at("choices");
    if (choices.size() != 1) return wrong(counted(choices.size(), "choice") + ", expected 1");
    const json& choice = choices.at(0);
    const std::size_t tokens = choice.at("token_ids").size();
    const json& reason = choice.at("finish_reason");
    if (reason != "length" || tokens != asked.tokens)
      return wrong(
          fmt::format("it has ended after {} with finish_reason {}, expected {} and "
                      "\"length\"",
                      counted(tokens, "token"), reason.dump(), asked.tokens));
    auto spans = WSYNC_TRY(read_spans(choice.at("weight_versions"), asked));
    Answer read{
        .tokens = choice.at("token_ids").get<std::vector<std::uint32_t>>(),
        .log_probabilities = choice.at("logprobs").at("token_logprobs").get<std::vector<double>>(),
        .spans = std::move(spans)};
    if (read.log_probabilities.size() != tokens)
      return wrong(fmt::format("it has log-probabilities of {} for {}",
                               read.log_probabilities.size(), counted(tokens, "token")));
    return read;
  } catch (const json::exception& error) {
    return wrong(fmt::format("it is no completion with token_ids, logprobs and weight_versions: {}",
                             error.what()));
  }
}

}  // namespace wsync::soak
