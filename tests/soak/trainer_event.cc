#include "tests/soak/trainer_event.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "shared/base/format.h"

namespace wsync::soak {
namespace {

using nlohmann::json;

// Reads the members of one event and keeps the first error. Values that are read after an error
// have no meaning.
class EventMembers {
 public:
  explicit EventMembers(const json& event) : event_(event) {}

  std::uint64_t count(const char* name, std::uint64_t min,
                      std::uint64_t max = std::numeric_limits<std::uint64_t>::max()) {
    return count_of(name, member(name), min, max);
  }
  std::vector<std::uint64_t> counts(const char* name, std::uint64_t min, std::uint64_t max) {
    const json& list = member(name);
    std::vector<std::uint64_t> found;
    if (!list.is_array()) refuse(name, list, "a list of numbers");
    for (const json& value : list.is_array() ? list : json::array())
      found.push_back(count_of(name, value, min, max));
    return found;
  }
  double number(const char* name) {
    const json& value = member(name);
    if (value.is_number()) return value.get<double>();
    refuse(name, value, "a number");
    return 0;
  }
  std::string text(const char* name) {
    const json& value = member(name);
    if (value.is_string()) return value.get<std::string>();
    refuse(name, value, "text");
    return "";
  }
  std::string one_of(const char* name, std::span<const std::string_view> words) {
    const json& value = member(name);
    if (value.is_string() && std::ranges::find(words, value.get<std::string>()) != words.end())
      return value.get<std::string>();
    refuse(name, value, fmt::format("one of {}", fmt::join(words, ", ")));
    return "";
  }

  // Returns the event unless one of its members was invalid.
  template <class Event>
  Result<TrainerEvent> done(Event event) const {
    if (fault_) return fail(ErrorCode::kInvalidInput, *fault_);
    return TrainerEvent(std::move(event));
  }

 private:
  const json& member(const char* name) const {
    static const json kNone;
    const auto found = event_.find(name);
    return found == event_.end() ? kNone : *found;
  }
  std::uint64_t count_of(const char* name, const json& value, std::uint64_t min,
                         std::uint64_t max) {
    if (value.is_number_unsigned()) {
      const auto number = value.get<std::uint64_t>();
      if (number >= min && number <= max) return number;
    }
    refuse(name, value, fmt::format("whole numbers from {} to {}", min, max));
    return min;
  }
  void refuse(const char* name, const json& value, std::string_view expected) {
    if (!fault_)
      fault_ =
          fmt::format("its '{}' is {}, expected {}", name,
                      value.is_null() ? "null or not there"
                                      : value.dump(-1, ' ', false, json::error_handler_t::replace),
                      expected);
  }

  const json& event_;
  std::optional<std::string> fault_;
};

Result<TrainerEvent> ranks_event(EventMembers& members, std::uint32_t ranks) {
  RanksEvent event{.generation = members.count("generation", 0)};
  for (const std::uint64_t pid : members.counts("pids", 1, std::numeric_limits<pid_t>::max()))
    event.pids.push_back(static_cast<pid_t>(pid));
  auto done = members.done(event);
  if (done && event.pids.size() != ranks)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("its 'pids' are {}, expected one for each of {}", event.pids.size(),
                            counted(ranks, "rank")));
  return done;
}

Result<TrainerEvent> recovered_event(EventMembers& members, std::uint32_t ranks) {
  RecoveredEvent event{.step = members.count("step", 1),
                       .from = members.one_of("from", kSources),
                       .seconds = members.number("seconds"),
                       .bytes = members.count("bytes", 0)};
  for (const std::uint64_t rank : members.counts("replaced", 0, ranks - 1))
    event.replaced.push_back(static_cast<std::uint32_t>(rank));
  return members.done(std::move(event));
}

}  // namespace

Result<TrainerEvent> parse_trainer_event(std::string_view line, std::uint32_t ranks) {
  const json said = json::parse(line, nullptr, false);
  if (!said.is_object()) return fail(ErrorCode::kInvalidInput, "it is no JSON object");
  if (const auto error = said.find("error"); error != said.end()) {
    EventMembers members(*error);
    return members.done(FailedEvent{.message = members.text("message")});
  }
  if (said.contains("result")) return OtherEvent{};
  EventMembers members(said);
  const std::string kind = members.text("event");
  if (kind == "step")
    return members.done(StepEvent{.step = members.count("step", 1),
                                  .loss = members.number("loss"),
                                  .gradient_norm = members.number("gradient_norm")});
  if (kind == "ranks") return ranks_event(members, ranks);
  if (kind == "lost")
    return members.done(
        LostEvent{.rank = static_cast<std::uint32_t>(members.count("rank", 0, ranks - 1)),
                  .step = members.count("step", 0),
                  .phase = members.one_of("phase", kPhases),
                  .why = members.text("why")});
  if (kind == "recovered") return recovered_event(members, ranks);
  if (kind == "saved")
    return members.done(
        SavedEvent{.step = members.count("step", 0), .directory = members.text("directory")});
  return members.done(OtherEvent{});
}

}  // namespace wsync::soak
