#include "bench/harness/read_result.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

tl::unexpected<Error> bad(std::string_view place, std::string_view expected,
                          std::string_view found) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: expected {}, found {}", place, expected, found));
}

// Only printable text is accepted, because escape sequences could control the user's terminal.
bool is_printable(const std::string& text) {
  return std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20U || c == 0x7f; });
}

// Checked before parsing, because deep nesting needs parser memory that the size of the text does
// not bound.
Result<> check_depth(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kResultDepthMax)
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("the JSON is nested deeper than {} levels", kResultDepthMax));
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return {};
}

// A part of the file and its position.
class Place {
 public:
  Place(const json& value, std::string path) : value_(value), path_(std::move(path)) {}

  [[nodiscard]] const json& value() const { return value_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool has(const char* key) const { return value_.contains(key); }

  [[nodiscard]] Result<Place> at(const char* key, json::value_t type) const {
    const std::string path = path_.empty() ? key : fmt::format("{}.{}", path_, key);
    const auto found = value_.find(key);
    if (found == value_.end()) return bad(path, name_of(type), "nothing");
    if (found->type() != type)
      return bad(path, name_of(type), found->is_number() ? found->dump() : found->type_name());
    return Place(*found, path);
  }
  [[nodiscard]] Result<std::string> text(const char* key) const {
    const auto found = WSYNC_TRY(at(key, json::value_t::string));
    auto text = found.value_.get<std::string>();
    if (text.size() > kResultTextBytesMax)
      return bad(found.path_, fmt::format("at most {} bytes", kResultTextBytesMax),
                 fmt::format("{}", text.size()));
    if (!is_printable(text))
      return bad(found.path_, "a printable text of one line", "control characters");
    return text;
  }
  [[nodiscard]] Result<bool> flag(const char* key) const {
    const auto found = WSYNC_TRY(at(key, json::value_t::boolean));
    return found.value_.get<bool>();
  }
  // Accepts integers and floating-point numbers.
  [[nodiscard]] Result<double> number(const char* key) const {
    const std::string path = fmt::format("{}.{}", path_, key);
    const auto found = value_.find(key);
    if (found == value_.end() || !found->is_number())
      return bad(path, "a number", found == value_.end() ? "nothing" : found->type_name());
    return found->get<double>();
  }
  // Returns the elements of a list of objects.
  [[nodiscard]] Result<std::vector<Place>> list(const char* key, std::size_t max) const {
    const auto found = WSYNC_TRY(at(key, json::value_t::array));
    if (found.value_.size() > max)
      return bad(found.path_, fmt::format("at most {}", max),
                 fmt::format("{}", found.value_.size()));
    std::vector<Place> parts;
    for (std::size_t i = 0; i < found.value_.size(); ++i)
      parts.emplace_back(found.value_[i], fmt::format("{}[{}]", found.path_, i));
    return parts;
  }

 private:
  static std::string_view name_of(json::value_t type) {
    switch (type) {
      case json::value_t::object:
        return "an object";
      case json::value_t::array:
        return "a list";
      case json::value_t::string:
        return "a text";
      case json::value_t::boolean:
        return "true or false";
      default:
        return "an integer of at least 0";
    }
  }
  const json& value_;
  std::string path_;
};

// Reads the samples of "value", "ratio" or a baseline's "value".
Result<std::vector<double>> read_samples(const Place& parent, const char* key) {
  const auto holder = WSYNC_TRY(parent.at(key, json::value_t::object));
  const auto list = WSYNC_TRY(holder.list("samples", kResultSamplesMax));
  if (list.empty()) return bad(holder.path() + ".samples", "at least one number", "none");
  std::vector<double> samples;
  for (const Place& one : list) {
    if (!one.value().is_number()) return bad(one.path(), "a number", one.value().type_name());
    const auto value = one.value().get<double>();
    if (!std::isfinite(value)) return bad(one.path(), "a finite number", "infinity or NaN");
    samples.push_back(value);
  }
  return samples;
}

Result<Target> read_target(const Place& parent) {
  const auto object = WSYNC_TRY(parent.at("target", json::value_t::object));
  const auto of = WSYNC_TRY(object.text("of"));
  const auto value = WSYNC_TRY(object.number("value"));
  for (const auto known : {Target::Of::kRatio, Target::Of::kMedian, Target::Of::kMax})
    if (of == target_name(known)) return Target{.of = known, .value = value};
  return bad(object.path() + ".of", "ratio, median or most", "'" + of + "'");
}

Result<CaseResult> read_case(const Place& place) {
  if (!place.value().is_object()) return bad(place.path(), "an object", place.value().type_name());
  CaseResult result;
  for (const auto& [key, to] : {std::pair{"name", &result.name}, std::pair{"what", &result.what},
                                std::pair{"unit", &result.unit}}) {
    *to = WSYNC_TRY(place.text(key));
  }
  const auto higher = WSYNC_TRY(place.flag("higher_is_better"));
  result.higher_is_better = higher;
  auto samples = WSYNC_TRY(read_samples(place, "value"));
  result.samples = std::move(samples);
  if (place.has("bytes")) {
    const auto bytes = WSYNC_TRY(place.at("bytes", json::value_t::number_unsigned));
    result.bytes = bytes.value().get<std::uint64_t>();
  }
  if (place.has("baseline")) {
    const auto baseline = WSYNC_TRY(place.at("baseline", json::value_t::object));
    auto name = WSYNC_TRY(baseline.text("name"));
    auto values = WSYNC_TRY(read_samples(baseline, "value"));
    result.baseline = Baseline{.name = std::move(name), .samples = std::move(values)};
  }
  if (place.has("ratio")) {
    auto ratios = WSYNC_TRY(read_samples(place, "ratio"));
    result.ratios = std::move(ratios);
  }
  if (!result.baseline && !result.ratios.empty())
    return bad(place.path() + ".ratio", "a baseline in the same case", "none");
  if (place.has("target")) {
    const auto target = WSYNC_TRY(read_target(place));
    result.target = target;
  }
  return result;
}

Result<> read_notes(const Place& place, std::vector<std::string>& notes) {
  const auto list = WSYNC_TRY(place.list("notes", kResultNotesMax));
  for (const Place& note : list) {
    if (!note.value().is_string() ||
        note.value().get_ref<const std::string&>().size() > kResultTextBytesMax ||
        !is_printable(note.value().get_ref<const std::string&>()))
      return bad(note.path(), fmt::format("a line of at most {} bytes", kResultTextBytesMax),
                 note.value().type_name());
    notes.push_back(note.value().get<std::string>());
  }
  return {};
}

Result<SuiteResult> read_suite(const Place& place) {
  if (!place.value().is_object()) return bad(place.path(), "an object", place.value().type_name());
  SuiteResult suite;
  suite.suite = WSYNC_TRY(place.text("suite"));
  const auto parameters = WSYNC_TRY(place.at("parameters", json::value_t::object));
  suite.parameters = parameters.value();
  const auto cases = WSYNC_TRY(place.list("cases", kResultCasesMax));
  std::set<std::string> names;
  for (const Place& one : cases) {
    auto result = WSYNC_TRY(read_case(one));
    if (!names.insert(result.name).second)
      return bad(one.path(), "a case name that occurs only once",
                 fmt::format("a second '{}'", result.name));
    suite.cases.push_back(std::move(result));
  }
  WSYNC_TRY(read_notes(place, suite.notes));
  return suite;
}

Result<> check_schema(const Place& root) {
  if (!root.has("schema"))
    return fail(ErrorCode::kRefused,
                fmt::format("schema: expected '{}', found nothing; the file was not written by "
                            "--output (the --json output of a suite and results of older releases "
                            "have other formats); measure again with --output",
                            kResultSchema));
  const auto schema = WSYNC_TRY(root.text("schema"));
  if (schema != kResultSchema)
    return bad("schema", fmt::format("'{}'", kResultSchema), "'" + schema + "'");
  const auto version = WSYNC_TRY(root.at("schema_version", json::value_t::number_unsigned));
  const auto number = version.value().get<std::uint64_t>();
  if (number != kResultSchemaVersion)
    return fail(
        number < kResultSchemaVersion ? ErrorCode::kRefused : ErrorCode::kInvalidInput,
        fmt::format("schema_version: expected {}, found {}; {}", kResultSchemaVersion, number,
                    number > kResultSchemaVersion
                        ? "a newer wsync wrote the file; read it with that release"
                        : "an older wsync wrote the file; measure again"));
  return {};
}

Result<ResultFile> read_file(const Place& root) {
  if (!root.value().is_object())
    return bad("the file", "a JSON object as `wsync bench --output` writes it",
               root.value().type_name());
  WSYNC_TRY(check_schema(root));
  ResultFile file;
  for (const auto& [key, to] :
       {std::pair{"date", &file.date}, std::pair{"wsync_version", &file.wsync_version}}) {
    *to = WSYNC_TRY(root.text(key));
  }
  const auto machine = WSYNC_TRY(root.at("machine", json::value_t::object));
  file.machine = machine.value();
  const auto suites = WSYNC_TRY(root.list("suites", kResultSuitesMax));
  for (const Place& place : suites) {
    auto suite = WSYNC_TRY(read_suite(place));
    for (const SuiteResult& other : file.suites)
      if (other.suite == suite.suite && other.parameters == suite.parameters)
        return bad(place.path(), "each suite only once with the same parameters",
                   fmt::format("a second '{}'", suite.suite));
    file.suites.push_back(std::move(suite));
  }
  return file;
}

}  // namespace

Result<ResultFile> parse_result(std::string_view text) {
  if (text.size() > kResultBytesMax)
    return bad("the file", fmt::format("at most {} bytes", kResultBytesMax),
               fmt::format("{}", text.size()));
  WSYNC_TRY(check_depth(text));
  const json parsed = json::parse(text, nullptr, false);
  if (parsed.is_discarded())
    return bad("the file", "a JSON object as `wsync bench --output` writes it",
               text.empty() ? "nothing" : "text that is not JSON");
  return read_file(Place(parsed, ""));
}

Result<ResultFile> read_result(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return fail_errno(path, error.value());
  if (bytes > kResultBytesMax)
    return bad(path, fmt::format("at most {} bytes", kResultBytesMax), fmt::format("{}", bytes));
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) return fail(ErrorCode::kIo, path + ": cannot be read");
  auto parsed = parse_result(text);
  if (!parsed) return fail(parsed.error().with_context(path));
  return parsed;
}

}  // namespace wsync::bench
