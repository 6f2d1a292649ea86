#include "bench/peers/member_line.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using MemberJson = nlohmann::json;

// The part of a line that fits in an error message.
std::string shown(std::string_view line) {
  std::string text(line.substr(0, 200));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  return text;
}

auto refused(std::string_view line, std::string_view expected) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a process sent '{}', expected {}", shown(line), expected));
}

// Returns the field if it is a finite number and not negative.
std::optional<double> number_in(const MemberJson& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  const auto value = found->get<double>();
  if (!std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

std::int64_t nanoseconds_in(const MemberJson& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

}  // namespace

Result<MemberLine> parse_member_line(std::string_view line, unsigned ranks) {
  if (line.size() > kMemberLineBytesMax)
    return refused(line,
                   fmt::format("at most {} bytes, found {}", kMemberLineBytesMax, line.size()));
  const MemberJson object = MemberJson::parse(line, nullptr, false);
  if (!object.is_object()) return refused(line, "a JSON object");
  MemberLine said;
  const auto rank = number_in(object, "rank");
  if (!rank || *rank >= ranks || *rank != std::floor(*rank))
    return refused(line, fmt::format("a \"rank\" from 0 to {}", ranks - 1));
  said.rank = static_cast<unsigned>(*rank);
  const auto event = object.find("event");
  if (event == object.end() || !event->is_string())
    return refused(line, "an \"event\": ready, done or failed");
  if (*event == "ready") return said;
  if (*event == "failed") {
    said.event = MemberEvent::kFailed;
    const auto why = object.find("why");
    said.why = why != object.end() && why->is_string() ? shown(why->get<std::string>())
                                                       : std::string("the process gave no reason");
    return said;
  }
  if (*event != "done") return refused(line, "an \"event\": ready, done or failed");
  said.event = MemberEvent::kDone;
  const auto digest = object.find("digest");
  if (digest == object.end() || !digest->is_string())
    return refused(line, "the \"digest\" of its bytes");
  const auto parsed = Digest::parse(digest->get<std::string>());
  if (!parsed) return refused(line, "a \"digest\" of 32 hexadecimal digits");
  said.digest = *parsed;
  said.begin_ns = nanoseconds_in(object, "begin_ns");
  said.end_ns = nanoseconds_in(object, "end_ns");
  return said;
}

std::string member_text(const MemberLine& line) {
  MemberJson object = {{"rank", line.rank}};
  switch (line.event) {
    case MemberEvent::kReady:
      object["event"] = "ready";
      break;
    case MemberEvent::kDone:
      object["event"] = "done";
      object["digest"] = line.digest.to_string();
      object["begin_ns"] = line.begin_ns;
      object["end_ns"] = line.end_ns;
      break;
    case MemberEvent::kFailed:
      object["event"] = "failed";
      object["why"] = line.why;
      break;
  }
  return object.dump(-1, ' ', false, MemberJson::error_handler_t::replace);
}

}  // namespace wsync::bench
