#include "inference_side/reference_engine/http/control_routes.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <utility>

#include "inference_side/reference_engine/http/openai.h"
#include "shared/base/format.h"
#include "shared/weights/json_text.h"

namespace wsync::engine::http {
namespace {

using generation::GenerationService;
using nlohmann::json;

constexpr std::size_t kMaxLabelBodyBytes = 1024 + 6 * kMaxLabelBytes;  // each escaped
constexpr std::size_t kMaxAbortBodyBytes = kMaxAbortIds * (kMaxRequestIdBytes + 16);

tl::unexpected<Error> wrong_parameter(std::string_view name, const std::string& found,
                                      std::string_view expected) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: it is {}; expected {}", name, quote_text(found), expected));
}

// The query's value of this name; none when it is not there.
std::optional<std::string> parameter(const Exchange& exchange, const std::string& name) {
  return exchange.request.parameter(name);
}

Result<std::optional<bool>> read_yes(const Exchange& exchange, const std::string& name) {
  const auto text = parameter(exchange, name);
  if (!text) return std::nullopt;
  if (*text == "true" || *text == "True" || *text == "1") return true;
  if (*text == "false" || *text == "False" || *text == "0") return false;
  return wrong_parameter(name, *text, "true or false");
}

Result<PauseMode> read_mode(const Exchange& exchange) {
  // How clients asked before there were modes.
  const auto waits = WSYNC_TRY(read_yes(exchange, "wait_for_inflight_requests"));
  const auto text = parameter(exchange, "mode");
  if (!text) return waits.value_or(false) ? PauseMode::kWait : PauseMode::kAbort;
  if (*text == "abort") return PauseMode::kAbort;
  if (*text == "wait") return PauseMode::kWait;
  if (*text == "keep") return PauseMode::kKeep;
  return wrong_parameter("mode", *text, "abort, wait or keep");
}

Result<std::chrono::milliseconds> read_timeout(const Exchange& exchange) {
  const auto text = parameter(exchange, "timeout_s");
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

// The body as an object; an empty one when there is none.
Result<json> read_object(const Exchange& exchange, std::size_t limit) {
  if (exchange.body.empty()) return json::object();
  if (exchange.body.size() > limit)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the body has {} bytes; at most {} are allowed here",
                            exchange.body.size(), limit));
  json found = json::parse(exchange.body, nullptr, false);
  if (!found.is_object())
    return fail(ErrorCode::kInvalidInput, "the body is not a JSON object; expected one");
  return found;
}

Result<std::string> read_label(const Exchange& exchange) {
  const auto body = WSYNC_TRY(read_object(exchange, kMaxLabelBodyBytes));
  const auto label = body.find("new_version");
  if (label == body.end() || !label->is_string())
    return fail(ErrorCode::kInvalidInput,
                R"(new_version: it is not there or not text; expected {"new_version": "..."})");
  auto text = label->get<std::string>();
  if (text.empty() || text.size() > kMaxLabelBytes)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("new_version: it has {} bytes; expected 1 to {}", text.size(), kMaxLabelBytes));
  return text;
}

// Names to abort; none means all.
Result<std::vector<std::string>> read_ids(const Exchange& exchange) {
  const auto body = WSYNC_TRY(read_object(exchange, kMaxAbortBodyBytes));
  if (body.empty()) return std::vector<std::string>{};
  const auto ids = body.find("request_ids");
  const auto is_text = [](const json& id) { return id.is_string(); };
  if (ids == body.end() || !ids->is_array() || ids->size() > kMaxAbortIds ||
      !std::all_of(ids->begin(), ids->end(), is_text))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("request_ids: expected a list of ids, each text, and {} at most; an "
                            "empty list or no body means all requests",
                            kMaxAbortIds));
  return ids->get<std::vector<std::string>>();
}

void answer_models(GenerationService& service, std::int64_t since, Exchange& exchange) {
  const generation::ServiceInfo info = service.info();
  const json model = {{"id", info.model},
                      {"object", "model"},
                      {"created", since},
                      {"owned_by", "wsync"},
                      {"max_model_len", info.max_positions}};
  reply(exchange, {{"object", "list"}, {"data", json::array({model})}});
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
  reply(exchange, {{"weight_version", info.version_label.empty() ? version : info.version_label},
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

void answer_label(GenerationService& service, Exchange& exchange) {
  auto label = read_label(exchange);
  if (!label) return reply_error(exchange, label.error());
  const json told = {{"weight_version", *label}};
  service.set_version_label(std::move(*label));
  reply(exchange, told);
}

void answer_abort(GenerationService& service, Completions& completions, Exchange& exchange) {
  const auto ids = read_ids(exchange);
  if (!ids) return reply_error(exchange, ids.error());
  std::vector<std::string> unknown;
  if (ids->empty())
    service.abort({});
  else
    unknown = completions.abort(*ids);
  reply(exchange, {{"unknown", unknown}});
}

}  // namespace

std::vector<Route> control_routes(GenerationService& service, Completions& completions,
                                  std::uint32_t world_size) {
  const std::int64_t since = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
  return {
      {"GET", "/v1/models", [&service, since](Exchange& e) { answer_models(service, since, e); }},
      {"GET", "/health", [](Exchange& e) { reply(e, json::object()); }},
      {"GET", "/ready", [&service](Exchange& e) { answer_ready(service, e); }},
      {"GET", "/is_paused",
       [&service](Exchange& e) { reply(e, {{"is_paused", service.info().paused}}); }},
      {"GET", "/weight_info", [&service](Exchange& e) { answer_weights(service, e); }},
      {"GET", "/get_world_size",
       [world_size](Exchange& e) { reply(e, {{"world_size", world_size}}); }},
      {"GET", "/stats", [&service](Exchange& e) { answer_stats(service, e); }},
      {"POST", "/pause", [&service](Exchange& e) { answer_pause(service, e); }},
      {"POST", "/resume",
       [&service](Exchange& e) {
         service.resume();
         reply(e, {{"status", "resumed"}});
       }},
      {"POST", "/abort_requests",
       [&service, &completions](Exchange& e) { answer_abort(service, completions, e); }},
      {"POST", "/reset_prefix_cache",
       [&service](Exchange& e) { reply(e, {{"success", service.reset_prefix_cache()}}); }},
      {"POST", "/update_weight_version", [&service](Exchange& e) { answer_label(service, e); }},
  };
}

}  // namespace wsync::engine::http
