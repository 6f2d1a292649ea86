#include "bench/recovery/answer.h"

#include <nlohmann/json.hpp>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

tl::unexpected<Error> wrong(std::string why) {
  return fail(ErrorCode::kInvalidInput, std::move(why));
}

Result<std::vector<Version>> versions_of_spans(const json& spans, const Asked& asked) {
  std::vector<Version> versions;
  std::uint64_t end = 0;
  for (const json& span : spans) {
    const auto from = span.at("start").get<std::uint64_t>();
    const auto to = span.at("end").get<std::uint64_t>();
    const auto version = Version::parse(span.at("version").get_ref<const std::string&>());
    if (!version) return fail(version.error());
    if (from != end || to <= from)
      return wrong(fmt::format("span {} has tokens {} to {}, expected some from {} on",
                               versions.size(), from, to, end));
    if (versions.empty() ? *version < asked.oldest : *version <= versions.back())
      return wrong(fmt::format("span {} is of version {}, expected {} {}", versions.size(),
                               version->to_string(), versions.empty() ? "at least" : "more than",
                               (versions.empty() ? asked.oldest : versions.back()).to_string()));
    versions.push_back(*version);
    end = to;
  }
  if (end != asked.tokens)
    return wrong(fmt::format("its spans end at token {} of {}", end, asked.tokens));
  return versions;
}

}  // namespace

Result<std::vector<Version>> versions_of_answer(std::string_view body, const Asked& asked) {
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
    return versions_of_spans(choice.at("weight_versions"), asked);
  } catch (const json::exception& error) {
    return wrong(
        fmt::format("it is no completion with token_ids and weight_versions: {}", error.what()));
  }
}

}  // namespace wsync::bench
