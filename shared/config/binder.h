// Binds keys to fields of a config struct. Each key is declared once, with its type and range; what
// was given and never declared is an unknown key.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/format.h"
#include "shared/config/document.h"

namespace wsync::config {

template <class T>
struct Range {
  T min;
  T max;
};

// "WSYNC_A_B" of the key a.b.
[[nodiscard]] std::string environment_name(std::string_view key);

class Binder {
 public:
  // `file`: entries of the YAML text; `set`: "a.b=c" texts of --set, which rule over `environment`
  // ("WSYNC_A_B" to its value), which rules over the file.
  Binder(std::vector<Entry> file, const std::vector<std::string>& set,
         const std::map<std::string, std::string>& environment);

  // Puts "name." before every key while it lives. Of a section that is off, wrong values are no
  // error.
  class Section {
   public:
    Section(Binder& binder, std::string_view name, bool on);
    ~Section();
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;

   private:
    Binder& binder_;
    std::size_t outer_prefix_;  // its length
    bool outer_on_;
  };

  // Each leaves `out` as it is (the default) when the key is not given. The first error is kept.
  void text(std::string_view key, std::string& out);
  void flag(std::string_view key, bool& out);
  void size(std::string_view key, std::uint64_t& out, Range<std::uint64_t> range);
  // As size(), and "auto" is 0.
  void size_or_auto(std::string_view key, std::uint64_t& out, Range<std::uint64_t> range);
  void duration(std::string_view key, std::chrono::milliseconds& out,
                Range<std::chrono::milliseconds> range);
  void count(std::string_view key, std::uint32_t& out, Range<std::uint32_t> range);
  // As count(), and "auto" is nothing.
  void count_or_auto(std::string_view key, std::optional<std::uint32_t>& out,
                     Range<std::uint32_t> range);
  void number(std::string_view key, double& out, Range<double> range);
  // Paths with a ':' between them.
  void paths(std::string_view key, std::vector<std::string>& out);
  // Words with commas or blanks between them.
  void words(std::string_view key, std::vector<std::string>& out);
  template <class E>
  void choice(std::string_view key, E& out,
              std::initializer_list<std::pair<std::string_view, std::type_identity_t<E>>> choices) {
    const std::optional<Entry> entry = take(key);
    if (!entry) return;
    std::string names;
    for (const auto& [name, value] : choices) {
      if (entry->value == name) {
        out = value;
        return;
      }
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    refuse(*entry, fmt::format("expected one of {}, found '{}'", names, entry->value));
  }
  // The given value of `key`, if any; the caller reads it and calls refuse() if it is wrong.
  [[nodiscard]] std::optional<Entry> take(std::string_view key);
  // Whether the section itself ("name: {}") or any key of it is given.
  [[nodiscard]] bool has_section(std::string_view name) const;
  void refuse(const Entry& entry, std::string_view sentence);
  // An error about the value of an already bound key, wherever it came from.
  void refuse(std::string_view key, std::string_view sentence);

  // The first error: unknown keys (with the nearest known one) before wrong values.
  [[nodiscard]] Result<> finish() const;
  // Every key declared so far, in order.
  [[nodiscard]] const std::vector<std::string>& keys() const noexcept { return keys_; }

 private:
  void split(std::string_view key, std::string_view separators, std::vector<std::string>& out);
  [[nodiscard]] bool known(const Entry& entry) const;

  std::map<std::string, Entry, std::less<>> given_;  // file and --set; the latter wins
  std::vector<Entry> order_;                         // what was given, for unknown keys
  std::map<std::string, std::string> environment_;
  std::vector<std::string> keys_;
  std::vector<std::string> from_set_;
  std::string prefix_;
  bool on_ = true;  // the section that is being bound
  std::optional<Error> error_;
};

}  // namespace wsync::config
