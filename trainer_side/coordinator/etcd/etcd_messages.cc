#include "trainer_side/coordinator/etcd/etcd_messages.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "shared/base/base64.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/weights/json_text.h"

namespace wsync::coordinator::etcd {
namespace {

using nlohmann::json;

// Answers are at most a few levels deep.
constexpr int kDepthMax = 8;

std::string key_text(std::string_view key) {
  return base64(std::as_bytes(std::span(key.data(), key.size())));
}

tl::unexpected<Error> unclear(std::string_view what) {
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("etcd's answer is not understood: {}; is this the address of etcd, release "
                  "3.4 or later?",
                  what));
}

Result<json> parse_object(std::string_view body) {
  if (!check_json_text(std::as_bytes(std::span(body.data(), body.size()))))
    return unclear("it is not JSON");
  const auto keep = [](int depth, json::parse_event_t, json&) { return depth <= kDepthMax; };
  json answer = json::parse(body.begin(), body.end(), keep, false);
  if (answer.is_discarded() || !answer.is_object())
    return unclear(fmt::format("{} is no JSON object", quote_text(body.substr(0, 80))));
  return answer;
}

const json* field(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// A 64-bit number is a text; a field with the value 0 is left out.
template <class T>
std::optional<T> number(const json& object, const char* name) {
  const json* found = field(object, name);
  if (found == nullptr) return T{0};
  if (found->is_number_integer()) {
    if (found->is_number_unsigned() || std::is_signed_v<T>) return found->get<T>();
    return std::nullopt;
  }
  if (!found->is_string()) return std::nullopt;
  const auto& text = found->get_ref<const std::string&>();
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<KeyValue> key_value(const json& range) {
  const json* list = field(range, "kvs");
  if (list == nullptr) return KeyValue{};
  if (!list->is_array() || list->size() > 1) return unclear("`kvs` has not the one key asked for");
  if (list->empty()) return KeyValue{};
  const json& entry = list->front();
  const auto revision = number<std::uint64_t>(entry, "mod_revision");
  if (!revision || *revision == 0) return unclear("the key has no `mod_revision`");
  KeyValue found{.revision = *revision, .value = {}};
  const json* value = field(entry, "value");
  if (value == nullptr) return found;  // an empty value is left out
  auto bytes =
      value->is_string() ? decode_base64(value->get_ref<const std::string&>()) : std::nullopt;
  if (!bytes) return unclear("the `value` of the key is not base64");
  found.value = std::move(*bytes);
  return found;
}

// Whether a status of gRPC (https://grpc.io/docs/guides/status-codes/) says that the request was
// refused before anything was done. "Unavailable" does not: etcd also says it when a request has
// taken too long, or when its leader has changed meanwhile. Nor does "resource exhausted".
bool is_refusal(std::int64_t code) {
  constexpr std::int64_t kInvalidArgument = 3;
  constexpr std::int64_t kNotFound = 5;
  constexpr std::int64_t kPermissionDenied = 7;
  constexpr std::int64_t kFailedPrecondition = 9;
  constexpr std::int64_t kUnimplemented = 12;
  constexpr std::int64_t kUnauthenticated = 16;
  return code == kInvalidArgument || code == kNotFound || code == kPermissionDenied ||
         code == kFailedPrecondition || code == kUnimplemented || code == kUnauthenticated;
}

}  // namespace

std::string range_request(std::string_view key) { return json{{"key", key_text(key)}}.dump(); }

Result<KeyValue> parse_range(std::string_view body) {
  const json answer = WSYNC_TRY(parse_object(body));
  if (field(answer, "header") == nullptr) return unclear("it has no `header`");
  return key_value(answer);
}

std::string put_request(std::string_view key, std::uint64_t revision,
                        std::span<const std::byte> value, std::int64_t lease) {
  const std::string name = key_text(key);
  json put{{"key", name}, {"value", base64(value)}};
  if (lease != 0) put["lease"] = std::to_string(lease);
  return json{{"compare", json::array({{{"key", name},
                                        {"target", "MOD"},
                                        {"result", "EQUAL"},
                                        {"mod_revision", std::to_string(revision)}}})},
              {"success", json::array({{{"request_put", std::move(put)}}})},
              {"failure", json::array({{{"request_range", {{"key", name}}}}})}}
      .dump();
}

Result<PutAnswer> parse_put(std::string_view body) {
  const json answer = WSYNC_TRY(parse_object(body));
  const json* header = field(answer, "header");
  const auto revision =
      header == nullptr ? std::nullopt : number<std::uint64_t>(*header, "revision");
  if (!revision || *revision == 0) return unclear("it has no revision");
  const json* list = field(answer, "responses");
  if (list == nullptr || !list->is_array() || list->size() != 1)
    return unclear("it has not one response");
  const json* succeeded = field(answer, "succeeded");
  if (succeeded != nullptr && !succeeded->is_boolean()) return unclear("`succeeded` is no truth");
  if (succeeded != nullptr && succeeded->get<bool>()) {
    if (field(list->front(), "response_put") == nullptr)
      return unclear("it has no response to the put");
    return PutAnswer{.is_stored = true, .revision = *revision, .found = {}};
  }
  const json* range = field(list->front(), "response_range");
  if (range == nullptr) return unclear("it has no response to the read");
  return PutAnswer{.is_stored = false, .revision = 0, .found = WSYNC_TRY(key_value(*range))};
}

std::string grant_request(std::chrono::seconds time) {
  return json{{"TTL", std::to_string(time.count())}}.dump();
}

Result<std::int64_t> parse_grant(std::string_view body) {
  const json answer = WSYNC_TRY(parse_object(body));
  const auto lease = number<std::int64_t>(answer, "ID");
  if (!lease || *lease == 0) return unclear("the lease has no `ID`");
  return *lease;
}

std::string lease_request(std::int64_t lease) { return json{{"ID", std::to_string(lease)}}.dump(); }

Result<bool> parse_keep_alive(std::string_view body) {
  const json answer = WSYNC_TRY(parse_object(body));
  const json* result = field(answer, "result");
  if (result == nullptr) return unclear("it has no `result`");
  // The time of a lease that has ended is 0, which is left out.
  const auto time = number<std::int64_t>(*result, "TTL");
  if (!time) return unclear("`TTL` is no number");
  return *time > 0;
}

Refusal parse_refusal(int status, std::string_view body) {
  const Result<json> answer = parse_object(body);
  // etcd 3.6 has no `error` any more.
  const json* error = answer ? field(*answer, "error") : nullptr;
  if (error == nullptr) error = answer ? field(*answer, "message") : nullptr;
  const json* named = answer ? field(*answer, "code") : nullptr;
  const std::int64_t code =
      named == nullptr ? -1 : number<std::int64_t>(*answer, "code").value_or(-1);
  if (error == nullptr || !error->is_string() || code < 0)
    // Not etcd's own words: a proxy between, or another server. It proves nothing about what etcd
    // has done with the request.
    return {.text = fmt::format("HTTP status {}: {}", status, quote_text(body.substr(0, 200))),
            .is_final = status >= 400 && status < 500};
  constexpr std::int64_t kExhausted = 8;
  const bool is_refused =
      is_refusal(code) || (code == kExhausted && planted("full_store_has_stored_nothing"));
  // Of a store that is full, which etcd finds out after it has applied the transaction, or of a
  // member that has too much to do.
  return {.text = quote_text(error->get_ref<const std::string&>()),
          .may_be_done = !is_refused,
          .is_settled = code == kExhausted,
          .is_final = is_refused};
}

}  // namespace wsync::coordinator::etcd
