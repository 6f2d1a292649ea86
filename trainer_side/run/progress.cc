#include "trainer_side/run/progress.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/command/context.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr const char* kFailPointVariable = "WSYNC_FAIL_POINT";
constexpr std::array<std::string_view, 8> kFailPoints{
    "forward",      "backward", "before_barrier", "after_barrier", "optimizer",
    "after_commit", "end",      "last_barrier"};

// Atomic: a signal can arrive on any thread, and the thread that runs the steps reads it.
std::atomic<int> stop_signals = 0;
static_assert(std::atomic<int>::is_always_lock_free, "what a signal handler may touch");

}  // namespace

void stop_after_step() {
  struct sigaction action{};
  action.sa_flags = SA_RESTART;  // a signal must not interrupt a write to a file
  action.sa_handler = [](int) {
    if (stop_signals.fetch_add(1) > 0) ::_exit(kExitInterrupted);
  };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool asked_to_stop() noexcept { return stop_signals > 0; }

Result<std::optional<RankFailPoint>> fail_point_of(std::uint32_t ranks) {
  const char* variable = std::getenv(kFailPointVariable);
  if (variable == nullptr) return std::optional<RankFailPoint>();
  const std::string_view text = variable;
  const std::size_t first = text.find(':');
  const std::size_t second = first == text.npos ? text.npos : text.find(':', first + 1);
  const auto is_number = [](std::string_view part, auto& number) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    return error == std::errc() && end == part.data() + part.size();
  };
  RankFailPoint point;
  if (second != text.npos) point.name = text.substr(first + 1, second - first - 1);
  const bool is_one =
      second != text.npos && is_number(text.substr(0, first), point.rank) && point.rank < ranks &&
      is_number(text.substr(second + 1), point.hits) && point.hits > 0 &&
      std::find(kFailPoints.begin(), kFailPoints.end(), point.name) != kFailPoints.end();
  if (is_one) return std::optional(std::move(point));
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: expected RANK:POINT:HITS with a rank below {}, a point of {}, and "
                          "hits from 1; found '{}'",
                          kFailPointVariable, ranks, fmt::join(kFailPoints, ", "), text));
}

double since(TimePoint begin) { return seconds(now() - begin); }

json step_event(std::uint64_t step, const training::StepResult& result, double taken) {
  return {{"event", "step"},
          {"step", step},
          {"loss", result.loss},
          {"gradient_norm", result.gradient_norm},
          {"learning_rate", result.learning_rate},
          {"seconds", taken}};
}

json begin_event(const config::TrainConfig& config, const training::TrainingOptions& options,
                 const RunBegin& begin, bool sequential) {
  std::uint64_t parameters = 0;
  for (const moe::Parameter& parameter : moe::all_parameters(options.spec))
    parameters += parameter.elements();
  return {{"event", "begin"},
          {"ranks", sequential ? 1 : options.sizes.ranks()},
          {"sequential", sequential},
          {"pp", options.sizes.pp},
          {"vpp", options.sizes.vpp},
          {"ep", options.sizes.ep},
          {"dp", options.sizes.dp},
          {"parameters", parameters},
          {"text_bytes", begin.text ? begin.text->bytes() : 0},
          {"tokens_of_step", options.tokens_of_step()},
          {"first_step", begin.facts.step + 1},
          {"steps", config.steps}};
}

}  // namespace wsync::cli
