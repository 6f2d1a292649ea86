#include "shared/config/binder.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "shared/config/units.h"

namespace wsync::config {

std::string environment_name(std::string_view key) {
  std::string name = "WSYNC_";
  for (const char c : key)
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

Binder::Binder(std::vector<Entry> file, const std::vector<std::string>& set,
               const std::map<std::string, std::string>& environment)
    : environment_(environment) {
  for (Entry& entry : file) {
    order_.push_back(entry);
    given_[entry.key] = std::move(entry);
  }
  for (const std::string& text : set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      if (!error_)
        error_ = Error(ErrorCode::kInvalidInput,
                       fmt::format("--set {}: expected key=value, such as log.level=debug", text));
      continue;
    }
    Entry entry{.key = text.substr(0, equals), .value = text.substr(equals + 1), .where = "--set"};
    order_.push_back(entry);
    from_set_.push_back(entry.key);
    given_[entry.key] = std::move(entry);
  }
}

std::optional<Entry> Binder::take(std::string_view key) {
  if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) keys_.emplace_back(key);
  const bool set = std::find(from_set_.begin(), from_set_.end(), key) != from_set_.end();
  const std::string name = environment_name(key);
  if (const auto found = environment_.find(name); !set && found != environment_.end())
    return Entry{.key = std::string(key), .value = found->second, .where = "environment " + name};
  const auto found = given_.find(key);
  return found == given_.end() ? std::nullopt : std::optional<Entry>(found->second);
}

void Binder::refuse(const Entry& entry, std::string_view sentence) {
  if (error_) return;
  error_ =
      Error(ErrorCode::kInvalidInput, fmt::format("{}: {}: {}", entry.where, entry.key, sentence));
}

void Binder::refuse(std::string_view key, std::string_view sentence) {
  const std::optional<Entry> entry = take(key);
  refuse(entry.value_or(Entry{.key = std::string(key), .value = "", .where = "default"}), sentence);
}

void Binder::text(std::string_view key, std::string& out) {
  const std::optional<Entry> entry = take(key);
  if (!entry) return;
  if (std::any_of(entry->value.begin(), entry->value.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    refuse(*entry, "expected text without control characters");
    return;
  }
  out = entry->value;
}

void Binder::flag(std::string_view key, bool& out) {
  const std::optional<Entry> entry = take(key);
  if (!entry) return;
  if (entry->value == "true" || entry->value == "false")
    out = entry->value == "true";
  else
    refuse(*entry, fmt::format("expected true or false, found '{}'", entry->value));
}

void Binder::size(std::string_view key, std::uint64_t& out, Range<std::uint64_t> range) {
  const std::optional<Entry> entry = take(key);
  if (!entry) return;
  const Result<std::uint64_t> value = parse_size(entry->value);
  if (!value)
    refuse(*entry, value.error().message());
  else if (*value < range.min || *value > range.max)
    refuse(*entry, fmt::format("expected {} to {}, found {}", format_size(range.min),
                               format_size(range.max), entry->value));
  else
    out = *value;
}

void Binder::size_or_auto(std::string_view key, std::uint64_t& out, Range<std::uint64_t> range) {
  const std::optional<Entry> entry = take(key);
  if (entry && entry->value == "auto")
    out = 0;
  else
    size(key, out, range);
}

void Binder::duration(std::string_view key, std::chrono::milliseconds& out,
                      Range<std::chrono::milliseconds> range) {
  const std::optional<Entry> entry = take(key);
  if (!entry) return;
  const Result<std::chrono::milliseconds> value = parse_duration(entry->value);
  if (!value)
    refuse(*entry, value.error().message());
  else if (*value < range.min || *value > range.max)
    refuse(*entry, fmt::format("expected {} to {}, found {}", format_duration(range.min),
                               format_duration(range.max), entry->value));
  else
    out = *value;
}

void Binder::count(std::string_view key, std::uint32_t& out, Range<std::uint32_t> range) {
  const std::optional<Entry> entry = take(key);
  if (!entry) return;
  const std::string& text = entry->value;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < range.min ||
      value > range.max)
    refuse(*entry, fmt::format("expected a whole number from {} to {}, found '{}'", range.min,
                               range.max, text));
  else
    out = value;
}

Result<> Binder::finish() const {
  for (const Entry& entry : order_) {
    if (std::find(keys_.begin(), keys_.end(), entry.key) != keys_.end()) continue;
    const std::string nearest = nearest_name(entry.key, keys_);
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {}: unknown key{}", entry.where, entry.key,
                            nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  }
  if (error_) return fail(*error_);
  return {};
}

}  // namespace wsync::config
