#include "inference_side/reference_engine/http/control_routes.h"

#include <charconv>
#include <chrono>
#include <optional>

#include "shared/base/format.h"
#include "shared/weights/json_text.h"

namespace wsync::engine::http {
namespace {

using generation::GenerationService;
using nlohmann::json;

tl::unexpected<Error> wrong_parameter(std::string_view name, const std::string& found,
                                      std::string_view expected) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: it is {}; expected {}", name, quote_text(found), expected));
}

Result<std::optional<bool>> read_yes(const Exchange& exchange, const std::string& name) {
  const auto text = exchange.request.parameter(name);
  if (!text) return std::nullopt;
  if (*text == "true" || *text == "True" || *text == "1") return true;
  if (*text == "false" || *text == "False" || *text == "0") return false;
  return wrong_parameter(name, *text, "true or false");
}

Result<PauseMode> read_mode(const Exchange& exchange) {
  const auto text = exchange.request.parameter("mode");
  if (!text || *text == "abort") return PauseMode::kAbort;
  if (*text == "wait") return PauseMode::kWait;
  if (*text == "keep") return PauseMode::kKeep;
  return wrong_parameter("mode", *text, "abort, wait or keep");
}

Result<std::chrono::milliseconds> read_timeout(const Exchange& exchange) {
  const auto text = exchange.request.parameter("timeout_s");
  if (!text) return std::chrono::seconds(kPauseSeconds);
  double seconds = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, seconds);
  if (error != std::errc() || stop != end ||
      !(seconds > 0 && seconds <= static_cast<double>(kMaxPauseSeconds)))
    return wrong_parameter("timeout_s", *text,
                           fmt::format("a number above 0 and at most {}", kMaxPauseSeconds));
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

Result<> pause(GenerationService& service, const Exchange& exchange) {
  const auto mode = WSYNC_TRY(read_mode(exchange));
  const auto clear = WSYNC_TRY(read_yes(exchange, "clear_cache"));
  const auto timeout = WSYNC_TRY(read_timeout(exchange));
  return service.pause(mode, clear.value_or(mode != PauseMode::kKeep), timeout);
}

void answer_ready(GenerationService& service, Exchange& exchange) {
  const generation::ServiceInfo info = service.info();
  if (info.serving) return reply(exchange, {{"ready", true}});
  exchange.response.status = 503;
  reply(exchange, {{"ready", false}, {"reason", info.not_serving}});
}

void answer_weights(GenerationService& service, Exchange& exchange) {
  const generation::ServiceInfo info = service.info();
  if (!info.has_weights)
    return reply(
        exchange,
        {{"weight_version", nullptr}, {"version", nullptr}, {"epoch", nullptr}, {"step", nullptr}});
  const std::string version = info.version.to_string();
  reply(exchange, {{"weight_version", version},
                   {"version", version},
                   {"epoch", info.version.epoch},
                   {"step", info.version.step}});
}

void answer_stats(GenerationService& service, Exchange& exchange) {
  const generation::SchedulerStats stats = service.stats();
  reply(exchange, {{"waiting", stats.waiting},
                   {"running", stats.running},
                   {"blocks_used", stats.blocks_used},
                   {"blocks_cached", stats.blocks_cached},
                   {"preempted", stats.preempted},
                   {"prefix_hit_tokens", stats.prefix_hit_tokens},
                   {"prompt_tokens", stats.prompt_tokens},
                   {"generated_tokens", stats.generated_tokens}});
}

void answer_pause(GenerationService& service, Exchange& exchange) {
  if (const auto paused = pause(service, exchange); !paused)
    reply_error(exchange, paused.error());
  else
    reply(exchange, {{"status", "paused"}});
}

}  // namespace

std::vector<Route> control_routes(GenerationService& service) {
  return {
      {"GET", "/health", [](Exchange& e) { reply(e, json::object()); }},
      {"GET", "/ready", [&service](Exchange& e) { answer_ready(service, e); }},
      {"GET", "/is_paused",
       [&service](Exchange& e) { reply(e, {{"is_paused", service.info().paused}}); }},
      {"GET", "/weight_info", [&service](Exchange& e) { answer_weights(service, e); }},
      {"GET", "/stats", [&service](Exchange& e) { answer_stats(service, e); }},
      {"POST", "/pause", [&service](Exchange& e) { answer_pause(service, e); }},
      {"POST", "/resume",
       [&service](Exchange& e) {
         service.resume();
         reply(e, {{"status", "resumed"}});
       }},
      {"POST", "/reset_prefix_cache",
       [&service](Exchange& e) { reply(e, {{"success", service.reset_prefix_cache()}}); }},
  };
}

}  // namespace wsync::engine::http
