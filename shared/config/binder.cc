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
               const std::map<std::string, std::string>& environment, const std::string& set_name)
    : environment_(environment) {
  for (Entry& entry : file) {
    order_.push_back(entry);
    if (!entry.section) given_[entry.key] = std::move(entry);
  }
  for (const std::string& text : set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      if (!error_)
        error_ = Error(
            ErrorCode::kInvalidInput,
            fmt::format("{} {}: expected key=value, such as log.level=debug", set_name, text));
      continue;
    }
    Entry entry{.key = text.substr(0, equals), .value = text.substr(equals + 1), .where = set_name};
    order_.push_back(entry);
    from_set_.push_back(entry.key);
    given_[entry.key] = std::move(entry);
  }
}

Binder::Section::Section(Binder& binder, std::string_view name, bool on)
    : binder_(binder), outer_prefix_(binder.prefix_.size()), outer_on_(binder.on_) {
  binder_.prefix_ += fmt::format("{}.", name);
  binder_.on_ = binder_.on_ && on;
}
Binder::Section::~Section() {
  binder_.prefix_.resize(outer_prefix_);
  binder_.on_ = outer_on_;
}

std::optional<Entry> Binder::take(std::string_view short_key) {
  const std::string key = prefix_ + std::string(short_key);
  if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) keys_.push_back(key);
  const bool set = std::find(from_set_.begin(), from_set_.end(), key) != from_set_.end();
  const std::string name = environment_name(key);
  if (const auto found = environment_.find(name); !set && found != environment_.end())
    return Entry{.key = key, .value = found->second, .where = "environment " + name};
  const auto found = given_.find(key);
  return found == given_.end() ? std::nullopt : std::optional<Entry>(found->second);
}

bool Binder::has_section(std::string_view name) const {
  const std::string prefix = fmt::format("{}{}.", prefix_, name);
  const std::string variables = environment_name(prefix);
  return std::any_of(order_.begin(), order_.end(),
                     [&](const Entry& entry) {
                       return entry.key.starts_with(prefix) ||
                              (entry.section && entry.key + "." == prefix);
                     }) ||
         std::any_of(environment_.begin(), environment_.end(),
                     [&](const auto& variable) { return variable.first.starts_with(variables); });
}

void Binder::refuse(const Entry& entry, std::string_view sentence) {
  if (error_ || !on_) return;
  error_ =
      Error(ErrorCode::kInvalidInput, fmt::format("{}: {}: {}", entry.where, entry.key, sentence));
}

void Binder::refuse(std::string_view key, std::string_view sentence) {
  const std::optional<Entry> entry = take(key);
  refuse(entry.value_or(Entry{.key = prefix_ + std::string(key), .value = "", .where = "default"}),
         sentence);
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

void Binder::count_or_auto(std::string_view key, std::optional<std::uint32_t>& out,
                           Range<std::uint32_t> range) {
  const std::optional<Entry> entry = take(key);
  if (!entry) return;
  out.reset();
  if (entry->value == "auto") return;
  std::uint32_t value = 0;
  count(key, value, range);
  out = value;
}

void Binder::number(std::string_view key, double& out, Range<double> range) {
  const std::optional<Entry> entry = take(key);
  if (!entry) return;
  const std::string& text = entry->value;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() ||
      !(value >= range.min && value <= range.max))
    refuse(*entry,
           fmt::format("expected a number from {} to {}, found '{}'", range.min, range.max, text));
  else
    out = value;
}

void Binder::paths(std::string_view key, std::vector<std::string>& out) { split(key, ":", out); }

void Binder::words(std::string_view key, std::vector<std::string>& out) { split(key, ", ", out); }

void Binder::split(std::string_view key, std::string_view separators,
                   std::vector<std::string>& out) {
  std::string all;
  text(key, all);
  out.clear();
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find_first_of(separators, at), all.size());
    if (end > at) out.push_back(all.substr(at, end - at));
    at = end + 1;
  }
}

bool Binder::known(const Entry& entry) const {
  return std::any_of(keys_.begin(), keys_.end(), [&](const std::string& key) {
    return entry.section ? key.starts_with(entry.key + ".") : key == entry.key;
  });
}

Result<> Binder::finish() const {
  for (const Entry& entry : order_) {
    if (known(entry)) continue;
    const auto below = std::find_if(keys_.begin(), keys_.end(), [&](const std::string& key) {
      return key.starts_with(entry.key + ".");
    });
    if (below != keys_.end())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: {}: expected a section with keys such as {}, found '{}'",
                              entry.where, entry.key, *below, entry.value));
    const std::string nearest = nearest_name(entry.key, keys_);
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {}: unknown {}{}", entry.where, entry.key,
                            entry.section ? "section" : "key",
                            nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
  }
  if (error_) return fail(*error_);
  return {};
}

}  // namespace wsync::config
