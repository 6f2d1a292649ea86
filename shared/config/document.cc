#include "shared/config/document.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "shared/base/format.h"
#include "shared/config/limits.h"

namespace wsync::config {
namespace {

// A comment that is appended to the text to detect an unclosed quote. yaml-cpp ends an unclosed
// quote at the end of the text, so this mark is then part of the value.
constexpr std::string_view kEndMark = "#end-of-config#";

// Thrown by the event handler and caught in parse_document(). An exception is the only way to stop
// yaml-cpp's event parser.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Flattener final : public YAML::EventHandler {
 public:
  Flattener(std::string_view name, const std::set<std::string>& lists)
      : name_(name), lists_(lists) {}

  std::vector<Entry> take() { return std::move(entries_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    no_anchor(mark, anchor);
    if (levels_.empty()) return;  // the document is empty
    refuse(levels_.back().mark,
           fmt::format("'{}' has no value; write one, or leave the key out", path()));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "an alias (*name) is not allowed; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    no_anchor(mark, anchor);
    if (tag != "?" && tag != "!") refuse(mark, fmt::format("a tag ({}) is not allowed", tag));
    if (levels_.empty()) refuse(mark, "expected 'key: value' lines, found a single value");
    Level& level = levels_.back();
    if (list_) {
      *list_ += (list_->empty() ? "" : ", ") + value;
      return;
    }
    if (level.expects_key) {
      take_key(mark, value);
      return;
    }
    if (value.find(kEndMark) != std::string::npos)
      refuse(level.mark,
             fmt::format("'{}': the quotation mark of its value is not closed", path()));
    entries_.push_back({.key = path(), .value = value, .where = at(level.mark)});
    level.expects_key = true;
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    if (levels_.empty()) refuse(mark, "expected 'key: value' lines, found a list");
    no_anchor(mark, anchor);
    if (list_) refuse(mark, fmt::format("'{}': a list inside a list", path()));
    if (!lists_.contains(path()))
      refuse(mark, fmt::format("'{}': expected one value, found a list{}", path(),
                               lists_.empty() ? std::string()
                                              : fmt::format("; only {} takes a list",
                                                            fmt::join(lists_, ", "))));
    list_.emplace();
  }
  void OnSequenceEnd() override {
    Level& level = levels_.back();
    entries_.push_back(
        {.key = path(), .value = list_->empty() ? "[]" : *list_, .where = at(level.mark)});
    list_.reset();
    level.expects_key = true;
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    no_anchor(mark, anchor);
    if (tag != "?" && tag != "!" && !tag.empty())
      refuse(mark, fmt::format("a tag ({}) is not allowed", tag));
    if (list_) refuse(mark, fmt::format("'{}': a section inside a list", path()));
    if (!levels_.empty() && levels_.back().expects_key) refuse(mark, "a key must be a plain word");
    if (levels_.size() >= kConfigDepthMax)
      refuse(mark, fmt::format("nested deeper than {} levels", kConfigDepthMax));
    levels_.push_back({});
  }
  void OnMapEnd() override {
    const bool empty = levels_.back().key.empty();
    levels_.pop_back();
    if (levels_.empty()) return;
    Level& level = levels_.back();
    level.expects_key = true;
    if (empty)
      entries_.push_back({.key = path(), .value = "", .where = at(level.mark), .section = true});
  }

 private:
  struct Level {
    std::string key;
    YAML::Mark mark;  // position of the key
    bool expects_key = true;
  };

  void take_key(const YAML::Mark& mark, const std::string& key) {
    // yaml-cpp passes invalid UTF-8 and control characters through unchanged, so they are rejected
    // here.
    if (key.empty() || !std::all_of(key.begin(), key.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
        }))
      refuse(mark, "a key must be made of a-z, 0-9 and _");
    levels_.back().key = key;
    levels_.back().mark = mark;
    levels_.back().expects_key = false;
    if (!seen_.insert(path()).second)
      refuse(mark, fmt::format("'{}' is given twice; keep one of the two", path()));
  }
  [[nodiscard]] std::string path() const {
    std::string result;
    for (const Level& level : levels_) result += (result.empty() ? "" : ".") + level.key;
    return result;
  }
  [[nodiscard]] std::string at(const YAML::Mark& mark) const {
    return fmt::format("{}:{}", name_, mark.line + 1);
  }
  void no_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) refuse(mark, "an anchor (&name) is not allowed");
  }
  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& text) const {
    throw Refusal(at(mark) + ": " + text);
  }

  std::string name_;
  const std::set<std::string>& lists_;
  std::optional<std::string> list_;  // key of the list that is being read
  std::vector<Level> levels_;
  std::set<std::string> seen_;
  std::vector<Entry> entries_;
};

}  // namespace

Result<std::vector<Entry>> parse_document(std::string_view text, std::string_view name,
                                          const std::set<std::string>& lists) {
  if (text.size() > kConfigBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {} bytes; a configuration file has at most {}", name, text.size(),
                            kConfigBytesMax));
  try {
    std::istringstream stream{fmt::format("{}\n{}\n", text, kEndMark)};
    YAML::Parser parser(stream);
    Flattener flattener(name, lists);
    parser.HandleNextDocument(flattener);
    Flattener rest(name, lists);
    if (parser.HandleNextDocument(rest))
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("{}: more than one YAML document; a configuration file has exactly one",
                      name));
    return flattener.take();
  } catch (const Refusal& refusal) {
    return fail(ErrorCode::kInvalidInput, refusal.what());
  } catch (const YAML::Exception& error) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}:{}: not YAML: {}", name, error.mark.line + 1, error.msg));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInvalidInput, fmt::format("{}: not YAML: {}", name, error.what()));
  }
}

}  // namespace wsync::config
